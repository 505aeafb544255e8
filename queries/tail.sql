-- How are the latencies distributed, from the median to the tail?
-- param metric text null: itl, ttft or e2e; null for all.
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column metric: itl (gap between two tokens, over tokens), ttft or e2e (over requests).
-- column quantile_ratio: Share of the population at or below the value.
-- column exceed_ratio: Share of the population above it: 1 - quantile.
-- column value_ms: The value, ms.
SELECT
  q.scenario_id, s.name AS scenario, q.metric, q.quantile_ratio, 1 - q.quantile_ratio AS exceed_ratio,
  q.value_ns / 1e6 AS value_ms
FROM quantiles q JOIN scenarios s ON s.scenario_id = q.scenario_id
WHERE $metric IS NULL OR q.metric = $metric
ORDER BY scenario_id, metric, quantile_ratio
