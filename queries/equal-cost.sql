-- At which traffic does a flat plane, layers, or another memory serve most for the same dollars per hour, and why?
-- column scenario_id: Number of the scenario within the run.
-- column kind: hierarchy (memories below the accelerators' own) or fabric (links between them).
-- column traffic_level: Arrivals as a multiple of the scenario's, or requests in flight.
-- column option: What the money is spent on.
-- column traffic: The traffic in words.
-- column sizes: The best sizes of those that were tried.
-- column usd_per_hour: The money: the cost of the scenario's accelerators.
-- column unit_usd_per_hour: Cost of an instance with its memories, or of an accelerator with its links.
-- column units: How many the money buys, parts counted.
-- column served_per_hour: Requests of users (hierarchy) or output tokens (fabric) that they serve in an hour, fully loaded.
-- column of_best_ratio: This over that of the best option for the traffic.
-- column latency_ms: Mean fetch and prefill of a request, or the time of a step, ms.
-- column is_best: Whether no option serves more for the money.
-- column why: What decides.
-- column certainty: The least certain input: prices of memory and links are assumed.
SELECT
  scenario_id, kind, traffic_level, option, traffic, sizes, usd_per_hour, unit_usd_per_hour, units, served_per_hour,
  of_best_ratio, latency_ns / 1e6 AS latency_ms, is_best, why, certainty
FROM equal_cost
ORDER BY scenario_id, kind, traffic_level, option
