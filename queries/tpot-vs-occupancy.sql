-- Does a full cache slow tokens down: how long are steps, by how much of the KV memory requests hold?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column held_from_ratio: Share of the KV memory that running requests hold, from here to a tenth more.
-- column steps: Steps that decode something.
-- column tokens: Tokens that they decode.
-- column mean_step_ms: Mean over tokens of the step time, ms.
-- column p50_step_ms: Median over tokens, ms.
-- column p99_step_ms: 99th percentile over tokens, ms.
-- column max_step_ms: The longest step, ms.
-- column mean_waiting_requests: Mean over steps of the requests that wait for admission.
WITH decoding AS (
  SELECT
    scenario_id, first_ns, last_ns, CAST(steps AS BIGINT) AS steps, CAST(decode_requests AS BIGINT) AS requests, total_ns,
    CAST(waiting_requests AS BIGINT) AS waiting,
    CAST(least(9, floor(10 * CAST(held_bytes AS DOUBLE) / nullif(CAST(capacity_bytes AS DOUBLE), 0))) AS BIGINT) AS tenth
  FROM step_costs WHERE decode_requests > 0
),
held AS (
  SELECT
    scenario_id, tenth, CAST(sum(steps) AS BIGINT) AS steps, CAST(sum(steps * requests) AS BIGINT) AS tokens,
    sum(CAST(total_ns AS DOUBLE) * requests) AS felt_ns, stretch_quantile(first_ns, last_ns, steps, requests, 0.5) AS p50_ns,
    stretch_quantile(first_ns, last_ns, steps, requests, 0.99) AS p99_ns, max(greatest(first_ns, last_ns)) AS max_ns,
    CAST(sum(waiting * steps) AS DOUBLE) AS waiting
  FROM decoding GROUP BY scenario_id, tenth
)
SELECT
  h.scenario_id, s.name AS scenario, h.tenth / 10.0 AS held_from_ratio, h.steps, h.tokens,
  h.felt_ns / nullif(CAST(h.tokens AS DOUBLE), 0) / 1e6 AS mean_step_ms, h.p50_ns / 1e6 AS p50_step_ms,
  h.p99_ns / 1e6 AS p99_step_ms, h.max_ns / 1e6 AS max_step_ms,
  h.waiting / nullif(CAST(h.steps AS DOUBLE), 0) AS mean_waiting_requests
FROM held h JOIN scenarios s ON s.scenario_id = h.scenario_id
ORDER BY scenario_id, held_from_ratio
