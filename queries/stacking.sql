-- What do a scenario's differences from the baseline bring alone, together, and with one left out, and what bounds the step then?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column part_count: How many of the differences are there.
-- column parts: Which ones.
-- column role: baseline, alone, without (all but one), between or together.
-- column is_step: Whether it is one of the steps in which the differences are added in order.
-- column left_out: The one that is missing, where one is.
-- column ns_per_output_token: Time of all steps over the output tokens, ns; null where it could not be replayed.
-- column change_ratio: Change of that time against the baseline; -0.25 is a quarter less.
-- column p50_itl_ms: Median gap between two tokens, ms.
-- column p99_itl_ms: 99th percentile of the gap between two tokens, ms.
-- column p99_ttft_ms: 99th percentile of the time to the first token, ms.
-- column usd_per_mtok_output: US dollars per million output tokens.
-- column kv_capacity_tokens: Context tokens that fit, all instances.
-- column bound_by: The booth with the most time.
-- column bound_ratio: Its share of the step time.
-- column error: Why it could not be replayed.
WITH base AS (
  SELECT scenario_id, max(ns_per_output_token) AS base_ns FROM stacking WHERE role = 'baseline' GROUP BY scenario_id
)
SELECT
  k.scenario_id, s.name AS scenario, k.part_count, k.parts, k.role, k.is_step, k.left_out, k.ns_per_output_token,
  k.ns_per_output_token / nullif(b.base_ns, 0) - 1 AS change_ratio, k.p50_itl_ns / 1e6 AS p50_itl_ms,
  k.p99_itl_ns / 1e6 AS p99_itl_ms, k.p99_ttft_ns / 1e6 AS p99_ttft_ms, k.usd_per_mtok_output, k.kv_capacity_tokens,
  k.bound_by, k.bound_ratio, k.error
FROM stacking k JOIN scenarios s ON s.scenario_id = k.scenario_id LEFT JOIN base b ON b.scenario_id = k.scenario_id
ORDER BY scenario_id, part_count, parts
