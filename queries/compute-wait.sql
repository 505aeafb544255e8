-- How much of the step time does arithmetic work, wait for data, or stand behind overhead?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column step_ns: Time of all steps of all instances, ns.
-- column busy_ratio: Share in which arithmetic would be busy at its achievable rate.
-- column waiting_ratio: Share in which arithmetic waits for memory, tiers, collectives and links.
-- column overhead_ratio: Share of kernel floors and host overhead.
-- column policy_ratio: Share of the policy's own work: scoring, packing, dequantization.
WITH times AS (
  SELECT
    scenario_id, sum(total_ns) AS total_ns, sum(busy_ns) AS busy_ns, sum(waiting_ns) AS waiting_ns,
    sum(overhead_ns) AS overhead_ns, sum(policy_ns) AS policy_ns
  FROM step_costs GROUP BY scenario_id
)
SELECT
  s.scenario_id, s.name AS scenario, t.total_ns AS step_ns,
  CAST(t.busy_ns AS DOUBLE) / nullif(t.total_ns, 0) AS busy_ratio,
  CAST(t.waiting_ns AS DOUBLE) / nullif(t.total_ns, 0) AS waiting_ratio,
  CAST(t.overhead_ns AS DOUBLE) / nullif(t.total_ns, 0) AS overhead_ratio,
  CAST(t.policy_ns AS DOUBLE) / nullif(t.total_ns, 0) AS policy_ratio
FROM times t JOIN scenarios s ON s.scenario_id = t.scenario_id
ORDER BY scenario_id
