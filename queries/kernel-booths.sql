-- How much GPU time does each booth take: attention, linear layers, experts, collectives, copies, and what no rule knows?
-- column source_id: The capture.
-- column category: kernel, copy, fill or collective, as the capture has it.
-- column booth: The booth, by the rules that kvtoll ships; `unclassified` where none matches.
-- column kernels: Rows of the capture.
-- column time_ns: Their time on all devices, ns; work that ran at once counts each.
-- column share_ratio: Of the time of all rows of the capture: kernels, collectives, copies and fills.
-- column untimed: Rows of unknown duration.
-- column dram_read_bytes: DRAM bytes read, where they are counted.
-- column dram_write_bytes: DRAM bytes written, where they are counted.
-- column counted: Rows whose DRAM bytes are counted.
WITH booths AS (
  SELECT
    source_id, category, booth(category, name) AS booth, count(*) AS kernels,
    -- In decimals, which do not wrap: a sum that no column can hold is an error.
    CAST(coalesce(sum(CAST(duration_ns AS DECIMAL(20, 0))), 0) AS BIGINT) AS time_ns,
    count(*) - count(duration_ns) AS untimed,
    CAST(sum(CAST(dram_read_bytes AS DECIMAL(20, 0))) FILTER (WHERE dram_write_bytes IS NOT NULL) AS BIGINT UNSIGNED)
      AS dram_read_bytes,
    CAST(sum(CAST(dram_write_bytes AS DECIMAL(20, 0))) FILTER (WHERE dram_read_bytes IS NOT NULL) AS BIGINT UNSIGNED)
      AS dram_write_bytes,
    count(*) FILTER (WHERE dram_read_bytes IS NOT NULL AND dram_write_bytes IS NOT NULL) AS counted
  FROM kernels GROUP BY source_id, category, booth(category, name)
)
SELECT
  source_id, category, booth, kernels, time_ns,
  CAST(time_ns AS DOUBLE) / nullif(CAST(sum(CAST(time_ns AS DECIMAL(20, 0))) OVER (PARTITION BY source_id) AS DOUBLE), 0)
    AS share_ratio,
  untimed, dram_read_bytes, dram_write_bytes, counted
FROM booths
ORDER BY source_id, category, booth
