-- How much of the step time does arithmetic work, wait for data, or stand behind overhead?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column step_ns: Time of all steps of all instances, ns.
-- column busy_ratio: Share in which arithmetic would be busy at its achievable rate.
-- column waiting_ratio: Share in which arithmetic waits for memory, tiers, collectives and links.
-- column overhead_ratio: Share of kernel floors and host overhead.
-- column policy_ratio: Share of the policy's own work: scoring, packing, dequantization.
SELECT
  s.scenario_id, s.name AS scenario, sum(c.total_ns) AS step_ns,
  CAST(sum(c.busy_ns) AS DOUBLE) / nullif(sum(c.total_ns), 0) AS busy_ratio,
  CAST(sum(c.waiting_ns) AS DOUBLE) / nullif(sum(c.total_ns), 0) AS waiting_ratio,
  CAST(sum(c.overhead_ns) AS DOUBLE) / nullif(sum(c.total_ns), 0) AS overhead_ratio,
  CAST(sum(c.policy_ns) AS DOUBLE) / nullif(sum(c.total_ns), 0) AS policy_ratio
FROM step_costs c JOIN scenarios s ON s.scenario_id = c.scenario_id
GROUP BY s.scenario_id, s.name
ORDER BY scenario_id
