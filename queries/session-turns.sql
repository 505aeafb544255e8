-- How does the context of each session grow, turn by turn, as recorded and as served?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column session: Number of the session.
-- column session_id: Its name in the store.
-- column request_id: The request.
-- column turn: Place in the session, from 0.
-- column role: Whether it is recorded, or why a stage added it.
-- column recorded_tokens: Its prompt as recorded, tokens.
-- column prompt_tokens: Its prompt as served, tokens.
-- column saved_tokens: Tokens of the recorded prompt that were not sent, tokens.
-- column found_tokens: Prompt tokens that a prefix cache without limits has, tokens.
-- column written_tokens: Prompt tokens that are computed and written, tokens.
-- column recorded_written_tokens: The same as recorded, tokens.
-- column lost_prefix_tokens: Tokens still in the prompt that fell out of the common prefix, tokens.
-- column kept_tokens: Recorded tokens in common with the turn before, tokens.
-- column broke_at_tokens: Where the recorded prefix of the turn before broke, tokens.
-- column kv_bytes: KV of its context at its end, bytes.
-- column recorded_kv_bytes: The same for the recorded context, bytes.
SELECT
  t.scenario_id, s.name AS scenario, t.session, t.session_id, t.request_id, t.turn, t.role, t.recorded_tokens,
  t.prompt_tokens, CAST(t.recorded_tokens AS BIGINT) - CAST(t.prompt_tokens AS BIGINT) AS saved_tokens,
  t.found_tokens, CAST(t.prompt_tokens AS BIGINT) - CAST(t.found_tokens AS BIGINT) AS written_tokens,
  CAST(t.recorded_tokens AS BIGINT) - CAST(t.recorded_found_tokens AS BIGINT) AS recorded_written_tokens,
  t.lost_prefix_tokens, t.kept_tokens, t.broke_at_tokens, t.kv_bytes, t.recorded_kv_bytes
FROM session_turns t JOIN scenarios s ON s.scenario_id = t.scenario_id
ORDER BY scenario_id, session, turn, request_id
