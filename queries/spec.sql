-- What does a better specification really deliver to this traffic?
-- column scenario_id: Number of the scenario within the run: the baseline.
-- column scenario: What the user calls it.
-- column resource_position: Order of the resource.
-- column resource: memory_bandwidth, link, compute or memory_capacity.
-- column factor: Times as much of it; `sensitivity` has half of each, and the host.
-- column ns_per_output_token: Time of all steps over the output tokens, ns; null where it could not be replayed.
-- column delivered: How many times faster that is.
-- column delivered_ratio: That over the factor: the share of the promise that arrives.
-- column full_load_delivered: How many times faster it serves all requests in full batches, if they came just as fast as they can be served; null where that is not known.
-- column p50_itl_ms: Median gap between two tokens, ms.
-- column p99_itl_ms: 99th percentile of the gap between two tokens, ms.
-- column p99_ttft_ms: 99th percentile of the time to the first token, ms.
-- column bound_by: The booth with the most time.
-- column bound_ratio: Its share of the step time.
-- column error: Why it could not be replayed.
SELECT
  p.scenario_id, s.name AS scenario, p.resource_position, p.resource, p.factor, p.ns_per_output_token, p.delivered,
  p.delivered / p.factor AS delivered_ratio,
  b.asked_ns_per_output_token / nullif(p.asked_ns_per_output_token, 0) AS full_load_delivered,
  p.p50_itl_ns / 1e6 AS p50_itl_ms, p.p99_itl_ns / 1e6 AS p99_itl_ms,
  p.p99_ttft_ns / 1e6 AS p99_ttft_ms, p.bound_by, p.bound_ratio, p.error
FROM spec p
JOIN scenarios s ON s.scenario_id = p.scenario_id
LEFT JOIN spec b ON b.scenario_id = p.scenario_id AND b.resource = p.resource AND b.factor = 1
WHERE p.factor >= 1 AND p.resource <> 'host'
ORDER BY scenario_id, resource_position, factor
