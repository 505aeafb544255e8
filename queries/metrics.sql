-- What is every named figure, what does it mean, and how does it change against the baseline?
-- param scenario int null: Only this scenario; null for all and for the workload itself.
-- param metric text null: Only this figure; null for all.
-- column scenario_id: Number of the scenario within the run; null for the workload itself.
-- column scenario: What the user calls it; null for the workload itself.
-- column metric: The figure's name.
-- column value: The figure in its unit; null where it is unknown.
-- column unit: Its unit.
-- column better: Which direction is better: higher, lower or neither.
-- column baseline_value: The baseline's figure, in the same unit.
-- column change_ratio: Change against the baseline; -0.25 is a quarter less.
-- column effect: better, worse, or same within 1%; null where the direction or a figure is unknown.
-- column certainty: The least certain input that the figure depends on.
-- column numerator: What is divided; null for figures that are no quotient.
-- column denominator: By what.
-- column definition: What it means.
WITH base AS (
  SELECT metric, value FROM metrics WHERE scenario_id = (SELECT min(scenario_id) FROM scenarios WHERE is_baseline)
),
compared AS (
  SELECT
    m.scenario_id, s.name AS scenario, m.metric, m.value, d.unit, d.better,
    b.value AS baseline_value, m.value / nullif(b.value, 0) - 1 AS change_ratio,
    m.certainty, d.numerator, d.denominator, d.definition
  FROM metrics m
  LEFT JOIN scenarios s ON s.scenario_id = m.scenario_id
  LEFT JOIN metric_defs d ON d.metric = m.metric
  LEFT JOIN base b ON b.metric = m.metric AND m.scenario_id IS NOT NULL
)
SELECT
  scenario_id, scenario, metric, value, unit, better, baseline_value, change_ratio,
  CASE
    WHEN better = 'neither' OR value IS NULL OR baseline_value IS NULL THEN NULL
    WHEN value = baseline_value OR change_ratio BETWEEN -0.01 AND 0.01 THEN 'same'
    WHEN (value > baseline_value) = (better = 'higher') THEN 'better'
    ELSE 'worse'
  END AS effect,
  certainty, numerator, denominator, definition
FROM compared
WHERE ($scenario IS NULL OR scenario_id = $scenario) AND ($metric IS NULL OR metric = $metric)
ORDER BY scenario_id NULLS FIRST, metric
