-- How long must an idle block be kept to be there when it is needed again?
-- column source_id: The source.
-- column kept_s: How long an idle block is kept, s.
-- column reuses: Uses of blocks that were used before, whatever the gap.
-- column kept_reuses: Of these, uses that come within that time.
-- column kept_ratio: These over all uses of blocks that were used before.
-- column same_session_reuses: Of the uses within that time, those by the same conversation; null where none is named.
WITH times (bin, kept_s) AS (
  VALUES
    (0, 1), (1, 5), (2, 15), (3, 60), (4, 300), (5, 900), (6, 1800), (7, 3600), (8, 14400), (9, 86400)
),
binned AS (
  SELECT
    source_id,
    CASE
      WHEN gap_ns <= 1000000000 THEN 0 WHEN gap_ns <= 5000000000 THEN 1 WHEN gap_ns <= 15000000000 THEN 2
      WHEN gap_ns <= 60000000000 THEN 3 WHEN gap_ns <= 300000000000 THEN 4 WHEN gap_ns <= 900000000000 THEN 5
      WHEN gap_ns <= 1800000000000 THEN 6 WHEN gap_ns <= 3600000000000 THEN 7 WHEN gap_ns <= 14400000000000 THEN 8
      WHEN gap_ns <= 86400000000000 THEN 9 ELSE 10
    END AS bin,
    count(*) AS reuses, count(*) FILTER (WHERE is_same_session) AS same_session, count(is_same_session) AS with_session
  FROM reuse_gaps GROUP BY 1, 2
),
sums AS (
  SELECT
    b.source_id, CAST(t.kept_s AS BIGINT) AS kept_s, CAST(sum(b.reuses) AS BIGINT) AS reuses,
    CAST(coalesce(sum(b.reuses) FILTER (WHERE b.bin <= t.bin), 0) AS BIGINT) AS kept_reuses,
    CAST(coalesce(sum(b.same_session) FILTER (WHERE b.bin <= t.bin), 0) AS BIGINT) AS same_session,
    sum(b.with_session) AS with_session
  FROM binned b CROSS JOIN times t
  GROUP BY b.source_id, t.kept_s
)
SELECT
  source_id, kept_s, reuses, kept_reuses, CAST(kept_reuses AS DOUBLE) / reuses AS kept_ratio,
  CASE WHEN with_session > 0 THEN same_session END AS same_session_reuses
FROM sums
ORDER BY source_id, kept_s
