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
    source_id, category, booth(category, name) AS booth, count(*) AS kernels, coalesce(sum(duration_ns), 0) AS time_ns,
    count(*) - count(duration_ns) AS untimed,
    sum(dram_read_bytes) FILTER (WHERE dram_write_bytes IS NOT NULL) AS dram_read_bytes,
    sum(dram_write_bytes) FILTER (WHERE dram_read_bytes IS NOT NULL) AS dram_write_bytes,
    count(*) FILTER (WHERE dram_read_bytes IS NOT NULL AND dram_write_bytes IS NOT NULL) AS counted
  FROM kernels GROUP BY source_id, category, booth(category, name)
)
SELECT
  source_id, category, booth, kernels, time_ns,
  CAST(time_ns AS DOUBLE) / nullif(sum(time_ns) OVER (PARTITION BY source_id), 0) AS share_ratio,
  untimed, dram_read_bytes, dram_write_bytes, counted
FROM booths
ORDER BY source_id, category, booth
