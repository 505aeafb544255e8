-- How long do blocks live in a captured engine, from being stored to being removed?
-- column source_id: The capture.
-- column blocks: Different blocks.
-- column stored: Times a block was stored.
-- column lives: Of these, times after which its removal was seen.
-- column p50_lifetime_s: Median time from storing to removal, s.
-- column p90_lifetime_s: The time that 90% of the lives do not exceed, s.
-- column max_lifetime_s: The longest, s.
-- column still_there: Blocks whose last event stored them: still there at the end, or cleared with all others.
WITH events AS (
  SELECT source_id, block_hash, event, time_ns, seq, event_index, block_index
  FROM block_events WHERE block_hash IS NOT NULL AND time_ns IS NOT NULL
),
-- One order over all events, in which those of a block stand together: a window for each of many blocks would be slow.
neighbours AS (
  SELECT
    source_id, block_hash, event, time_ns, lead(source_id) OVER w AS next_source_id, lead(block_hash) OVER w AS next_hash,
    lead(event) OVER w AS next_event, lead(time_ns) OVER w AS next_ns
  FROM events
  WINDOW w AS (ORDER BY source_id, block_hash, time_ns, seq, event_index, block_index)
),
followed AS (
  SELECT
    source_id, block_hash, event, time_ns,
    CASE WHEN next_source_id = source_id AND next_hash = block_hash THEN next_event END AS next_event, next_ns
  FROM neighbours
),
lives AS (
  SELECT source_id, block_hash, next_ns - time_ns AS life_ns
  FROM followed WHERE event = 'stored' AND next_event = 'removed'
),
lengths AS (
  SELECT
    source_id, count(*) AS lives, quantile_disc(life_ns, 0.5) AS p50_ns,
    quantile_disc(life_ns, 0.9) AS p90_ns, max(life_ns) AS max_ns
  FROM lives GROUP BY source_id
),
counted AS (
  SELECT
    source_id, count(DISTINCT block_hash) AS blocks, count(*) FILTER (WHERE event = 'stored') AS stored,
    count(*) FILTER (WHERE event = 'stored' AND next_event IS NULL) AS still_there
  FROM followed GROUP BY source_id
)
SELECT
  c.source_id, c.blocks, c.stored, coalesce(l.lives, 0) AS lives, l.p50_ns / 1e9 AS p50_lifetime_s,
  l.p90_ns / 1e9 AS p90_lifetime_s, l.max_ns / 1e9 AS max_lifetime_s, c.still_there
FROM counted c LEFT JOIN lengths l ON l.source_id = c.source_id
ORDER BY source_id
