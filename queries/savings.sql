-- Do two savings multiply, add up or stand in for each other?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column first_part: The first difference.
-- column second_part: The second one.
-- column first_ratio: Time of an output token with the first alone over that of the baseline.
-- column second_ratio: The same with the second alone.
-- column both_ratio: The same with both.
-- column multiplied_ratio: What both would be if each kept its effect on what the other leaves: the product.
-- column added_ratio: What both would be if the saved times added up.
-- column substitute_ratio: What both would be if the smaller saving was part of the larger.
-- column relation: multiply, add, multiply or add (they predict the same to 1%), substitute, reinforce (more than the sum), hinder (less than the better alone) or no saving.
WITH times AS (
  SELECT
    scenario_id, parts, part_count,
    ns_per_output_token / nullif(max(ns_per_output_token) FILTER (WHERE part_count = 0) OVER (PARTITION BY scenario_id), 0)
      AS time_ratio
  FROM stacking
),
pairs AS (
  SELECT
    a.scenario_id, a.part AS first_part, b.part AS second_part, x.time_ratio AS first_ratio, y.time_ratio AS second_ratio,
    z.time_ratio AS both_ratio
  FROM stacking_shares a
  JOIN stacking_shares b ON b.scenario_id = a.scenario_id AND b.part_position > a.part_position
  JOIN times x ON x.scenario_id = a.scenario_id AND x.parts = a.part
  JOIN times y ON y.scenario_id = a.scenario_id AND y.parts = b.part
  JOIN times z ON z.scenario_id = a.scenario_id AND z.parts = concat(a.part, ' + ', b.part)
),
predicted AS (
  SELECT
    *, first_ratio * second_ratio AS multiplied_ratio, first_ratio + second_ratio - 1 AS added_ratio,
    least(first_ratio, second_ratio) AS substitute_ratio
  FROM pairs
)
SELECT
  p.scenario_id, s.name AS scenario, p.first_part, p.second_part, p.first_ratio, p.second_ratio, p.both_ratio,
  p.multiplied_ratio, p.added_ratio, p.substitute_ratio,
  CASE
    WHEN p.both_ratio IS NULL OR p.first_ratio IS NULL OR p.second_ratio IS NULL THEN NULL
    WHEN p.first_ratio > 0.99 OR p.second_ratio > 0.99 THEN 'no saving'
    WHEN p.both_ratio > p.substitute_ratio + 0.01 THEN 'hinder'
    WHEN p.both_ratio < p.added_ratio - 0.01 THEN 'reinforce'
    WHEN abs(p.multiplied_ratio - p.added_ratio) < 0.01 AND abs(p.both_ratio - p.multiplied_ratio) < 0.01
      THEN 'multiply or add'
    WHEN abs(p.both_ratio - p.substitute_ratio) < abs(p.both_ratio - p.multiplied_ratio) THEN 'substitute'
    WHEN abs(p.both_ratio - p.multiplied_ratio) <= abs(p.both_ratio - p.added_ratio) THEN 'multiply'
    ELSE 'add'
  END AS relation
FROM predicted p JOIN scenarios s ON s.scenario_id = p.scenario_id
ORDER BY scenario_id, first_part, second_part
