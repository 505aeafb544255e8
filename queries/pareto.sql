-- What does one user get against what one accelerator delivers, and which scenarios no other beats in both?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column user_tokens_per_s: Output tokens per second that one user sees: 1 over the median gap between two tokens.
-- column accelerator_tokens_per_s: Output tokens per second and accelerator.
-- column is_on_frontier: Whether no other scenario is at least as good in both and better in one.
-- column certainty: The least certain input of the scenario.
WITH points AS (
  SELECT
    s.scenario_id, s.name AS scenario, s.certainty,
    1000 / nullif(max(m.value) FILTER (WHERE m.metric = 'p50_itl_ms'), 0) AS user_tokens_per_s,
    max(m.value) FILTER (WHERE m.metric = 'output_tokens_per_s_per_accelerator') AS accelerator_tokens_per_s
  FROM scenarios s JOIN metrics m ON m.scenario_id = s.scenario_id
  WHERE s.status = 'ok'
  GROUP BY s.scenario_id, s.name, s.certainty
),
beaten AS (
  SELECT DISTINCT p.scenario_id
  FROM points p JOIN points q
    ON q.user_tokens_per_s >= p.user_tokens_per_s AND q.accelerator_tokens_per_s >= p.accelerator_tokens_per_s
  WHERE q.user_tokens_per_s > p.user_tokens_per_s OR q.accelerator_tokens_per_s > p.accelerator_tokens_per_s
)
SELECT
  p.scenario_id, p.scenario, p.user_tokens_per_s, p.accelerator_tokens_per_s,
  b.scenario_id IS NULL AS is_on_frontier, p.certainty
FROM points p LEFT JOIN beaten b ON b.scenario_id = p.scenario_id
WHERE p.user_tokens_per_s IS NOT NULL AND p.accelerator_tokens_per_s IS NOT NULL
ORDER BY scenario_id
