-- For each request and run of blocks in a farther memory: fetch it, or compute it again?
-- column scenario_id: Number of the scenario within the run.
-- column tier: The memory.
-- column request_id: The request.
-- column first_block: Place of the run's first block in the prompt.
-- column tokens: Its tokens.
-- column depth_tokens: Tokens of the prompt before it.
-- column bytes: Its KV bytes.
-- column fetch_ns: Wait for the link, latency and transfer, ns.
-- column compute_ns: What computing it takes, ns; null where it is not asked for.
-- column saved_ns: compute_ns less fetch_ns.
-- column is_fetched: Whether it was fetched.
-- column verdict: pays, or does not pay because of what.
SELECT
  scenario_id, tier, request_id, first_block, tokens, depth_tokens, bytes,
  queue_ns + latency_ns + transfer_ns AS fetch_ns, compute_ns, saved_ns, is_fetched, verdict
FROM fetches
ORDER BY scenario_id, tier, request_id, first_block
