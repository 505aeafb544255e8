-- How many bytes of KV does a context of a given length hold, for each model and policy?
-- column model: The model.
-- column policy: The policy stack.
-- column context_tokens: Tokens of context.
-- column kv_bytes: KV of one request with this context, bytes: layers x bytes per token x tokens within the window, summed over groups of layers. What a policy drops by a budget is not taken off.
-- column bytes_per_token: The same per token of context, bytes.
-- column model_kv_bytes: KV of the same context in bf16 without a policy, bytes.
WITH contexts (context_tokens) AS (
  VALUES
    (1024), (2048), (4096), (8192), (16384), (32768), (65536), (131072), (262144), (524288), (1048576)
),
grown AS (
  SELECT
    m.model, m.policy, c.context_tokens,
    sum(m.layers * m.token_bytes * CAST(least(c.context_tokens, coalesce(m.window_tokens, c.context_tokens)) AS BIGINT UNSIGNED))
      AS kv_bytes,
    sum(m.layers * m.model_token_bytes * CAST(least(c.context_tokens, coalesce(m.window_tokens, c.context_tokens)) AS BIGINT UNSIGNED))
      AS model_kv_bytes
  FROM models m CROSS JOIN contexts c
  GROUP BY m.model, m.policy, c.context_tokens
)
SELECT
  model, policy, context_tokens, kv_bytes, CAST(kv_bytes AS DOUBLE) / context_tokens AS bytes_per_token, model_kv_bytes
FROM grown
ORDER BY model, policy, context_tokens
