-- How busy is each class of link in each bucket of time?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column link: What goes over it.
-- column distance: How far it reaches: package, board, rack or cross-rack; null where the machine does not say.
-- column bucket: Number of the bucket of time.
-- column start_s: When the bucket begins, s.
-- column bytes: Bytes carried in the bucket.
-- column bytes_per_s: Bytes carried per second.
-- column busy_ratio: Bytes carried over what peak bandwidth would have carried.
SELECT
  u.scenario_id, s.name AS scenario, u.link, u.distance, u.bucket, u.start_ns / 1e9 AS start_s, u.bytes,
  CAST(u.bytes AS DOUBLE) * 1e9 / nullif(u.duration_ns, 0) AS bytes_per_s, u.busy_ratio
FROM link_usage u JOIN scenarios s ON s.scenario_id = u.scenario_id
ORDER BY scenario_id, link, bucket
