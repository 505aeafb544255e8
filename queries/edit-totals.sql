-- What did each stage of the application take out, put in and send, over all requests?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column stage: The stage with its parameters.
-- column requests: Requests that it changed.
-- column actions: Requests in which it decided something.
-- column removed_tokens: Tokens taken out of prompts.
-- column added_tokens: Tokens put in.
-- column lost_prefix_tokens: Tokens still in prompts that have to be computed and written again.
-- column extra_requests: Requests sent for it.
-- column extra_prompt_tokens: Their prompts together.
-- column extra_output_tokens: Their outputs together.
SELECT
  e.scenario_id, s.name AS scenario, e.stage, count(*) AS requests, count(e.action) AS actions,
  sum(CAST(e.removed_tokens AS BIGINT)) AS removed_tokens, sum(CAST(e.added_tokens AS BIGINT)) AS added_tokens,
  sum(CAST(e.lost_prefix_tokens AS BIGINT)) AS lost_prefix_tokens,
  sum(CAST(e.extra_requests AS BIGINT)) AS extra_requests, sum(e.extra_prompt_tokens) AS extra_prompt_tokens,
  sum(e.extra_output_tokens) AS extra_output_tokens
FROM context_edits e JOIN scenarios s ON s.scenario_id = e.scenario_id
GROUP BY e.scenario_id, s.name, e.stage
ORDER BY scenario_id, stage
