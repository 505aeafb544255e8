-- How are hits spread over conversations, instead of one average?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column sessions: Conversations that are named in the trace.
-- column p10_hit_ratio: Share of its prompt tokens that the cache held, of the conversation that 10% do not exceed.
-- column p25_hit_ratio: The same that 25% do not exceed.
-- column p50_hit_ratio: The same of the median conversation.
-- column p75_hit_ratio: The same that 75% do not exceed.
-- column p90_hit_ratio: The same that 90% do not exceed.
-- column without_hits: Conversations without any hit.
-- column mean_hit_ratio: Hits over prompt tokens of all conversations together.
WITH sessions AS (
  SELECT
    c.scenario_id, r.source_id, r.session_id, CAST(sum(CAST(c.hit_tokens AS BIGINT)) AS BIGINT) AS hit_tokens,
    CAST(sum(CAST(c.prompt_tokens AS BIGINT)) AS BIGINT) AS prompt_tokens
  FROM request_costs c JOIN requests r ON r.request_id = c.request_id
  WHERE r.session_id IS NOT NULL AND c.status = 'finished'
  GROUP BY c.scenario_id, r.source_id, r.session_id
),
shared AS (
  SELECT *, CAST(hit_tokens AS DOUBLE) / prompt_tokens AS hit_ratio FROM sessions WHERE prompt_tokens > 0
)
SELECT
  r.scenario_id, s.name AS scenario, count(*) AS sessions,
  quantile_disc(r.hit_ratio, 0.1) AS p10_hit_ratio,
  quantile_disc(r.hit_ratio, 0.25) AS p25_hit_ratio,
  quantile_disc(r.hit_ratio, 0.5) AS p50_hit_ratio,
  quantile_disc(r.hit_ratio, 0.75) AS p75_hit_ratio,
  quantile_disc(r.hit_ratio, 0.9) AS p90_hit_ratio,
  count(*) FILTER (WHERE r.hit_tokens = 0) AS without_hits,
  CAST(sum(r.hit_tokens) AS DOUBLE) / CAST(sum(r.prompt_tokens) AS DOUBLE) AS mean_hit_ratio
FROM shared r JOIN scenarios s ON s.scenario_id = r.scenario_id
GROUP BY r.scenario_id, s.name
ORDER BY scenario_id
