-- Why do tokens come later than in the median? Each cause with its share of the time beyond p50.
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column cause: prefill, batch_change, context_growth, preemption, handover, tier_stall or link.
-- column p50_itl_ms: Median gap between two tokens, ms.
-- column p99_itl_ms: 99th percentile of the same, ms.
-- column tokens: Tokens that came later for this cause, among others.
-- column excess_ms: Time beyond the median gap, summed over tokens, ms.
-- column mean_excess_ms: The same per such token, ms.
-- column share_ratio: Of the excess of all causes.
SELECT
  j.scenario_id, s.name AS scenario, j.cause, j.p50_itl_ns / 1e6 AS p50_itl_ms, q.value_ns / 1e6 AS p99_itl_ms, j.tokens,
  j.excess_ns / 1e6 AS excess_ms, j.excess_ns / 1e6 / nullif(j.tokens, 0) AS mean_excess_ms, j.share_ratio
FROM jitter j
JOIN scenarios s ON s.scenario_id = j.scenario_id
LEFT JOIN quantiles q ON q.scenario_id = j.scenario_id AND q.metric = 'itl' AND q.quantile_ratio = 0.99
ORDER BY scenario_id, share_ratio DESC, cause
