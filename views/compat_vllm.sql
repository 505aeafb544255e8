-- Observations under the names and units of vLLM's metrics: of replayed requests (those that stages send too, as an engine sees them), of captured KV events, and of reused blocks.
-- column scenario_id: Number of the scenario within the run; null for what the traces themselves say.
-- column source_id: The source of a capture or trace; null for what a replay found.
-- column metric: The metric's name.
-- column value: One observation: s, or tokens.
WITH felt AS (
  SELECT
    scenario_id, ttft_ns / 1e9 AS ttft, e2e_ns / 1e9 AS e2e, mean_itl_ns / 1e9 AS tpot, queue_ns / 1e9 AS queued,
    CAST(prompt_tokens AS DOUBLE) AS prompt_tokens, CAST(output_tokens AS DOUBLE) AS output_tokens
  FROM request_costs
),
events AS (
  SELECT
    source_id, block_hash, event, time_ns, lead(source_id) OVER w AS next_source_id, lead(block_hash) OVER w AS next_hash,
    lead(event) OVER w AS next_event, lead(time_ns) OVER w AS next_ns
  FROM block_events WHERE block_hash IS NOT NULL AND time_ns IS NOT NULL
  WINDOW w AS (ORDER BY source_id, block_hash, time_ns, seq, event_index, block_index)
)
SELECT scenario_id, NULL AS source_id, 'vllm:time_to_first_token_seconds' AS metric, ttft AS value
FROM felt WHERE ttft IS NOT NULL
UNION ALL
SELECT scenario_id, NULL, 'vllm:e2e_request_latency_seconds', e2e FROM felt WHERE e2e IS NOT NULL
UNION ALL
SELECT scenario_id, NULL, 'vllm:request_time_per_output_token_seconds', tpot FROM felt WHERE tpot IS NOT NULL
UNION ALL
SELECT scenario_id, NULL, 'vllm:request_queue_time_seconds', queued FROM felt WHERE queued IS NOT NULL
UNION ALL
SELECT scenario_id, NULL, 'vllm:request_prompt_tokens', prompt_tokens FROM felt
UNION ALL
SELECT scenario_id, NULL, 'vllm:request_generation_tokens', output_tokens FROM felt
UNION ALL
SELECT NULL, source_id, 'vllm:kv_block_lifetime_seconds', (next_ns - time_ns) / 1e9
FROM events
WHERE event = 'stored' AND next_event = 'removed' AND next_source_id = source_id AND next_hash = block_hash
UNION ALL
SELECT NULL, source_id, 'vllm:kv_block_reuse_gap_seconds', gap_ns / 1e9 FROM reuse_gaps
