-- Is a smaller KV worth it: what of the gain is capacity, what is bandwidth, and what does its own work take back?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column policy: The policy stack.
-- column capacity_tokens_change_ratio: Change of the tokens that fit, against the baseline; 1 is twice as many.
-- column kv_bytes_change_ratio: Change of the KV bytes read per output token.
-- column kv_read_time_change_ratio: Change of the exposed time of reading KV per output token.
-- column policy_ns_per_output_token: The policy's own work (dequantization, scoring, packing) per output token, ns.
-- column p50_itl_change_ratio: Change of the median gap between two tokens.
-- column p99_ttft_change_ratio: Change of the 99th percentile of the time to first token.
-- column throughput_change_ratio: Change of the output tokens per second and accelerator.
-- column lost_mass_ratio: Attention mass that the policy loses on a recording; null without one.
-- column quantization_error_ratio: Error of the attention output by number format on a recording; null without one.
WITH times AS (
  SELECT scenario_id, CAST(sum(kv_read_ns) AS BIGINT) AS kv_read_ns, CAST(sum(policy_ns) AS BIGINT) AS policy_ns
  FROM step_costs GROUP BY scenario_id
),
tokens AS (
  SELECT scenario_id, CAST(sum(CAST(output_tokens AS BIGINT)) AS DOUBLE) AS output_tokens
  FROM request_costs WHERE NOT is_added GROUP BY scenario_id
),
figures AS (
  SELECT
    scenario_id,
    max(value) FILTER (WHERE metric = 'kv_capacity_bytes') AS capacity_bytes,
    max(value) FILTER (WHERE metric = 'kv_bytes_per_token') AS kv_bytes_per_token,
    max(value) FILTER (WHERE metric = 'kv_read_bytes_per_output_token') AS kv_bytes,
    max(value) FILTER (WHERE metric = 'p50_itl_ms') AS p50_itl_ms,
    max(value) FILTER (WHERE metric = 'p99_ttft_ms') AS p99_ttft_ms,
    max(value) FILTER (WHERE metric = 'output_tokens_per_s_per_accelerator') AS throughput,
    max(value) FILTER (WHERE metric = 'lost_mass_ratio') AS lost_mass_ratio,
    max(value) FILTER (WHERE metric = 'quantization_error_ratio') AS quantization_error_ratio
  FROM metrics WHERE scenario_id IS NOT NULL GROUP BY scenario_id
),
wide AS (
  SELECT
    f.*, s.name AS scenario, s.policy,
    s.scenario_id = (SELECT min(scenario_id) FROM scenarios WHERE is_baseline) AS is_base,
    f.capacity_bytes / nullif(f.kv_bytes_per_token, 0) AS capacity_tokens,
    t.kv_read_ns / nullif(k.output_tokens, 0) AS kv_read_ns, t.policy_ns / nullif(k.output_tokens, 0) AS policy_ns
  FROM figures f JOIN scenarios s ON s.scenario_id = f.scenario_id
  LEFT JOIN times t ON t.scenario_id = f.scenario_id
  LEFT JOIN tokens k ON k.scenario_id = f.scenario_id
  WHERE s.status = 'ok'
),
-- The baseline's figures beside those of each scenario: a join with itself would compute all of them twice.
beside AS (
  SELECT
    *, max(CASE WHEN is_base THEN capacity_tokens END) OVER () AS base_capacity_tokens,
    max(CASE WHEN is_base THEN kv_bytes END) OVER () AS base_kv_bytes,
    max(CASE WHEN is_base THEN kv_read_ns END) OVER () AS base_kv_read_ns,
    max(CASE WHEN is_base THEN p50_itl_ms END) OVER () AS base_p50_itl_ms,
    max(CASE WHEN is_base THEN p99_ttft_ms END) OVER () AS base_p99_ttft_ms,
    max(CASE WHEN is_base THEN throughput END) OVER () AS base_throughput
  FROM wide
)
SELECT
  scenario_id, scenario, policy, capacity_tokens / nullif(base_capacity_tokens, 0) - 1 AS capacity_tokens_change_ratio,
  kv_bytes / nullif(base_kv_bytes, 0) - 1 AS kv_bytes_change_ratio,
  kv_read_ns / nullif(base_kv_read_ns, 0) - 1 AS kv_read_time_change_ratio,
  policy_ns AS policy_ns_per_output_token, p50_itl_ms / nullif(base_p50_itl_ms, 0) - 1 AS p50_itl_change_ratio,
  p99_ttft_ms / nullif(base_p99_ttft_ms, 0) - 1 AS p99_ttft_change_ratio,
  throughput / nullif(base_throughput, 0) - 1 AS throughput_change_ratio, lost_mass_ratio, quantization_error_ratio
FROM beside
ORDER BY scenario_id
