-- What does one user get against what one accelerator delivers, and which scenarios no other beats in both?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column user_tokens_per_s: Output tokens per second that one user sees: 1 over the median gap between two tokens.
-- column accelerator_tokens_per_s: Output tokens per second and accelerator.
-- column full_load_tokens_per_usd: Output tokens for a dollar if requests came just as fast as they can be served; null where the price of the accelerators is not disclosed.
-- column is_on_frontier: Whether no other scenario is at least as good in both and better in one.
-- column is_on_cost_frontier: The same of a user's speed and tokens for a dollar.
-- column certainty: The least certain input of the scenario.
WITH points AS (
  SELECT
    s.scenario_id, s.name AS scenario, s.certainty,
    1000 / nullif(max(m.value) FILTER (WHERE m.metric = 'p50_itl_ms'), 0) AS user_tokens_per_s,
    max(m.value) FILTER (WHERE m.metric = 'output_tokens_per_s_per_accelerator') AS accelerator_tokens_per_s,
    1e6 / nullif(max(m.value) FILTER (WHERE m.metric = 'usd_per_mtok_output_saturated'), 0) AS tokens_per_usd
  FROM scenarios s JOIN metrics m ON m.scenario_id = s.scenario_id
  WHERE s.status = 'ok'
  GROUP BY s.scenario_id, s.name, s.certainty
),
beaten AS (
  SELECT DISTINCT p.scenario_id
  FROM points p JOIN points q
    ON q.user_tokens_per_s >= p.user_tokens_per_s AND q.accelerator_tokens_per_s >= p.accelerator_tokens_per_s
  WHERE q.user_tokens_per_s > p.user_tokens_per_s OR q.accelerator_tokens_per_s > p.accelerator_tokens_per_s
),
beaten_on_cost AS (
  SELECT DISTINCT p.scenario_id
  FROM points p JOIN points q
    ON q.user_tokens_per_s >= p.user_tokens_per_s AND q.tokens_per_usd >= p.tokens_per_usd
  WHERE q.user_tokens_per_s > p.user_tokens_per_s OR q.tokens_per_usd > p.tokens_per_usd
)
SELECT
  p.scenario_id, p.scenario, p.user_tokens_per_s, p.accelerator_tokens_per_s,
  p.tokens_per_usd AS full_load_tokens_per_usd, b.scenario_id IS NULL AS is_on_frontier,
  o.scenario_id IS NULL AND p.tokens_per_usd IS NOT NULL AS is_on_cost_frontier, p.certainty
FROM points p
LEFT JOIN beaten b ON b.scenario_id = p.scenario_id
LEFT JOIN beaten_on_cost o ON o.scenario_id = p.scenario_id
WHERE p.user_tokens_per_s IS NOT NULL AND p.accelerator_tokens_per_s IS NOT NULL
ORDER BY scenario_id
