-- Does it pay to keep blocks in a farther memory and fetch them, or is computing them again faster?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column tier: The memory, alone below that of the accelerators.
-- column verdict: pays, or does not pay because of what.
-- column capacity_blocks: Blocks that fit; null where all of the workload's do, also where its size is not published.
-- column runs: Runs of blocks that lay in it when a request asked for them.
-- column paying_runs: Runs whose fetch takes less than computing them.
-- column queued_runs: Runs that only the wait for the link makes too slow.
-- column fetched_tokens: Prompt tokens that were fetched.
-- column fetched_bytes: Their bytes.
-- column queue_s: Wait of all fetches for the link, s.
-- column transfer_s: Latencies and transfers, s.
-- column compute_s: What computing the same tokens would have taken, s.
-- column saved_s: compute_s less the other two.
-- column busy_ratio: Share of the time in which the way is busy.
-- column written_bytes: Bytes written to it.
-- column never_read_ratio: Share of these that was never read from there.
-- column certainty: The least certain input it depends on.
SELECT
  t.scenario_id, s.name AS scenario, t.tier, t.verdict, t.capacity_blocks, t.runs, t.paying_runs, t.queued_runs,
  t.fetched_tokens, t.fetched_bytes, t.queue_ns / 1e9 AS queue_s, t.transfer_ns / 1e9 AS transfer_s,
  t.compute_ns / 1e9 AS compute_s, t.saved_ns / 1e9 AS saved_s, t.busy_ratio, t.written_bytes,
  CAST(t.never_read_bytes AS DOUBLE) / nullif(t.written_bytes, 0) AS never_read_ratio, t.certainty
FROM fetch_totals t JOIN scenarios s ON s.scenario_id = t.scenario_id
ORDER BY scenario_id, tier
