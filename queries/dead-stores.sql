-- Which places of a prompt are stored and never read?
-- column workload: The requests.
-- column policy: The policy of the cache.
-- column from_position: First place in the prompt of the class, in blocks; each class is twice as wide as the one before.
-- column lives: Lives of blocks that were put in at these places.
-- column never_read: Lives without a read.
-- column never_read_ratio: These over lives.
-- column reads: Reads of all lives.
-- column reads_per_life: Mean reads of a life.
WITH classed AS (
  SELECT
    *, CASE
      WHEN position < 1 THEN 0 WHEN position < 2 THEN 1 WHEN position < 4 THEN 2 WHEN position < 8 THEN 4
      WHEN position < 16 THEN 8 WHEN position < 32 THEN 16 WHEN position < 64 THEN 32 WHEN position < 128 THEN 64
      WHEN position < 256 THEN 128 WHEN position < 512 THEN 256 ELSE 512
    END AS from_position
  FROM blocks
)
SELECT
  workload, policy, from_position, count(*) AS lives, count(*) FILTER (WHERE reads = 0) AS never_read,
  CAST(count(*) FILTER (WHERE reads = 0) AS DOUBLE) / count(*) AS never_read_ratio,
  sum(CAST(reads AS BIGINT)) AS reads, CAST(sum(CAST(reads AS BIGINT)) AS DOUBLE) / count(*) AS reads_per_life
FROM classed
GROUP BY workload, policy, from_position
ORDER BY workload, policy, from_position
