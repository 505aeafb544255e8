-- Where does each policy lose attention: in which layer and at which age of the answer, and how much of it can be recovered?
-- column policy: The policy stack.
-- column recording: The recorded model and grade.
-- column unit_tokens: Tokens that are kept or dropped as one.
-- column first_step: First decode step of the range.
-- column layer: The layer, from 0.
-- column heads: KV heads of the layer that were measured, over all requests.
-- column mean_lost_mass_ratio: Softmax mass on what was dropped, mean over heads and requests.
-- column worst_lost_mass_ratio: The same in the worst head.
-- column recoverable_ratio: Share of the lost mass whose data still exists somewhere; null where nothing is lost.
-- column quantization_error_ratio: Expected error of the output over its norm by quantization, mean; null without norms.
SELECT
  policy, recording, unit_tokens, first_step, layer, count(*) AS heads, avg(lost_mass_ratio) AS mean_lost_mass_ratio,
  max(lost_mass_ratio) AS worst_lost_mass_ratio,
  sum(recoverable_ratio * lost_mass_ratio) / nullif(sum(lost_mass_ratio), 0) AS recoverable_ratio,
  avg(quantization_error_ratio) AS quantization_error_ratio
FROM attention_error
GROUP BY policy, recording, unit_tokens, first_step, layer
ORDER BY policy, recording, unit_tokens, first_step, layer
