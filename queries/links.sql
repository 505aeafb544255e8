-- How busy are links with each class of traffic in each bucket of time?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column link: scale_up, scale_out, attention_ffn, host, to_host or prefill_to_decode.
-- column class: What goes over it.
-- column distance: How far it reaches: package, board, rack or cross-rack; null where the machine does not say.
-- column bucket: Number of the bucket of time.
-- column start_s: When the bucket begins, s.
-- column bytes: Bytes carried in the bucket.
-- column bytes_per_s: Bytes carried per second.
-- column busy_ratio: Bytes of the class over what the links would have carried, at the published rate for scale_up, at the one that is reached elsewhere.
SELECT
  u.scenario_id, s.name AS scenario, u.link, u.class, u.distance, u.bucket, u.start_ns / 1e9 AS start_s, u.bytes,
  CAST(u.bytes AS DOUBLE) * 1e9 / nullif(u.duration_ns, 0) AS bytes_per_s, u.busy_ratio
FROM link_usage u JOIN scenarios s ON s.scenario_id = u.scenario_id
ORDER BY scenario_id, link, class, bucket
