-- How large a near memory serves 50, 90 and 99% of the reads of each kind of content and tenant, and what is the next GiB worth?
-- column workload: The requests.
-- column by: all, kind (of request) or tenant.
-- column value: Which of these.
-- column requests: Requests of it.
-- column reads: Uses of blocks after a block's first.
-- column near_50_blocks: Smallest LRU cache that serves 50% of these reads, shared with all requests.
-- column near_90_blocks: The same for 90%.
-- column near_99_blocks: The same for 99%.
-- column near_50_gib: What it takes, GiB.
-- column near_90_gib: The same for 90%.
-- column near_99_gib: The same for 99%.
-- column now_blocks: The present size; null where all blocks fit.
-- column next_gib_reads_per_hour: Reads that a GiB more than now would serve in an hour.
-- column next_gib_saved_ratio: Hours of prefill of an instance that this saves in an hour.
-- column next_gib_usd_per_hour: What these hours cost.
SELECT
  workload, "by", value, requests, reads, near_50_blocks, near_90_blocks, near_99_blocks,
  near_50_bytes / 1073741824.0 AS near_50_gib, near_90_bytes / 1073741824.0 AS near_90_gib,
  near_99_bytes / 1073741824.0 AS near_99_gib, now_blocks, next_gib_reads_per_hour, next_gib_saved_ratio,
  next_gib_usd_per_hour
FROM near_sizes
ORDER BY workload, "by", value
