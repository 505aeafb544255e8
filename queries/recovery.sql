-- Which errors can be recovered, how much of them, at what cost and how fast?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column policy: The policy stack.
-- column lost_mass_ratio: Softmax mass on what was dropped, mean over the recordings; null without one.
-- column recovered_mass_ratio: Softmax mass that recovery stages brought back.
-- column recoverable_ratio: Share of the lost mass whose data still exists somewhere.
-- column lost_for_good_ratio: Softmax mass that is lost and whose data exists nowhere.
-- column limiter: What the error comes from in most layers, heads and steps.
-- column lower_read_bytes_per_output_token: Bytes fetched from a lower tier for each output token: the cost of recovery.
-- column lower_stored_bytes: Bytes that the lower tier holds at the ends of all requests.
-- column tier_ns_per_output_token: Exposed time of fetching for each output token, ns: how fast it is.
WITH weighted AS (
  SELECT *, CAST(last_step - first_step + 1 AS BIGINT) AS steps FROM attention_error
),
errors AS (
  SELECT
    policy, sum(lost_mass_ratio * steps) / sum(steps) AS lost_mass_ratio,
    sum(recovered_mass_ratio * steps) / sum(steps) AS recovered_mass_ratio,
    sum(recoverable_ratio * lost_mass_ratio * steps) / nullif(sum(lost_mass_ratio * steps), 0) AS recoverable_ratio
  FROM weighted GROUP BY policy
),
limiters AS (
  SELECT policy, limiter, row_number() OVER (PARTITION BY policy ORDER BY sum(steps) DESC, limiter) AS place
  FROM weighted GROUP BY policy, limiter
),
lower AS (
  SELECT
    demand_id, sum(lower_read_bytes) AS lower_read_bytes,
    sum(lower_stored_bytes) FILTER (WHERE phase = 'decode') AS lower_stored_bytes
  FROM demand GROUP BY demand_id
),
fetches AS (SELECT scenario_id, sum(tier_ns) AS tier_ns FROM step_costs GROUP BY scenario_id),
tokens AS (SELECT scenario_id, sum(output_tokens) AS output_tokens FROM request_costs WHERE NOT is_added GROUP BY scenario_id)
SELECT
  s.scenario_id, s.name AS scenario, s.policy, e.lost_mass_ratio, e.recovered_mass_ratio, e.recoverable_ratio,
  e.lost_mass_ratio * (1 - coalesce(e.recoverable_ratio, 0)) AS lost_for_good_ratio, l.limiter,
  CAST(w.lower_read_bytes AS DOUBLE) / nullif(t.output_tokens, 0) AS lower_read_bytes_per_output_token,
  w.lower_stored_bytes, CAST(f.tier_ns AS DOUBLE) / nullif(t.output_tokens, 0) AS tier_ns_per_output_token
FROM scenarios s
LEFT JOIN errors e ON e.policy = s.policy
LEFT JOIN limiters l ON l.policy = s.policy AND l.place = 1
LEFT JOIN lower w ON w.demand_id = s.demand_id
LEFT JOIN fetches f ON f.scenario_id = s.scenario_id
LEFT JOIN tokens t ON t.scenario_id = s.scenario_id
WHERE s.status = 'ok'
ORDER BY scenario_id
