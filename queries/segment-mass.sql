-- Where does recorded attention go, by kind of context?
-- column source_id: The recording.
-- column kind: What a piece of the context is.
-- column tokens: Tokens of that kind, mean over the recorded requests.
-- column mass_ratio: Share of the softmax mass on it, mean over requests, steps, layers and heads.
-- column mass_per_token_ratio: Its mass per token over that of the whole context; above 1 if it is looked at more than others.
WITH spans AS (
  SELECT
    request_id, kind, CAST(tokens AS BIGINT) AS tokens,
    sum(CAST(tokens AS BIGINT)) OVER (PARTITION BY request_id ORDER BY position) - CAST(tokens AS BIGINT) AS first,
    sum(CAST(tokens AS BIGINT)) OVER (PARTITION BY request_id ORDER BY position) AS last
  FROM context_segments
), looks AS (
  SELECT
    request_id, step, layer, kv_head, CAST(block_tokens AS BIGINT) AS per_block,
    CAST(context_tokens AS BIGINT) AS in_all, unnest(mass) AS block_mass,
    unnest(range(0, CAST(array_length(mass) AS BIGINT))) AS block
  FROM attention
  WHERE request_id IN (SELECT request_id FROM context_segments)
), parts AS (
  SELECT
    l.request_id, s.kind, l.step, l.layer, l.kv_head, s.tokens, l.in_all AS context_tokens,
    l.block_mass * (least(s.last, (l.block + 1) * l.per_block) - greatest(s.first, l.block * l.per_block))
      / least(l.per_block, greatest(l.in_all - l.block * l.per_block, 1)) AS mass
  FROM looks l JOIN spans s
    ON s.request_id = l.request_id AND s.first < (l.block + 1) * l.per_block AND s.last > l.block * l.per_block
), sums AS (
  SELECT request_id, kind, step, layer, kv_head, sum(mass) AS mass, max(context_tokens) AS context_tokens
  FROM parts GROUP BY request_id, kind, step, layer, kv_head
), kinds AS (
  SELECT request_id, kind, sum(tokens) AS tokens FROM spans GROUP BY request_id, kind
)
SELECT
  r.source_id, m.kind, avg(CAST(k.tokens AS DOUBLE)) AS tokens, avg(m.mass) AS mass_ratio,
  avg(m.mass / k.tokens * m.context_tokens) AS mass_per_token_ratio
FROM sums m JOIN kinds k ON k.request_id = m.request_id AND k.kind = m.kind
JOIN requests r ON r.request_id = m.request_id
GROUP BY r.source_id, m.kind
ORDER BY source_id, kind
