-- How much of what it could move does each memory and link move?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column kind: memory or link.
-- column carrier: The memory or the class of link.
-- column bytes: Bytes moved in the run.
-- column bytes_per_s: Bytes moved over the run's time, idle time included.
-- column peak_bytes_per_s: What the carrier could move per second, all accelerators and instances together.
-- column mean_busy_ratio: Bytes moved over what the carrier would have moved at its published rate, or for links other than scale_up at the one that is reached, mean over time.
-- column p99_busy_ratio: The same in the bucket of time that 99% of the buckets do not exceed.
-- column max_busy_ratio: The same in the busiest bucket.
WITH used AS (
  -- What the tables say of a column is taken off it, which a union of two tables may not differ in.
  SELECT
    scenario_id, 'memory' AS kind, tier || '' AS carrier, duration_ns, busy_ratio, bucket,
    read_bytes + written_bytes AS bytes
  FROM tier_usage
  UNION ALL
  SELECT
    scenario_id, 'link' AS kind, link || '' AS carrier, max(duration_ns) AS duration_ns, sum(busy_ratio) AS busy_ratio, bucket,
    sum(bytes) AS bytes
  FROM link_usage GROUP BY scenario_id, link, bucket
),
summed AS (
  SELECT
    scenario_id, kind, carrier, sum(bytes) AS bytes, sum(duration_ns) AS duration_ns,
    sum(busy_ratio * duration_ns) / nullif(CAST(sum(duration_ns) AS DOUBLE), 0) AS mean_busy_ratio,
    quantile_disc(busy_ratio, 0.99) AS p99_busy_ratio,
    max(busy_ratio) AS max_busy_ratio
  FROM used GROUP BY scenario_id, kind, carrier
),
-- Tiers and links are described per accelerator or chip; the link to the pool is counted both ways, as in `link_usage`.
carriers AS (
  SELECT
    machine,
    max(value) FILTER (WHERE parameter = 'scale_up_bytes_per_s') AS scale_up_bytes_per_s,
    max(value) FILTER (WHERE parameter = 'link_bytes_per_s') AS link_bytes_per_s,
    max(value) FILTER (WHERE parameter = 'ffn_chips') AS ffn_chips
  FROM machines GROUP BY machine
)
SELECT
  u.scenario_id, s.name AS scenario, u.kind, u.carrier, u.bytes,
  CAST(u.bytes AS DOUBLE) * 1e9 / nullif(u.duration_ns, 0) AS bytes_per_s,
  CASE u.carrier
    WHEN 'scale_up' THEN c.scale_up_bytes_per_s * s.accelerators
    WHEN 'attention_ffn' THEN 2 * c.link_bytes_per_s * s.accelerators
    WHEN 'ffn_pool' THEN t.read_bytes_per_s * c.ffn_chips * s.instances
    ELSE t.read_bytes_per_s * s.accelerators
  END AS peak_bytes_per_s,
  u.mean_busy_ratio, u.p99_busy_ratio, u.max_busy_ratio
FROM summed u
JOIN scenarios s ON s.scenario_id = u.scenario_id
LEFT JOIN carriers c ON c.machine = s.machine
LEFT JOIN tiers t ON t.machine = s.machine AND t.tier = u.carrier
ORDER BY scenario_id, kind DESC, carrier
