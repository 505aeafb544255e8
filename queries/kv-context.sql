-- How many bytes of KV does a context of a given length hold, for each model and policy?
-- column model: The model.
-- column policy: The policy stack.
-- column context_tokens: Tokens of context.
-- column kv_bytes: KV of one request whose prompt is as long as the context, once it is prefilled, bytes.
-- column bytes_per_token: The same per token of context, bytes.
-- column model_kv_bytes: KV of the same context in bf16 without a policy, bytes.
WITH lengths (context_tokens) AS (
  VALUES
    (1024), (2048), (4096), (8192), (16384), (32768), (65536), (131072), (262144), (524288), (1048576)
),
contexts AS (
  SELECT CAST(context_tokens AS BIGINT) AS context_tokens FROM lengths
),
shapes AS (
  SELECT
    model, policy, attention, CAST(layers AS BIGINT) AS layers, CAST(token_bytes AS BIGINT) AS token_bytes,
    CAST(model_token_bytes AS BIGINT) AS model_token_bytes, CAST(window_tokens AS BIGINT) AS window_tokens,
    CAST(budget_tokens AS BIGINT) AS budget_tokens, budget_ratio
  FROM models
),
grown AS (
  SELECT
    m.model, m.policy, c.context_tokens,
    CAST(sum(m.layers * m.token_bytes * CAST(least(
      c.context_tokens, coalesce(m.window_tokens, c.context_tokens), coalesce(m.budget_tokens, c.context_tokens),
      coalesce(ceil(c.context_tokens * m.budget_ratio), c.context_tokens)
    ) AS BIGINT)) AS BIGINT) AS kv_bytes,
    CAST(sum(m.layers * m.model_token_bytes * least(
      c.context_tokens, CASE WHEN m.attention = 'sliding' THEN m.window_tokens ELSE c.context_tokens END
    )) AS BIGINT) AS model_kv_bytes
  FROM shapes m CROSS JOIN contexts c
  GROUP BY m.model, m.policy, c.context_tokens
)
SELECT
  model, policy, context_tokens, kv_bytes,
  CAST(kv_bytes AS DOUBLE) / context_tokens AS bytes_per_token, model_kv_bytes
FROM grown
ORDER BY model, policy, context_tokens
