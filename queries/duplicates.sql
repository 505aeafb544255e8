-- Which requests have the same content as another: the same arrival, lengths and blocks under another id?
-- param across bool false: Whether requests of different sources are compared too; block ids mean the same only within a source, unless its hash scope is global or one file is a copy of the other.
-- column duplicate_group: Number of the group of equal requests, from 1, in the order of their first request.
-- column copies: Requests in the group.
-- column copy: Number within the group, from 1, in the order of the store.
-- column request_id: Number of the request within the store.
-- column source_id: The source it came from.
-- column source_key: Its id in the source.
-- column session_id: The conversation it belongs to.
-- column arrival_ns: When it came, on the source's clock.
-- column prompt_tokens: Tokens of the prompt.
-- column output_tokens: Tokens that were generated.
-- column blocks: Block ids of the prompt; null where the source has none.
WITH keyed AS (
  SELECT
    request_id, source_id, source_key, session_id, arrival_ns, prompt_tokens, output_tokens, block_hashes,
    CASE WHEN $across THEN NULL ELSE source_id END AS within
  FROM requests
  WHERE arrival_ns IS NOT NULL
),
-- Contents are long and arrivals are not, so only what came at the same time is looked at further.
alike AS (
  SELECT within, arrival_ns, prompt_tokens, output_tokens
  FROM keyed GROUP BY within, arrival_ns, prompt_tokens, output_tokens HAVING count(*) > 1
),
likely AS (
  SELECT
    k.request_id, k.source_id, k.source_key, k.session_id, k.arrival_ns, k.prompt_tokens, k.output_tokens, k.within,
    array_length(k.block_hashes) AS blocks, array_to_string(k.block_hashes, ',') AS content
  FROM keyed k JOIN alike a
    ON a.arrival_ns = k.arrival_ns AND a.prompt_tokens = k.prompt_tokens AND a.output_tokens = k.output_tokens
    AND a.within IS NOT DISTINCT FROM k.within
),
counted AS (
  SELECT
    *,
    count(*) OVER (PARTITION BY within, arrival_ns, prompt_tokens, output_tokens, content) AS copies,
    row_number() OVER (
      PARTITION BY within, arrival_ns, prompt_tokens, output_tokens, content ORDER BY request_id
    ) AS copy,
    min(request_id) OVER (PARTITION BY within, arrival_ns, prompt_tokens, output_tokens, content) AS first_request
  FROM likely
)
SELECT
  dense_rank() OVER (ORDER BY first_request) AS duplicate_group,
  copies, copy, request_id, source_id, source_key, session_id, arrival_ns, prompt_tokens, output_tokens, blocks
FROM counted
WHERE copies > 1
ORDER BY duplicate_group, request_id
