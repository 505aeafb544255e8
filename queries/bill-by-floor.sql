-- How does the bill of one output token change from floor to floor, from the baseline to the scenario?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column stage_position: 0 for the baseline, then one more for each floor that is added.
-- column stage: baseline, or the floor that is added.
-- column change: What is different on that floor; null for the baseline.
-- column position: Order of the booth on the bill.
-- column booth: What the time is paid to.
-- column total_ns: Time of all instances in all steps with the floors up to this one, ns.
-- column ns_per_output_token: That time over the output tokens that users get, ns.
-- column share_ratio: Share of the booth in the time of all booths.
WITH floors AS (
  SELECT
    scenario_id, floor, change, booth, booth_position, before_ns, change_ns,
    dense_rank() OVER (PARTITION BY scenario_id ORDER BY floor_position) AS stage_position
  FROM ledger WHERE booth NOT IN ('idle', 'software_adaptation')
),
stages AS (
  SELECT
    scenario_id, 0 AS stage_position, 'baseline' AS stage, NULL AS change, booth, booth_position, before_ns AS total_ns
  FROM floors WHERE stage_position = 1
  UNION ALL
  SELECT
    scenario_id, CAST(stage_position AS BIGINT), floor, change, booth, booth_position, before_ns + change_ns
  FROM floors
),
tokens AS (
  SELECT scenario_id, sum(output_tokens) AS output_tokens FROM request_costs WHERE NOT is_added GROUP BY scenario_id
)
SELECT
  g.scenario_id, s.name AS scenario, g.stage_position, g.stage, g.change, g.booth_position AS position, g.booth,
  g.total_ns, CAST(g.total_ns AS DOUBLE) / nullif(t.output_tokens, 0) AS ns_per_output_token,
  CAST(g.total_ns AS DOUBLE)
    / nullif(sum(g.total_ns) OVER (PARTITION BY g.scenario_id, g.stage_position), 0) AS share_ratio
FROM stages g JOIN scenarios s ON s.scenario_id = g.scenario_id
LEFT JOIN tokens t ON t.scenario_id = g.scenario_id
ORDER BY scenario_id, stage_position, position
