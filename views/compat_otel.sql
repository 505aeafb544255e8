-- Requests of a replay under the names and units of OpenTelemetry's GenAI metrics.
-- column scenario_id: Number of the scenario within the run.
-- column request_id: The request; those that stages of the policy send are there too, as an engine sees them.
-- column gen_ai.request.model: The model.
-- column gen_ai.server.time_to_first_token: From arrival to the first token, s.
-- column gen_ai.server.time_per_output_token: Mean gap between tokens after the first, s.
-- column gen_ai.server.request.duration: From arrival to the last token, s.
-- column gen_ai.usage.input_tokens: Tokens of the prompt.
-- column gen_ai.usage.cache_read.input_tokens: Prompt tokens found in the prefix cache.
-- column gen_ai.usage.output_tokens: Tokens generated.
SELECT
  r.scenario_id, r.request_id, s.model AS "gen_ai.request.model",
  r.ttft_ns / 1e9 AS "gen_ai.server.time_to_first_token",
  r.mean_itl_ns / 1e9 AS "gen_ai.server.time_per_output_token",
  r.e2e_ns / 1e9 AS "gen_ai.server.request.duration", r.prompt_tokens AS "gen_ai.usage.input_tokens",
  r.hit_tokens AS "gen_ai.usage.cache_read.input_tokens", r.output_tokens AS "gen_ai.usage.output_tokens"
FROM request_costs r JOIN scenarios s ON s.scenario_id = r.scenario_id
