-- How does the context of the session with most turns grow, as recorded and as served?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column session: Number of the session.
-- column session_id: Its name in the store.
-- column turn: Place in the session, from 0.
-- column request_id: The request.
-- column recorded_tokens: Its prompt as recorded, tokens.
-- column prompt_tokens: Its prompt as served, tokens.
-- column written_tokens: Prompt tokens that are computed and written with a prefix cache without limits, tokens.
-- column kv_bytes: KV of its context at its end, bytes.
WITH sizes AS (
  SELECT scenario_id, session, row_number() OVER (PARTITION BY scenario_id ORDER BY turns DESC, session) AS place
  FROM session_span
)
SELECT
  t.scenario_id, s.name AS scenario, t.session, t.session_id, t.turn, t.request_id, t.recorded_tokens, t.prompt_tokens,
  CAST(t.prompt_tokens AS BIGINT) - CAST(t.found_tokens AS BIGINT) AS written_tokens, t.kv_bytes
FROM session_turns t
JOIN sizes z ON z.scenario_id = t.scenario_id AND z.session = t.session AND z.place = 1
JOIN scenarios s ON s.scenario_id = t.scenario_id
WHERE t.role = 'recorded'
ORDER BY scenario_id, turn, request_id
