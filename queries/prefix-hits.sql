-- How much of the prompts is a repetition, under each definition of a hit?
-- column scenario_id: Number of the scenario within the run; null for the workload itself.
-- column scenario: What the user calls it; null for the workload itself.
-- column metric: The figure's name.
-- column value: The figure in its unit.
-- column unit: Its unit.
-- column numerator: What is divided; null for counts.
-- column denominator: By what.
-- column definition: What it means.
-- column certainty: The least certain input that the figure depends on.
SELECT
  m.scenario_id, s.name AS scenario, m.metric, m.value, d.unit, d.numerator, d.denominator, d.definition, m.certainty
FROM metrics m
LEFT JOIN scenarios s ON s.scenario_id = m.scenario_id
LEFT JOIN metric_defs d ON d.metric = m.metric
WHERE m.metric = 'hit_tokens_ratio' OR starts_with(m.metric, 'workload_')
ORDER BY scenario_id NULLS FIRST, metric
