-- What would a cache of another size hit, under each definition of a hit?
-- column workload: The requests.
-- column policy: The policy of the cache; min is Belady's bound.
-- column capacity_blocks: Blocks that fit.
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
SELECT
  workload, policy, capacity_blocks, accesses, hits, evictions, block_hit_ratio, leading_hit_ratio, token_hit_ratio,
  full_block_hit_ratio, mean_request_hit_ratio, ceiling_ratio, bound_ratio, is_knee
FROM miss_ratio
ORDER BY workload, policy, capacity_blocks
