-- How does each scenario do, and what does it change against the baseline?
-- column scenario: What the user calls it.
-- column status: ok or failed.
-- column p99_ttft_ms: 99th percentile of the time to first token, ms.
-- column p50_itl_ms: Median gap between two tokens, ms.
-- column p99_itl_ms: 99th percentile of the gap between two tokens, ms.
-- column output_tokens_per_s: Output tokens per second, all accelerators together.
-- column usd_per_mtok_output_saturated: `usd_per_mtok_output` if requests came just as fast as they can be served.
-- column kv_peak_held_bytes: Most KV that running requests held at once, bytes.
-- column lost_mass_ratio: Attention mass that the policy loses on a recording; null without one.
-- column offered_load_ratio: Busy time that the requests ask for over their span; above 1 the queue grows to the end.
-- column scenario_id: Number of the scenario within the run.
-- column is_baseline: Whether the others are compared with it.
-- column workload: The requests that were replayed; figures of different workloads do not compare.
-- column model: The model.
-- column policy: The policy stack.
-- column machine: The machine with its variations.
-- column p50_ttft_ms: Median time to first token, ms.
-- column output_tokens_per_s_per_accelerator: Output tokens per second and accelerator.
-- column usd_per_mtok_output: US dollars per million output tokens; null where the price of the accelerators is not disclosed.
-- column usd_per_mtok_total: US dollars per million tokens read or written; null where the price of the accelerators is not disclosed.
-- column energy_j_per_output_token: Energy per output token, J.
-- column kv_bytes_per_token: KV bytes that one more token of context adds.
-- column hit_tokens_ratio: Share of the prompt tokens that the prefix cache held.
-- column quantization_error_ratio: Error of the attention output by number format on a recording; null without one.
-- column loss_recording: The recordings on which the policy's loss was measured; null without one.
-- column output_error: Turn of the layers' outputs on a recording, 1 - cos, mean; null without one that holds vectors or norms.
-- column may_lose: What its policy takes away that may change answers: context, tokens, layers, precision, or nothing.
-- column unknown_loss: The part of it of which no recording of the store tells the loss; null where all of it is known.
-- column context_limit_tokens: The longest context that the model is published for; null where its file does not say.
-- column longest_request_tokens: Prompt and output of the longest request together.
-- column beyond_context_requests: Requests longer than the model's context; they are served all the same.
-- column p99_ttft_change_ratio: Change of `p99_ttft_ms` against the baseline; -0.25 is a quarter less.
-- column p99_itl_change_ratio: Change of `p99_itl_ms` against the baseline.
-- column throughput_change_ratio: Change of `output_tokens_per_s_per_accelerator` against the baseline.
-- column cost_change_ratio: Change of `usd_per_mtok_output` against the baseline.
-- column energy_change_ratio: Change of `energy_j_per_output_token` against the baseline.
-- column memory_change_ratio: Change of `kv_peak_held_bytes` against the baseline.
-- column certainty: The least certain input of the scenario.
-- column error: Why it failed; null if it did not.
WITH figures AS (
  SELECT
    scenario_id,
    max(value) FILTER (WHERE metric = 'p50_ttft_ms') AS p50_ttft_ms,
    max(value) FILTER (WHERE metric = 'p99_ttft_ms') AS p99_ttft_ms,
    max(value) FILTER (WHERE metric = 'p50_itl_ms') AS p50_itl_ms,
    max(value) FILTER (WHERE metric = 'p99_itl_ms') AS p99_itl_ms,
    max(value) FILTER (WHERE metric = 'output_tokens_per_s') AS output_tokens_per_s,
    max(value) FILTER (WHERE metric = 'output_tokens_per_s_per_accelerator') AS output_tokens_per_s_per_accelerator,
    max(value) FILTER (WHERE metric = 'usd_per_mtok_output') AS usd_per_mtok_output,
    max(value) FILTER (WHERE metric = 'usd_per_mtok_output_saturated') AS usd_per_mtok_output_saturated,
    max(value) FILTER (WHERE metric = 'usd_per_mtok_total') AS usd_per_mtok_total,
    max(value) FILTER (WHERE metric = 'energy_j_per_output_token') AS energy_j_per_output_token,
    max(value) FILTER (WHERE metric = 'kv_bytes_per_token') AS kv_bytes_per_token,
    max(value) FILTER (WHERE metric = 'kv_peak_held_bytes') AS kv_peak_held_bytes,
    max(value) FILTER (WHERE metric = 'hit_tokens_ratio') AS hit_tokens_ratio
  FROM metrics GROUP BY scenario_id
),
wide AS (
  SELECT
    s.name AS scenario, s.is_baseline, s.status, s.workload, s.model, s.policy, s.machine, s.offered_load_ratio, s.certainty,
    s.error, s.context_limit_tokens, s.longest_request_tokens, s.beyond_context_requests,
    s.scenario_id = min(CASE WHEN s.is_baseline THEN s.scenario_id END) OVER () AS is_base, s.scenario_id,
    f.p50_ttft_ms, f.p99_ttft_ms, f.p50_itl_ms, f.p99_itl_ms, f.output_tokens_per_s, f.output_tokens_per_s_per_accelerator, f.usd_per_mtok_output, f.usd_per_mtok_output_saturated, f.usd_per_mtok_total, f.energy_j_per_output_token, f.kv_bytes_per_token, f.kv_peak_held_bytes, f.hit_tokens_ratio
  FROM scenarios s LEFT JOIN figures f ON f.scenario_id = s.scenario_id
),
-- The baseline's figures beside those of each scenario: a join with itself would compute all of them twice.
beside AS (
  SELECT
    *,
    max(CASE WHEN is_base THEN p99_ttft_ms END) OVER () AS base_p99_ttft_ms,
    max(CASE WHEN is_base THEN p99_itl_ms END) OVER () AS base_p99_itl_ms,
    max(CASE WHEN is_base THEN output_tokens_per_s_per_accelerator END) OVER () AS base_output_tokens_per_s_per_accelerator,
    max(CASE WHEN is_base THEN usd_per_mtok_output END) OVER () AS base_usd_per_mtok_output,
    max(CASE WHEN is_base THEN energy_j_per_output_token END) OVER () AS base_energy_j_per_output_token,
    max(CASE WHEN is_base THEN kv_peak_held_bytes END) OVER () AS base_kv_peak_held_bytes
  FROM wide
)
SELECT
  w.scenario, w.status, w.p99_ttft_ms, w.p50_itl_ms, w.p99_itl_ms, w.output_tokens_per_s,
  w.usd_per_mtok_output_saturated, w.kv_peak_held_bytes, l.lost_mass_ratio, w.offered_load_ratio,
  w.scenario_id, w.is_baseline, w.workload, w.model, w.policy, w.machine, w.p50_ttft_ms,
  w.output_tokens_per_s_per_accelerator, w.usd_per_mtok_output, w.usd_per_mtok_total, w.energy_j_per_output_token,
  w.kv_bytes_per_token, w.hit_tokens_ratio, l.quantization_error_ratio, l.loss_recording,
  l.output_error, l.may_lose, l.unknown_loss, w.context_limit_tokens, w.longest_request_tokens,
  w.beyond_context_requests,
  w.p99_ttft_ms / nullif(w.base_p99_ttft_ms, 0) - 1 AS p99_ttft_change_ratio,
  w.p99_itl_ms / nullif(w.base_p99_itl_ms, 0) - 1 AS p99_itl_change_ratio,
  w.output_tokens_per_s_per_accelerator / nullif(w.base_output_tokens_per_s_per_accelerator, 0) - 1
    AS throughput_change_ratio,
  w.usd_per_mtok_output / nullif(w.base_usd_per_mtok_output, 0) - 1 AS cost_change_ratio,
  w.energy_j_per_output_token / nullif(w.base_energy_j_per_output_token, 0) - 1 AS energy_change_ratio,
  w.kv_peak_held_bytes / nullif(w.base_kv_peak_held_bytes, 0) - 1 AS memory_change_ratio,
  w.certainty, w.error
FROM beside w LEFT JOIN scenario_losses l ON l.scenario_id = w.scenario_id
ORDER BY scenario_id
