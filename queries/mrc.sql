-- What would a cache of another size hit, under each definition of a hit?
-- column workload: The requests.
-- column policy: The policy of the cache; min is Belady's bound.
-- column capacity_blocks: Blocks that fit.
-- column capacity_bytes: What they take of the baseline's KV, bytes; null without a model.
-- column now_blocks: Blocks that the baseline's memory holds; null where all fit.
-- column accesses: Uses of blocks: each request uses each block of its prompt once, partial ones too.
-- column hits: Uses of blocks that were there, whatever came before them in the prompt.
-- column evictions: Blocks that had to go for others.
-- column block_hit_ratio: Hits over accesses.
-- column leading_hit_ratio: Hits before the first miss of their request, over accesses.
-- column token_hit_ratio: Prompt tokens in leading hits over all prompt tokens.
-- column full_block_hit_ratio: Full blocks among leading hits over full blocks.
-- column mean_request_hit_ratio: Mean over requests of the share of their prompt tokens in leading hits.
-- column ceiling_ratio: The block hit ratio of a cache that never loses a block.
-- column bound_ratio: The block hit ratio of Belady's MIN at this size.
-- column is_knee: Whether it is the smallest size listed with 99% of the hits of the ceiling.
WITH kv AS (
  SELECT
    workload, max(now_blocks) AS now_blocks,
    CAST(max(near_99_bytes) AS DOUBLE) / nullif(CAST(max(near_99_blocks) AS DOUBLE), 0) AS block_bytes
  FROM near_sizes WHERE "by" = 'all' GROUP BY workload
)
SELECT
  m.workload, m.policy, m.capacity_blocks,
  coalesce(CAST(m.capacity_bytes AS DOUBLE), m.capacity_blocks * kv.block_bytes) AS capacity_bytes, kv.now_blocks,
  m.accesses, m.hits, m.evictions, m.block_hit_ratio, m.leading_hit_ratio, m.token_hit_ratio, m.full_block_hit_ratio,
  m.mean_request_hit_ratio, m.ceiling_ratio, m.bound_ratio, m.is_knee
FROM miss_ratio m LEFT JOIN kv ON kv.workload = m.workload
ORDER BY workload, policy, capacity_blocks
