-- What must stay near: how small can a cache be that still serves half, nine tenths or 99% of all that can be reused?
-- column workload: The requests that were replayed.
-- column policy: The policy of the cache.
-- column served_ratio: Share of the reusable block uses that are to be served.
-- column capacity_blocks: The smallest size listed that serves them, in blocks; null if none does.
-- column capacity_bytes: What it takes of the baseline's KV, bytes; null without a model.
-- column block_hit_ratio: Share of all uses of blocks that it hits.
-- column ceiling_ratio: What a cache that never loses a block hits.
-- column blocks_per_hit: Blocks of room for each further hit, from the next smaller share on; what the next hit takes.
WITH kv AS (
  SELECT workload, CAST(max(near_99_bytes) AS DOUBLE) / nullif(CAST(max(near_99_blocks) AS DOUBLE), 0) AS block_bytes
  FROM near_sizes WHERE "by" = 'all' GROUP BY workload
),
shares (served_ratio) AS (VALUES (0.5), (0.9), (0.99)),
fit AS (
  SELECT
    m.workload, m.policy, s.served_ratio, max(m.ceiling_ratio) AS ceiling_ratio, max(m.accesses) AS accesses,
    min(m.capacity_blocks) FILTER (WHERE m.block_hit_ratio >= s.served_ratio * m.ceiling_ratio) AS capacity_blocks
  FROM miss_ratio m CROSS JOIN shares s
  GROUP BY m.workload, m.policy, s.served_ratio
),
sizes AS (
  SELECT f.*, max(m.capacity_bytes) AS capacity_bytes, max(m.block_hit_ratio) AS block_hit_ratio, max(m.hits) AS hits
  FROM fit f
  LEFT JOIN miss_ratio m
    ON m.workload = f.workload AND m.policy = f.policy AND m.capacity_blocks = f.capacity_blocks
  GROUP BY f.workload, f.policy, f.served_ratio, f.ceiling_ratio, f.accesses, f.capacity_blocks
)
SELECT
  sizes.workload, policy, served_ratio, capacity_blocks,
  coalesce(CAST(capacity_bytes AS DOUBLE), capacity_blocks * kv.block_bytes) AS capacity_bytes, block_hit_ratio,
  ceiling_ratio,
  CAST(capacity_blocks - coalesce(lag(capacity_blocks) OVER (PARTITION BY sizes.workload, policy ORDER BY served_ratio), 0)
    AS DOUBLE)
    / nullif(hits - coalesce(lag(hits) OVER (PARTITION BY sizes.workload, policy ORDER BY served_ratio), 0), 0) AS blocks_per_hit
FROM sizes LEFT JOIN kv ON kv.workload = sizes.workload
ORDER BY workload, policy, served_ratio
