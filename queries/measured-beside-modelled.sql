-- Can the replay be trusted: how far are modelled latencies from those that the traced run measured?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column figure: ttft, tpot (mean gap between tokens) or e2e.
-- column requests: Requests of which both are known.
-- column p50_measured_ms: Median of what was measured, ms.
-- column p50_modelled_ms: Median of what the replay found, ms.
-- column mean_error_ratio: Mean over requests of the modelled over the measured, less 1; above 0 the model is too slow.
-- column mean_absolute_error_ratio: The same without regard to the sign.
WITH pairs AS (
  SELECT c.scenario_id, c.request_id, 'ttft' AS figure, r.measured_ttft_ns AS measured_ns, c.ttft_ns AS modelled_ns
  FROM request_costs c JOIN requests r ON r.request_id = c.request_id
  UNION ALL
  SELECT c.scenario_id, c.request_id, 'tpot', r.measured_tpot_ns, c.mean_itl_ns
  FROM request_costs c JOIN requests r ON r.request_id = c.request_id
  UNION ALL
  SELECT c.scenario_id, c.request_id, 'e2e', r.measured_e2e_ns, c.e2e_ns
  FROM request_costs c JOIN requests r ON r.request_id = c.request_id
),
errors AS (
  SELECT *, CAST(modelled_ns AS DOUBLE) / measured_ns - 1 AS error_ratio
  FROM pairs WHERE measured_ns > 0 AND modelled_ns IS NOT NULL
)
SELECT
  p.scenario_id, s.name AS scenario, p.figure, count(*) AS requests,
  quantile_disc(p.measured_ns, 0.5) / 1e6 AS p50_measured_ms,
  quantile_disc(p.modelled_ns, 0.5) / 1e6 AS p50_modelled_ms,
  avg(p.error_ratio) AS mean_error_ratio, avg(abs(p.error_ratio)) AS mean_absolute_error_ratio
FROM errors p JOIN scenarios s ON s.scenario_id = p.scenario_id
GROUP BY p.scenario_id, s.name, p.figure
ORDER BY scenario_id, figure
