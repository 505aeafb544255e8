-- Each use of a KV block that was used before in the same source: how long ago, and by whom.
-- column source_id: The source.
-- column request_id: The request that uses the block again.
-- column session_id: The conversation it belongs to.
-- column position: Place of the block in the prompt, from 0.
-- column block_hash: The block's id.
-- column previous_request_id: The request that used it last.
-- column gap_ns: Time between the arrivals of both, ns.
-- column is_same_session: Whether both belong to one conversation; null where either names none.
WITH uses AS (
  SELECT
    source_id, request_id, session_id, arrival_ns,
    unnest(range(0, CAST(array_length(block_hashes) AS BIGINT))) AS position, unnest(block_hashes) AS block_hash
  FROM requests WHERE arrival_ns IS NOT NULL
),
-- One order over all uses, in which those of a block stand together: a window for each of many blocks would be slow.
followed AS (
  SELECT
    *, lag(source_id) OVER w AS previous_source_id, lag(block_hash) OVER w AS previous_block_hash,
    lag(request_id) OVER w AS previous_request_id, lag(arrival_ns) OVER w AS previous_arrival_ns,
    lag(session_id) OVER w AS previous_session_id
  FROM uses
  WINDOW w AS (ORDER BY source_id, block_hash, arrival_ns, request_id, position)
)
SELECT
  source_id, request_id, session_id, position, block_hash, previous_request_id,
  arrival_ns - previous_arrival_ns AS gap_ns, session_id = previous_session_id AS is_same_session
FROM followed WHERE previous_source_id = source_id AND previous_block_hash = block_hash
