-- What is only repetition: how much of the traffic's KV was there before, and how much is never read again?
-- column source_id: The source.
-- column block_references: Uses of blocks by all prompts.
-- column distinct_blocks: Different blocks.
-- column repeated_references: Uses of a block that had been used before.
-- column repeated_ratio: These over all uses: what is only repetition.
-- column once_blocks: Blocks that are used once and never read again.
-- column once_ratio: These over the different blocks: what need not be stored.
-- column most_uses: Uses of the most used block.
WITH uses AS (SELECT source_id, unnest(block_hashes) AS block FROM requests WHERE block_hashes IS NOT NULL),
counted AS (SELECT source_id, block, count(*) AS uses FROM uses GROUP BY source_id, block)
SELECT
  source_id, CAST(sum(uses) AS BIGINT) AS block_references, count(*) AS distinct_blocks,
  CAST(sum(uses) AS BIGINT) - count(*) AS repeated_references,
  1 - CAST(count(*) AS DOUBLE) / nullif(CAST(sum(uses) AS DOUBLE), 0) AS repeated_ratio,
  count(*) FILTER (WHERE uses = 1) AS once_blocks,
  CAST(count(*) FILTER (WHERE uses = 1) AS DOUBLE) / nullif(count(*), 0) AS once_ratio, max(uses) AS most_uses
FROM counted
GROUP BY source_id
ORDER BY source_id
