-- Which share of each scenario's time rests on measured kernels, and how far are those from what was measured?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column is_baseline: Whether the others are compared with it.
-- column machine: The machine with its variations.
-- column calibrated_time_ratio: Share of step time of operations whose shape lies between measured ones.
-- column extrapolated_time_ratio: Share of measured operations beyond the measured shapes, or at rates that were varied.
-- column closed_form_time_ratio: The rest: closed forms over published and assumed figures, and the host.
-- column surface_prefix: How the names of surfaces of its device under its engine begin.
-- column surfaces: How many of them ship; 0 where nobody measured it, which those of a device of its kind may stand in for.
-- column least_median_error_ratio: Median error of the best of them, each measured point estimated without itself.
-- column most_median_error_ratio: Median error of the worst of them.
-- column most_p90_error_ratio: What nine of ten estimates of the worst of them stay below.
-- column certainty: The least certain input of the scenario.
WITH shares AS (
  SELECT
    s.scenario_id, s.name AS scenario, s.is_baseline, s.machine, s.certainty,
    replace(split_part(s.machine, '*', 1), '-', '_') || '__' || split_part(s.engine, '-', 1) || '__' AS prefix,
    max(m.value) FILTER (WHERE m.metric = 'calibrated_time_ratio') AS calibrated,
    max(m.value) FILTER (WHERE m.metric = 'extrapolated_time_ratio') AS extrapolated
  FROM scenarios s LEFT JOIN metrics m ON m.scenario_id = s.scenario_id
  WHERE s.status = 'ok'
  GROUP BY s.scenario_id, s.name, s.is_baseline, s.machine, s.certainty, s.engine
)
SELECT
  h.scenario_id, h.scenario, h.is_baseline, h.machine, h.calibrated AS calibrated_time_ratio,
  h.extrapolated AS extrapolated_time_ratio, 1 - h.calibrated - h.extrapolated AS closed_form_time_ratio,
  h.prefix AS surface_prefix, count(v.subject) AS surfaces, min(v.median_error_ratio) AS least_median_error_ratio,
  max(v.median_error_ratio) AS most_median_error_ratio, max(v.p90_error_ratio) AS most_p90_error_ratio, h.certainty
FROM shares h LEFT JOIN validation v ON v.kind = 'kernels' AND starts_with(v.subject, h.prefix)
GROUP BY h.scenario_id, h.scenario, h.is_baseline, h.machine, h.calibrated, h.extrapolated, h.prefix, h.certainty
ORDER BY scenario_id
