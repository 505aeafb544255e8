-- Which models were used, in groups of alike layers, and what does one token of KV weigh?
-- column model: The model.
-- column policy: The policy stack.
-- column layer_group: Number of the group, from 0.
-- column layers: Layers in it.
-- column attention: full, sliding or mla.
-- column kv_heads: KV heads per layer.
-- column window_tokens: Sliding window, tokens; null where there is none.
-- column token_bytes: KV bytes per kept token and layer under the policy.
-- column model_token_bytes: The same in bf16 without a policy.
-- column format: Number format of the KV.
-- column certainty: How well the shape is known.
-- column source: Where the shape comes from.
SELECT
  model, policy, layer_group, layers, attention, kv_heads, window_tokens, token_bytes, model_token_bytes, format,
  certainty, source
FROM models
ORDER BY model, policy, layer_group
