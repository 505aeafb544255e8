-- What each scenario's policy may lose, and what of it no recording of the store tells.
-- column scenario_id: Number of the scenario within the run.
-- column may_lose: What the policy takes away that may change answers: context, tokens, layers, precision, or nothing.
-- column unknown_loss: The part of it of which no recording of the store tells the loss; null where all of it is known.
-- column lost_mass_ratio: Attention mass that the policy loses on a recording; null without one.
-- column quantization_error_ratio: Error of the attention output by number format on a recording; null without one.
-- column output_error: Turn of the layers' outputs on a recording, 1 - cos, mean; null without one that holds vectors or norms.
-- column loss_recording: The recordings on which the policy's loss was measured; null without one.
WITH recordings AS (
  SELECT policy, CAST(string_agg(recording, ', ' ORDER BY recording) AS VARCHAR) AS loss_recording
  FROM (SELECT DISTINCT policy, recording FROM attention_error) GROUP BY policy
),
ranges AS (
  SELECT policy, output_error, CAST(last_step AS BIGINT) - CAST(first_step AS BIGINT) + 1 AS steps
  FROM attention_error WHERE output_error IS NOT NULL
),
turns AS (
  SELECT policy, sum(output_error * steps) / sum(steps) AS output_error FROM ranges GROUP BY policy
),
wide AS (
  SELECT
    s.scenario_id, s.policy, s.may_lose,
    max(m.value) FILTER (WHERE m.metric = 'lost_mass_ratio') AS lost_mass_ratio,
    max(m.value) FILTER (WHERE m.metric = 'quantization_error_ratio') AS quantization_error_ratio
  FROM scenarios s LEFT JOIN metrics m ON m.scenario_id = s.scenario_id
  GROUP BY s.scenario_id, s.policy, s.may_lose
)
SELECT
  w.scenario_id, w.may_lose,
  nullif(concat_ws(
    ',', CASE WHEN w.may_lose LIKE '%context%' THEN 'context' END,
    CASE WHEN w.may_lose LIKE '%tokens%' AND w.lost_mass_ratio IS NULL THEN 'tokens' END,
    CASE WHEN w.may_lose LIKE '%layers%' AND t.output_error IS NULL THEN 'layers' END,
    CASE WHEN w.may_lose LIKE '%precision%' AND w.quantization_error_ratio IS NULL AND t.output_error IS NULL
      THEN 'precision' END
  ), '') AS unknown_loss,
  w.lost_mass_ratio, w.quantization_error_ratio, t.output_error, r.loss_recording
FROM wide w LEFT JOIN recordings r ON r.policy = w.policy LEFT JOIN turns t ON t.policy = w.policy
