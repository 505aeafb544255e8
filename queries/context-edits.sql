-- What did each stage of the application take out, put in and send, where it decided to act?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column stage: The stage with its parameters.
-- column session: Number of the session.
-- column turn: The turn.
-- column request_id: The request.
-- column action: What the stage decided.
-- column removed_tokens: Tokens taken out of the prompt.
-- column added_tokens: Tokens put in.
-- column broke_at_tokens: The first token that is not as it was.
-- column lost_prefix_tokens: Tokens still in the prompt that have to be computed and written again.
-- column extra_requests: Requests sent for it.
-- column extra_prompt_tokens: Their prompts together.
-- column extra_output_tokens: Their outputs together.
-- column certainty: How well the stage's behaviour is known.
SELECT
  e.scenario_id, s.name AS scenario, e.stage, e.session, e.turn, e.request_id, e.action, e.removed_tokens, e.added_tokens,
  e.broke_at_tokens, e.lost_prefix_tokens, e.extra_requests, e.extra_prompt_tokens, e.extra_output_tokens, e.certainty
FROM context_edits e JOIN scenarios s ON s.scenario_id = e.scenario_id
WHERE e.action IS NOT NULL
ORDER BY scenario_id, stage, session, turn, request_id
