-- Which cache size is enough: the smallest with 99% of the hits of a cache that never loses a block?
-- column workload: The requests.
-- column policy: The policy of the cache; min is Belady's bound.
-- column knee_blocks: The smallest listed size with 99% of the ceiling's hits; null where no listed size reaches it.
-- column knee_hit_ratio: Block hit ratio at that size.
-- column largest_blocks: The largest size that is listed.
-- column largest_hit_ratio: Block hit ratio at that size.
-- column ceiling_ratio: The block hit ratio of a cache that never loses a block.
WITH sizes AS (
  SELECT
    workload, policy, min(capacity_blocks) FILTER (WHERE is_knee) AS knee_blocks, max(capacity_blocks) AS largest_blocks,
    max(ceiling_ratio) AS ceiling_ratio
  FROM miss_ratio
  GROUP BY workload, policy
)
SELECT
  s.workload, s.policy, s.knee_blocks, k.block_hit_ratio AS knee_hit_ratio, s.largest_blocks,
  l.block_hit_ratio AS largest_hit_ratio, s.ceiling_ratio
FROM sizes s
LEFT JOIN miss_ratio k
  ON k.workload = s.workload AND k.policy = s.policy AND k.capacity_blocks = s.knee_blocks
LEFT JOIN miss_ratio l
  ON l.workload = s.workload AND l.policy = s.policy AND l.capacity_blocks = s.largest_blocks
ORDER BY workload, policy
