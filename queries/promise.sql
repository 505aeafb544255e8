-- Which latency can each scenario promise, and how steady is it?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column ttft_99_ms: Tightest time to first token that 99% of all requests keep, ms; null if fewer were served.
-- column ttft_999_ms: The same for 99.9%, ms.
-- column itl_99_ms: Tightest gap between two tokens that 99% of all requests keep throughout, ms.
-- column itl_999_ms: The same for 99.9%, ms.
-- column p50_itl_ms: Median gap over tokens, ms.
-- column p90_itl_ms: 90th percentile, ms.
-- column p99_itl_ms: 99th percentile, ms.
-- column p999_itl_ms: 99.9th percentile, ms.
-- column max_itl_ms: Largest gap, ms.
-- column std_itl_ms: Standard deviation, ms.
-- column p50_ffn_ms: Median time of the FFN of all layers in a decode step, ms.
-- column p99_ffn_shared_ms: 99th percentile of the same while KV is read from the same memory, ms.
SELECT
  s.scenario_id, s.name AS scenario,
  max(m.value) FILTER (WHERE m.metric = 'promise_99_ttft_ms') AS ttft_99_ms,
  max(m.value) FILTER (WHERE m.metric = 'promise_999_ttft_ms') AS ttft_999_ms,
  max(m.value) FILTER (WHERE m.metric = 'promise_99_itl_ms') AS itl_99_ms,
  max(m.value) FILTER (WHERE m.metric = 'promise_999_itl_ms') AS itl_999_ms,
  max(m.value) FILTER (WHERE m.metric = 'p50_itl_ms') AS p50_itl_ms,
  max(m.value) FILTER (WHERE m.metric = 'p90_itl_ms') AS p90_itl_ms,
  max(m.value) FILTER (WHERE m.metric = 'p99_itl_ms') AS p99_itl_ms,
  max(m.value) FILTER (WHERE m.metric = 'p999_itl_ms') AS p999_itl_ms,
  max(m.value) FILTER (WHERE m.metric = 'max_itl_ms') AS max_itl_ms,
  max(m.value) FILTER (WHERE m.metric = 'std_itl_ms') AS std_itl_ms,
  max(m.value) FILTER (WHERE m.metric = 'p50_ffn_ms') AS p50_ffn_ms,
  max(m.value) FILTER (WHERE m.metric = 'p99_ffn_shared_ms') AS p99_ffn_shared_ms
FROM scenarios s JOIN metrics m ON m.scenario_id = s.scenario_id
WHERE s.status = 'ok'
GROUP BY s.scenario_id, s.name
ORDER BY scenario_id
