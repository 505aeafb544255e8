-- How does the KV cache grow over time?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column tier: The memory.
-- column bucket: Number of the bucket of time.
-- column start_s: When the bucket begins, s.
-- column held_bytes: Most KV that running requests held in the bucket, bytes.
-- column resident_bytes: Most KV held or cached in the bucket, bytes.
-- column capacity_bytes: KV that fits, bytes.
-- column held_ratio: Held over capacity.
SELECT
  u.scenario_id, s.name AS scenario, u.tier, u.bucket, u.start_ns / 1e9 AS start_s, u.held_bytes, u.resident_bytes,
  u.capacity_bytes, CAST(u.held_bytes AS DOUBLE) / nullif(u.capacity_bytes, 0) AS held_ratio
FROM tier_usage u JOIN scenarios s ON s.scenario_id = u.scenario_id
ORDER BY scenario_id, tier, bucket
