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
followed AS (
  SELECT
    *,
    lag(request_id) OVER (PARTITION BY source_id, block_hash ORDER BY arrival_ns, request_id, position)
      AS previous_request_id,
    lag(arrival_ns) OVER (PARTITION BY source_id, block_hash ORDER BY arrival_ns, request_id, position)
      AS previous_arrival_ns,
    lag(session_id) OVER (PARTITION BY source_id, block_hash ORDER BY arrival_ns, request_id, position)
      AS previous_session_id
  FROM uses
)
SELECT
  source_id, request_id, session_id, position, block_hash, previous_request_id,
  arrival_ns - previous_arrival_ns AS gap_ns, session_id = previous_session_id AS is_same_session
FROM followed WHERE previous_request_id IS NOT NULL
