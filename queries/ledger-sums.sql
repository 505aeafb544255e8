-- Floor by floor, how much did a change save, how much of it came back elsewhere, and what does software have to take on?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column floor: application, algorithm or hardware.
-- column floor_position: Order of the floor.
-- column change: What is different on the floor.
-- column before_ns: Step time before the change, all instances, ns.
-- column saved_ns: Time saved in booths that became shorter, ns.
-- column came_back_ns: Time that other booths became longer by, ns.
-- column net_change_ns: The sum of all changes, ns.
-- column net_change_ratio: That over the step time before; negative is less.
-- column moved_ratio: Time that came back over time saved; null where nothing was saved.
-- column net_change_j: Change of energy, idle time included, J.
-- column net_change_usd: Change of money, idle time included, US dollars.
-- column software_adaptation: What the change asks of software and people; null if nothing is known to be asked.
WITH steps AS (SELECT * FROM ledger WHERE booth NOT IN ('idle', 'software_adaptation')),
sums AS (
  SELECT
    scenario_id, floor, sum(before_ns) AS before_ns, sum(change_ns) AS net_change_ns,
    -sum(CASE WHEN change_ns < 0 THEN change_ns WHEN change_ns IS NOT NULL THEN 0 END) AS saved_ns,
    sum(CASE WHEN change_ns > 0 THEN change_ns WHEN change_ns IS NOT NULL THEN 0 END) AS came_back_ns
  FROM steps GROUP BY scenario_id, floor
),
whole AS (
  SELECT
    scenario_id, floor, min(floor_position) AS floor_position, min(change) AS change, sum(change_j) AS net_change_j,
    sum(change_usd) AS net_change_usd, max(note) FILTER (WHERE booth = 'software_adaptation') AS software_adaptation
  FROM ledger GROUP BY scenario_id, floor
)
SELECT
  w.scenario_id, s.name AS scenario, w.floor, w.floor_position, w.change, m.before_ns, m.saved_ns, m.came_back_ns,
  m.net_change_ns, CAST(m.net_change_ns AS DOUBLE) / nullif(m.before_ns, 0) AS net_change_ratio,
  CAST(m.came_back_ns AS DOUBLE) / nullif(m.saved_ns, 0) AS moved_ratio, w.net_change_j, w.net_change_usd,
  w.software_adaptation
FROM whole w JOIN sums m ON m.scenario_id = w.scenario_id AND m.floor = w.floor
JOIN scenarios s ON s.scenario_id = w.scenario_id
ORDER BY scenario_id, floor_position
