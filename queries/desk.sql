-- What lies in the cache: work, references, archives, copies, or what nobody will read again?
-- column workload: The requests.
-- column class: working: read again within a minute; reference: within ten; archive: later; dead: not again; duplicate: on a lower-numbered instance too.
-- column instances: Instances, each with a cache of its own.
-- column capacity_blocks: Blocks that fit in each; null where all of the workload's do.
-- column time_ratio: Blocks times the time for which they lay there, over those of all classes.
-- column mean_gib: Size of the class, mean over the trace, GiB.
-- column reads: Reads that ended a stretch of the class; of a duplicate, while it was one.
-- column usd_per_hour: Cost of the room that it takes.
SELECT
  workload, class, instances, capacity_blocks, time_ratio, mean_bytes / 1073741824.0 AS mean_gib, reads, usd_per_hour
FROM desk
ORDER BY workload, class
