-- What does one read first of each scenario?
-- column scenario: What the user calls it.
-- column status: ok or failed.
-- column p99_ttft_ms: 99th percentile of the time to first token, ms.
-- column p50_itl_ms: Median gap between two tokens, ms.
-- column p99_itl_ms: 99th percentile of the gap between two tokens, ms.
-- column output_tokens_per_s: Output tokens per second, all accelerators together.
-- column usd_per_mtok_output_saturated: US dollars per million output tokens at full load; null if not disclosed.
-- column kv_peak_held_bytes: Most KV that running requests held at once, bytes.
-- column lost_mass_ratio: Attention mass that the policy loses on a recording; null without one.
-- column offered_load_ratio: Busy time that the requests ask for over their span; above 1 the queue grows to the end.
WITH wide AS (
  SELECT
    s.scenario_id, s.name AS scenario, s.status, s.offered_load_ratio,
    max(m.value) FILTER (WHERE m.metric = 'p99_ttft_ms') AS p99_ttft_ms,
    max(m.value) FILTER (WHERE m.metric = 'p50_itl_ms') AS p50_itl_ms,
    max(m.value) FILTER (WHERE m.metric = 'p99_itl_ms') AS p99_itl_ms,
    max(m.value) FILTER (WHERE m.metric = 'output_tokens_per_s') AS output_tokens_per_s,
    max(m.value) FILTER (WHERE m.metric = 'usd_per_mtok_output_saturated') AS usd_per_mtok_output_saturated,
    max(m.value) FILTER (WHERE m.metric = 'kv_peak_held_bytes') AS kv_peak_held_bytes,
    max(m.value) FILTER (WHERE m.metric = 'lost_mass_ratio') AS lost_mass_ratio
  FROM scenarios s LEFT JOIN metrics m ON m.scenario_id = s.scenario_id
  GROUP BY s.scenario_id, s.name, s.status, s.offered_load_ratio
)
SELECT
  scenario, status, p99_ttft_ms, p50_itl_ms, p99_itl_ms, output_tokens_per_s, usd_per_mtok_output_saturated,
  kv_peak_held_bytes, lost_mass_ratio, offered_load_ratio
FROM wide
ORDER BY scenario_id
