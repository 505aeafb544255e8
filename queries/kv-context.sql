-- How many bytes of KV does a context of a given length hold, for each model and policy?
-- column model: The model.
-- column policy: The policy stack.
-- column context_tokens: Tokens of context.
-- column kv_bytes: KV of one request, bytes; windows count, what a policy drops by a budget is not taken off.
-- column bytes_per_token: The same per token of context, bytes.
-- column model_kv_bytes: KV of the same context in bf16 without a policy, bytes.
WITH lengths (context_tokens) AS (
  VALUES
    (1024), (2048), (4096), (8192), (16384), (32768), (65536), (131072), (262144), (524288), (1048576)
),
contexts AS (
  SELECT CAST(context_tokens AS BIGINT UNSIGNED) AS context_tokens FROM lengths
),
grown AS (
  SELECT
    m.model, m.policy, c.context_tokens,
    sum(m.layers * m.token_bytes * least(c.context_tokens, coalesce(m.window_tokens, c.context_tokens)))
      AS kv_bytes,
    sum(m.layers * m.model_token_bytes * least(c.context_tokens, coalesce(m.window_tokens, c.context_tokens)))
      AS model_kv_bytes
  FROM models m CROSS JOIN contexts c
  GROUP BY m.model, m.policy, c.context_tokens
)
SELECT
  model, policy, CAST(context_tokens AS BIGINT) AS context_tokens, kv_bytes,
  CAST(kv_bytes AS DOUBLE) / context_tokens AS bytes_per_token, model_kv_bytes
FROM grown
ORDER BY model, policy, context_tokens
