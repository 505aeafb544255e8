-- How much KV memory do partly filled blocks waste, for blocks of each size?
-- column source_id: The source.
-- column block_tokens: Tokens of a block.
-- column requests: Requests with a prompt.
-- column blocks: Blocks that hold their prompts and outputs, nothing shared.
-- column fill_ratio: Tokens over the tokens that these blocks have room for.
-- column wasted_tokens: Room that stays empty, tokens.
WITH sizes (block_tokens) AS (
  VALUES (1), (16), (32), (64), (128), (256), (512), (784), (1024)
),
lengths AS (
  SELECT source_id, CAST(prompt_tokens AS BIGINT) + CAST(output_tokens AS BIGINT) AS tokens
  FROM requests WHERE prompt_tokens > 0
),
filled AS (
  SELECT
    l.source_id, CAST(b.block_tokens AS BIGINT) AS block_tokens, count(*) AS requests,
    CAST(sum(l.tokens) AS BIGINT) AS tokens,
    CAST(sum(CAST(ceil(CAST(l.tokens AS DOUBLE) / b.block_tokens) AS BIGINT)) AS BIGINT) AS blocks
  FROM lengths l CROSS JOIN sizes b
  GROUP BY l.source_id, b.block_tokens
)
SELECT
  source_id, block_tokens, requests, blocks, CAST(tokens AS DOUBLE) / (blocks * block_tokens) AS fill_ratio,
  blocks * block_tokens - tokens AS wasted_tokens
FROM filled
ORDER BY source_id, block_tokens
