-- How many requests of this traffic fit into KV memory at once?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column kv_capacity_bytes: KV that fits, bytes.
-- column requests: Requests whose footprint entered.
-- column p50_request_kv_bytes: Peak KV of the median request, bytes.
-- column p99_request_kv_bytes: Peak KV that 99% of the requests do not exceed, bytes.
-- column sessions_p50: Requests of the median size that fit; shared prefixes and partly filled blocks are not counted.
-- column sessions_p99: Requests of the 99th percentile's size that fit.
WITH grouped AS (
  SELECT demand_id, request_id, layer_group, max(peak_bytes) AS peak_bytes
  FROM demand GROUP BY demand_id, request_id, layer_group
),
requests_kv AS (
  SELECT demand_id, request_id, sum(peak_bytes) AS kv_bytes FROM grouped GROUP BY demand_id, request_id
),
footprint AS (
  SELECT
    demand_id, count(*) AS requests,
    quantile_disc(CAST(kv_bytes AS BIGINT), 0.5) AS p50_request_kv_bytes,
    quantile_disc(CAST(kv_bytes AS BIGINT), 0.99) AS p99_request_kv_bytes
  FROM requests_kv GROUP BY demand_id
),
capacity AS (
  SELECT scenario_id, max(value) AS kv_capacity_bytes FROM metrics
  WHERE metric = 'kv_capacity_bytes' GROUP BY scenario_id
)
SELECT
  s.scenario_id, s.name AS scenario, c.kv_capacity_bytes, f.requests, f.p50_request_kv_bytes, f.p99_request_kv_bytes,
  CAST(floor(c.kv_capacity_bytes / nullif(f.p50_request_kv_bytes, 0)) AS BIGINT) AS sessions_p50,
  CAST(floor(c.kv_capacity_bytes / nullif(f.p99_request_kv_bytes, 0)) AS BIGINT) AS sessions_p99
FROM scenarios s
JOIN footprint f ON f.demand_id = s.demand_id
LEFT JOIN capacity c ON c.scenario_id = s.scenario_id
WHERE s.status = 'ok'
ORDER BY scenario_id
