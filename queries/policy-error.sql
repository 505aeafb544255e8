-- What does each policy lose on recorded attention, and what would the best choice of the same size have lost?
-- column policy: The policy stack.
-- column recording: The recorded model and grade.
-- column unit_tokens: Tokens that are kept or dropped as one.
-- column mass_from: Where their masses come from: recorded, or column_sum where blocks were split by it.
-- column steps: Decode steps, summed over requests, layers and KV heads.
-- column mean_kept_ratio: Kept share of the context, mean over steps, layers and heads.
-- column mean_lost_mass_ratio: Softmax mass on what was dropped, mean over steps, layers and heads.
-- column p99_lost_mass_ratio: The mean of a range of steps in one layer and head that 99% of these do not exceed.
-- column max_lost_mass_ratio: Largest mass lost in one step.
-- column oracle_lost_mass_ratio: What the best choice of the same size loses, mean; null where it is not computed.
-- column regret_ratio: Mass lost beyond the oracle's, mean.
-- column mean_logit_noise: Standard deviation of the logits by quantized K, mean; null without norms.
-- column quantization_error_ratio: Expected error of the output over its norm by quantization, mean; null without norms.
-- column output_error: By how much layers' outputs turn (1 - cos), mean; null without norms or vectors.
-- column output_error_from: What it was computed from: vectors (exact) or norms (estimated).
-- column recovered_mass_ratio: Softmax mass on what the selection alone would have dropped and recovery brings back, mean.
-- column recalled_tokens: Tokens fetched from a lower tier per step, layer and head, mean; null without recall.
-- column recall_reuse_ratio: Share of them that the step before had fetched as well; null without recall.
-- column recoverable_ratio: Share of the lost mass whose data still exists somewhere, mean weighted by the lost mass.
-- column premise: Whether what the policy rests on holds on the recording; null where nothing was to be measured.
WITH weighted AS (
  SELECT *, CAST(last_step - first_step + 1 AS BIGINT) AS steps FROM attention_error
)
SELECT
  policy, recording, unit_tokens, min(mass_from) AS mass_from, sum(steps) AS steps,
  sum(kept_ratio * steps) / sum(steps) AS mean_kept_ratio,
  sum(lost_mass_ratio * steps) / sum(steps) AS mean_lost_mass_ratio,
  quantile_disc(lost_mass_ratio, 0.99) AS p99_lost_mass_ratio,
  max(max_lost_mass_ratio) AS max_lost_mass_ratio,
  sum(oracle_lost_mass_ratio * steps) / sum(steps) FILTER (WHERE oracle_lost_mass_ratio IS NOT NULL)
    AS oracle_lost_mass_ratio,
  sum(regret_ratio * steps) / sum(steps) FILTER (WHERE regret_ratio IS NOT NULL) AS regret_ratio,
  sum(logit_noise * steps) / sum(steps) FILTER (WHERE logit_noise IS NOT NULL) AS mean_logit_noise,
  sum(quantization_error_ratio * steps) / sum(steps) FILTER (WHERE quantization_error_ratio IS NOT NULL)
    AS quantization_error_ratio,
  sum(output_error * steps) / sum(steps) FILTER (WHERE output_error IS NOT NULL) AS output_error,
  min(output_error_from) AS output_error_from,
  sum(recovered_mass_ratio * steps) / sum(steps) AS recovered_mass_ratio,
  sum(recalled_tokens * steps) / sum(steps) FILTER (WHERE recalled_tokens IS NOT NULL) AS recalled_tokens,
  sum(recall_reuse_ratio * recalled_tokens * steps)
    / nullif(sum(recalled_tokens * steps) FILTER (WHERE recall_reuse_ratio IS NOT NULL), 0) AS recall_reuse_ratio,
  sum(recoverable_ratio * lost_mass_ratio * steps) / nullif(sum(lost_mass_ratio * steps), 0) AS recoverable_ratio,
  min(premise) AS premise
FROM weighted
GROUP BY policy, recording, unit_tokens
ORDER BY policy, recording, unit_tokens
