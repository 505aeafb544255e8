-- After how long is a block used again, and what would a cache that keeps blocks so long hit?
-- column workload: The requests.
-- column up_to_s: Upper end of the class of gaps, s; each is ten times, or half of ten times, the one before.
-- column gaps: Gaps in the class.
-- column gaps_ratio: These over all gaps.
-- column within_ratio: Gaps up to here over all gaps: reuses that a cache hits which keeps a block so long after each use.
-- column mean_distance_blocks: Distinct other blocks used within a gap, mean.
-- column same_session_ratio: Gaps within one session over gaps of the class; null where sessions are unknown.
WITH classed AS (
  SELECT
    *, CASE
      WHEN gap_ns <= 1000000000 THEN 1.0 WHEN gap_ns <= 5000000000 THEN 5.0 WHEN gap_ns <= 10000000000 THEN 10.0
      WHEN gap_ns <= 50000000000 THEN 50.0 WHEN gap_ns <= 100000000000 THEN 100.0
      WHEN gap_ns <= 500000000000 THEN 500.0 WHEN gap_ns <= 1000000000000 THEN 1000.0
      WHEN gap_ns <= 5000000000000 THEN 5000.0 WHEN gap_ns <= 10000000000000 THEN 10000.0
      WHEN gap_ns <= 100000000000000 THEN 100000.0 ELSE 1e12
    END AS up_to_s
  FROM gaps
),
counted AS (
  SELECT
    workload, up_to_s, count(*) AS gaps, avg(CAST(distance_blocks AS DOUBLE)) AS mean_distance_blocks,
    CAST(count(*) FILTER (WHERE is_same_session) AS DOUBLE) / nullif(count(is_same_session), 0) AS same_session_ratio
  FROM classed GROUP BY workload, up_to_s
)
SELECT
  workload, up_to_s, gaps, CAST(gaps AS DOUBLE) / sum(gaps) OVER (PARTITION BY workload) AS gaps_ratio,
  CAST(sum(gaps) OVER (PARTITION BY workload ORDER BY up_to_s) AS DOUBLE) / sum(gaps) OVER (PARTITION BY workload)
    AS within_ratio,
  mean_distance_blocks, same_session_ratio
FROM counted
ORDER BY workload, up_to_s
