-- What changed against another run: the one before it, or the one that `kvtoll compare` names?
-- param all bool false: Whether figures that stayed the same, within 1 in a billion, are listed too.
-- param metric text null: Only this figure; null for all.
-- column scenario: What the user calls it; scenarios of both runs are matched by this name.
-- column metric: The figure's name.
-- column unit: Its unit.
-- column base_value: The figure in the run that is compared with; null where it has none.
-- column value: The figure in this run; null where it has none.
-- column change: This run's figure minus the other's.
-- column change_ratio: The change over the other's figure; 0.05 is 5% more.
-- column effect: better, worse or same; new or gone where only one run knows it; changed where no direction is better.
WITH now AS (
  SELECT s.name AS scenario, m.metric, m.value FROM metrics m JOIN scenarios s ON s.scenario_id = m.scenario_id
),
before AS (
  SELECT s.name AS scenario, m.metric, m.value
  FROM base.metrics m JOIN base.scenarios s ON s.scenario_id = m.scenario_id
),
matched AS (
  SELECT
    coalesce(n.scenario, b.scenario) AS scenario, coalesce(n.metric, b.metric) AS metric, b.value AS base_value, n.value
  FROM now n FULL JOIN before b ON b.scenario = n.scenario AND b.metric = n.metric
),
changed AS (
  SELECT
    m.scenario, m.metric, d.unit, m.base_value, m.value, m.value - m.base_value AS change,
    (m.value - m.base_value) / nullif(abs(m.base_value), 0) AS change_ratio,
    CASE
      WHEN m.value IS NULL AND m.base_value IS NULL THEN 'same'
      WHEN m.base_value IS NULL THEN 'new'
      WHEN m.value IS NULL THEN 'gone'
      WHEN abs(m.value - m.base_value) <= 1e-9 * greatest(abs(m.value), abs(m.base_value)) THEN 'same'
      WHEN d.better IS NULL OR d.better = 'neither' THEN 'changed'
      WHEN (m.value > m.base_value) = (d.better = 'higher') THEN 'better'
      ELSE 'worse'
    END AS effect
  FROM matched m LEFT JOIN metric_defs d ON d.metric = m.metric
)
SELECT scenario, metric, unit, base_value, value, change, change_ratio, effect
FROM changed
WHERE ($all OR effect <> 'same') AND ($metric IS NULL OR metric = $metric)
ORDER BY scenario, metric
