-- Where does the time of one output token go, booth by booth?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column position: Order of the booth on the bill.
-- column booth: What the time is paid to.
-- column floor: What kind of toll it is: memory, movement, arithmetic or overhead.
-- column total_ns: Time of all instances in all steps, prefill included, ns.
-- column ns_per_output_token: That time over the output tokens that users get, ns.
-- column share_ratio: Share of the booth in the time of all booths.
WITH booths (position, booth, floor) AS (
  VALUES
    (1, 'kv_read', 'memory'), (2, 'weight_read', 'memory'), (3, 'tier_fetch', 'memory'),
    (4, 'collectives', 'movement'), (5, 'link', 'movement'),
    (6, 'compute', 'arithmetic'), (7, 'policy_work', 'arithmetic'), (8, 'overhead', 'overhead')
),
sums AS (
  SELECT
    scenario_id, sum(kv_read_ns) AS kv_read, sum(weight_read_ns) AS weight_read, sum(tier_ns) AS tier_fetch,
    sum(collective_ns) AS collectives, sum(link_ns) AS link, sum(compute_ns) AS compute, sum(policy_ns) AS policy_work,
    sum(overhead_ns) AS overhead
  FROM step_costs GROUP BY scenario_id
),
tokens AS (
  SELECT scenario_id, sum(output_tokens) AS output_tokens FROM request_costs WHERE NOT is_added GROUP BY scenario_id
),
bill AS (
  SELECT
    s.scenario_id, b.position, b.booth, b.floor,
    CASE b.booth
      WHEN 'kv_read' THEN s.kv_read WHEN 'weight_read' THEN s.weight_read WHEN 'tier_fetch' THEN s.tier_fetch
      WHEN 'collectives' THEN s.collectives WHEN 'link' THEN s.link WHEN 'compute' THEN s.compute
      WHEN 'policy_work' THEN s.policy_work ELSE s.overhead
    END AS total_ns
  FROM sums s CROSS JOIN booths b
)
SELECT
  l.scenario_id, c.name AS scenario, l.position, l.booth, l.floor, l.total_ns,
  CAST(l.total_ns AS DOUBLE) / nullif(t.output_tokens, 0) AS ns_per_output_token,
  CAST(l.total_ns AS DOUBLE) / nullif(sum(l.total_ns) OVER (PARTITION BY l.scenario_id), 0) AS share_ratio
FROM bill l
JOIN scenarios c ON c.scenario_id = l.scenario_id
LEFT JOIN tokens t ON t.scenario_id = l.scenario_id
ORDER BY scenario_id, position
