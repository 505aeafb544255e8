-- In which layers does each policy lose attention?
-- column policy: The policy stack.
-- column recording: The recorded model and grade.
-- column unit_tokens: Tokens that are kept or dropped as one.
-- column layer: The layer, from 0.
-- column mean_lost_mass_ratio: Softmax mass on what was dropped, mean over steps and heads.
-- column max_lost_mass_ratio: Largest mass lost in one step.
-- column oracle_lost_mass_ratio: What the best choice of the same size loses, mean; null where it is not computed.
-- column regret_ratio: Mass lost beyond the oracle's, mean.
-- column mean_logit_noise: Standard deviation of the logits by quantized K, mean; null without norms.
WITH weighted AS (
  SELECT *, CAST(last_step - first_step + 1 AS BIGINT) AS steps FROM attention_error
)
SELECT
  policy, recording, unit_tokens, layer,
  sum(lost_mass_ratio * steps) / sum(steps) AS mean_lost_mass_ratio,
  max(max_lost_mass_ratio) AS max_lost_mass_ratio,
  sum(oracle_lost_mass_ratio * steps) / sum(steps) FILTER (WHERE oracle_lost_mass_ratio IS NOT NULL)
    AS oracle_lost_mass_ratio,
  sum(regret_ratio * steps) / sum(steps) FILTER (WHERE regret_ratio IS NOT NULL) AS regret_ratio,
  sum(logit_noise * steps) / sum(steps) FILTER (WHERE logit_noise IS NOT NULL) AS mean_logit_noise
FROM weighted
GROUP BY policy, recording, unit_tokens, layer
ORDER BY policy, recording, unit_tokens, layer
