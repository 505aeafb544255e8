-- What did each kernel ask of memory, and how many sectors of 32 bytes moved for it?
-- column source_id: The source.
-- column launch: Number of the launch within the source, from 0.
-- column kernel: Name of the kernel.
-- column space: global, local, shared, generic or unknown.
-- column accesses: Memory instructions of warps.
-- column writes: Of these, writes.
-- column lanes: Lanes that took part, where the mask is known.
-- column requested_bytes: Bytes that lanes asked for, once per lane, where they are known.
-- column sectors: Sectors moved; null for shared memory, which has none.
-- column sectors_per_access: Sectors over accesses.
-- column requested_bytes_per_sector: Bytes asked for over sectors, where both are known; above 32 where lanes ask for the same bytes.
-- column footprint_bytes: Distinct sectors, in bytes.
WITH touched AS (
  SELECT source_id, launch, space, count(DISTINCT sector) * 32 AS footprint_bytes
  FROM (SELECT source_id, launch, space, unnest(sector_ids) AS sector FROM accesses WHERE space <> 'shared')
  GROUP BY source_id, launch, space
),
summed AS (
  SELECT
    source_id, launch, min(kernel) AS kernel, space, count(*) AS accesses, count(*) FILTER (WHERE is_write) AS writes,
    sum(active_lanes) AS lanes, sum(bytes) AS requested_bytes,
    CASE WHEN space <> 'shared' THEN sum(CAST(sectors AS BIGINT)) END AS sectors,
    sum(CAST(sectors AS BIGINT)) FILTER (WHERE bytes IS NOT NULL) AS known_sectors
  FROM accesses GROUP BY source_id, launch, space
)
SELECT
  s.source_id, s.launch, s.kernel, s.space, s.accesses, s.writes, s.lanes, s.requested_bytes, s.sectors,
  CAST(s.sectors AS DOUBLE) / s.accesses AS sectors_per_access,
  CASE WHEN s.space <> 'shared' THEN CAST(s.requested_bytes AS DOUBLE) / nullif(s.known_sectors, 0) END
    AS requested_bytes_per_sector,
  t.footprint_bytes
FROM summed s
LEFT JOIN touched t ON t.source_id = s.source_id AND t.launch = s.launch AND t.space = s.space
ORDER BY source_id, launch, space
