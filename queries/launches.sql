-- How often was each kernel launched, in which shape, and how long did it wait between launch and start?
-- column source_id: The source.
-- column name: The name.
-- column category: kernel or collective.
-- column booth: The booth, by the rules that kvtoll ships.
-- column launches: Rows of the capture.
-- column launches_known: Rows whose launch on the host was captured.
-- column shapes: Distinct combinations of grid, block, registers and shared memory.
-- column blocks: Blocks of the largest grid.
-- column threads: Threads of its largest block.
-- column time_ns: Time in all, ns.
-- column min_ns: Shortest, ns.
-- column median_ns: Median, ns.
-- column max_ns: Longest, ns.
-- column median_wait_ns: Median time from launch to start, ns; null where no launch is known.
WITH timed AS (
  SELECT
    source_id, name, category, duration_ns, launch_ns, start_ns - launch_ns AS wait_ns,
    CAST(grid_x AS BIGINT) * grid_y * grid_z AS blocks, CAST(block_x AS BIGINT) * block_y * block_z AS threads,
    concat_ws(',', grid_x, grid_y, grid_z, block_x, block_y, block_z, registers, shared_bytes) AS shape
  FROM kernels WHERE category IN ('kernel', 'collective')
)
SELECT
  source_id, name, category, booth(category, name) AS booth, count(*) AS launches, count(launch_ns) AS launches_known,
  count(DISTINCT shape) AS shapes, max(blocks) AS blocks, max(threads) AS threads,
  coalesce(sum(duration_ns), 0) AS time_ns, min(duration_ns) AS min_ns, median(duration_ns) AS median_ns,
  max(duration_ns) AS max_ns, median(wait_ns) AS median_wait_ns
FROM timed
GROUP BY source_id, name, category
ORDER BY source_id, category, name
