-- How long must an idle block be kept to be there when it is needed again?
-- column source_id: The source.
-- column kept_s: How long an idle block is kept, s.
-- column reuses: Uses of blocks that were used before, whatever the gap.
-- column kept_reuses: Of these, uses that come within that time.
-- column kept_ratio: These over all uses of blocks that were used before.
-- column same_session_reuses: Of the uses within that time, those by the same conversation; null where none is named.
WITH times (kept_s) AS (
  VALUES (1), (5), (15), (60), (300), (900), (1800), (3600), (14400), (86400)
),
all_gaps AS (
  SELECT source_id, count(*) AS reuses FROM reuse_gaps GROUP BY source_id
),
kept AS (
  SELECT
    g.source_id, t.kept_s, count(*) AS kept_reuses,
    CAST(sum(CASE WHEN g.is_same_session THEN 1 WHEN NOT g.is_same_session THEN 0 END) AS BIGINT) AS same_session_reuses
  FROM reuse_gaps g JOIN times t ON g.gap_ns <= CAST(t.kept_s AS BIGINT) * 1000000000
  GROUP BY g.source_id, t.kept_s
)
SELECT
  a.source_id, CAST(t.kept_s AS BIGINT) AS kept_s, a.reuses, coalesce(k.kept_reuses, 0) AS kept_reuses,
  CAST(coalesce(k.kept_reuses, 0) AS DOUBLE) / a.reuses AS kept_ratio, k.same_session_reuses
FROM all_gaps a CROSS JOIN times t
LEFT JOIN kept k ON k.source_id = a.source_id AND k.kept_s = t.kept_s
ORDER BY source_id, kept_s
