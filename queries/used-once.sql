-- How many KV blocks does only one request use, so that a cache stores them for nothing?
-- column source_id: The source.
-- column path: The path as given on the command line.
-- column distinct_blocks: Different blocks of all prompts.
-- column once_blocks: Blocks that only one request uses.
-- column once_ratio: These over all different blocks.
-- column once_tokens: Tokens of these blocks, partial ones counted as whole; null where the block size is unknown.
-- column uses: Uses of blocks, repetitions counted.
-- column most_uses: Uses of the block that is used most.
WITH uses AS (
  SELECT source_id, request_id, CAST(block_tokens AS BIGINT) AS tokens, unnest(block_hashes) AS block_hash
  FROM requests
),
lives AS (
  SELECT
    source_id, block_hash, min(request_id) = max(request_id) AS is_once, count(*) AS uses,
    max(tokens) AS tokens
  FROM uses GROUP BY source_id, block_hash
),
sums AS (
  SELECT
    source_id, count(*) AS distinct_blocks, count(*) FILTER (WHERE is_once) AS once_blocks,
    CAST(sum(tokens) FILTER (WHERE is_once) AS BIGINT) AS once_tokens, CAST(sum(uses) AS BIGINT) AS uses,
    max(uses) AS most_uses
  FROM lives GROUP BY source_id
)
SELECT
  l.source_id, s.path, l.distinct_blocks, l.once_blocks,
  CAST(l.once_blocks AS DOUBLE) / l.distinct_blocks AS once_ratio, l.once_tokens, l.uses, l.most_uses
FROM sums l LEFT JOIN sources s ON s.source_id = l.source_id
ORDER BY source_id
