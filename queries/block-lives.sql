-- How long do blocks live in the cache, how many are stored and never read, and how full are they?
-- column workload: The requests.
-- column policy: The policy of the cache.
-- column capacity_blocks: Blocks that fit; null where all of the workload's do.
-- column lives: Lives of blocks: a block that comes back has another.
-- column never_read: Lives without a read: stored for nothing.
-- column never_read_ratio: These over all lives.
-- column one_hit_lives: Lives of blocks that the whole workload uses once only, which no cache can read.
-- column reads_per_life: Mean reads of a life.
-- column left: Lives that ended within the trace.
-- column p50_life_s: Time from put in until left that half of these do not exceed, s.
-- column p99_life_s: The same for 99 of 100, s.
-- column p50_idle_s: Time from the last use until left that half of these do not exceed, s.
-- column p99_idle_s: The same for 99 of 100, s.
-- column filled_ratio: Tokens in blocks when they are put in over what they can hold.
SELECT
  workload, policy, max(capacity_blocks) AS capacity_blocks, count(*) AS lives,
  count(*) FILTER (WHERE reads = 0) AS never_read,
  CAST(count(*) FILTER (WHERE reads = 0) AS DOUBLE) / count(*) AS never_read_ratio,
  count(*) FILTER (WHERE is_one_hit) AS one_hit_lives,
  CAST(sum(CAST(reads AS BIGINT)) AS DOUBLE) / count(*) AS reads_per_life,
  count(left_ns) AS left,
  quantile_disc(life_ns, 0.5) FILTER (WHERE left_ns IS NOT NULL) / 1e9 AS p50_life_s,
  quantile_disc(life_ns, 0.99) FILTER (WHERE left_ns IS NOT NULL) / 1e9 AS p99_life_s,
  quantile_disc(idle_ns, 0.5) FILTER (WHERE left_ns IS NOT NULL) / 1e9 AS p50_idle_s,
  quantile_disc(idle_ns, 0.99) FILTER (WHERE left_ns IS NOT NULL) / 1e9 AS p99_idle_s,
  CAST(sum(CAST(filled_tokens AS BIGINT)) AS DOUBLE) / nullif(sum(CAST(block_tokens AS BIGINT)), 0) AS filled_ratio
FROM blocks
GROUP BY workload, policy
ORDER BY workload, policy
