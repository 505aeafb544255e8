-- What would larger blocks in the same room hit, and how full would they be?
-- column workload: The requests.
-- column policy: The policy of the cache.
-- column block_tokens: Tokens of a block; never finer than the trace's own blocks.
-- column capacity_blocks: Blocks that fit; null where all of the workload's do.
-- column distinct_blocks: Distinct blocks of the workload.
-- column block_hit_ratio: Hits over uses of blocks.
-- column token_hit_ratio: Prompt tokens in hits before a request's first miss over prompt tokens.
-- column token_occupancy_ratio: Tokens in resident blocks over what these blocks can hold, mean over time.
SELECT
  workload, policy, block_tokens, capacity_blocks, distinct_blocks, block_hit_ratio, token_hit_ratio,
  token_occupancy_ratio
FROM block_sizes
ORDER BY workload, policy, block_tokens
