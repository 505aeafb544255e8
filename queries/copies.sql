-- How many bytes were copied and filled, by kind, and how fast?
-- column source_id: The source.
-- column category: copy or fill.
-- column copy_kind: host_to_device, device_to_host, device_to_device and others; null for fills and where it is not recorded.
-- column copies: Copies or fills.
-- column bytes: Their bytes; null where none is known.
-- column unknown_bytes: Copies or fills of unknown size.
-- column largest_bytes: The largest.
-- column time_ns: Their time, ns.
-- column bytes_per_s: Bytes over time, of those of which both are known.
WITH sizes AS (
  -- Sums are of decimals, which do not wrap: one that no column can hold is an error.
  SELECT
    source_id, category, copy_kind, bytes, CAST(bytes AS DECIMAL(20, 0)) AS exact_bytes, duration_ns,
    CAST(duration_ns AS DECIMAL(20, 0)) AS exact_ns
  FROM kernels WHERE category IN ('copy', 'fill')
)
SELECT
  source_id, category, copy_kind, count(*) AS copies, CAST(sum(exact_bytes) AS BIGINT UNSIGNED) AS bytes,
  count(*) - count(bytes) AS unknown_bytes, max(bytes) AS largest_bytes,
  CAST(coalesce(sum(exact_ns), 0) AS BIGINT) AS time_ns,
  CAST(sum(exact_bytes) FILTER (WHERE duration_ns IS NOT NULL) AS DOUBLE) * 1e9
    / nullif(CAST(sum(exact_ns) FILTER (WHERE bytes IS NOT NULL) AS DOUBLE), 0) AS bytes_per_s
FROM sizes
GROUP BY source_id, category, copy_kind
ORDER BY source_id, category, copy_kind
