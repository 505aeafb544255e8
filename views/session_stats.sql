-- Conversations: how many turns, how long, how much of what they send was sent before.
-- column source_id: The source.
-- column session_id: The conversation.
-- column requests: Its requests.
-- column first_arrival_ns: When the first came, on the source's clock.
-- column last_arrival_ns: When the last came.
-- column prompt_tokens: Tokens of all prompts.
-- column output_tokens: Tokens generated.
-- column max_prompt_tokens: The longest prompt.
-- column block_references: Block ids of all prompts, repetitions counted; null where the source has none.
-- column distinct_blocks: Different block ids among them; null where the source has none.
-- column repeated_ratio: Share of the block ids that the conversation itself had sent before.
WITH uses AS (
  SELECT source_id, session_id, unnest(block_hashes) AS block_hash FROM requests WHERE session_id IS NOT NULL
),
blocks AS (
  SELECT source_id, session_id, count(*) AS block_references, count(DISTINCT block_hash) AS distinct_blocks
  FROM uses GROUP BY source_id, session_id
),
sessions AS (
  SELECT
    source_id, session_id, count(*) AS requests, min(arrival_ns) AS first_arrival_ns, max(arrival_ns) AS last_arrival_ns,
    sum(CAST(prompt_tokens AS BIGINT)) AS prompt_tokens, sum(CAST(output_tokens AS BIGINT)) AS output_tokens,
    max(prompt_tokens) AS max_prompt_tokens
  FROM requests WHERE session_id IS NOT NULL GROUP BY source_id, session_id
)
SELECT
  s.source_id, s.session_id, s.requests, s.first_arrival_ns, s.last_arrival_ns, s.prompt_tokens, s.output_tokens,
  s.max_prompt_tokens, b.block_references, b.distinct_blocks,
  1 - CAST(b.distinct_blocks AS DOUBLE) / nullif(b.block_references, 0) AS repeated_ratio
FROM sessions s LEFT JOIN blocks b ON b.source_id = s.source_id AND b.session_id = s.session_id
