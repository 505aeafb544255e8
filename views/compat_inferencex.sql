-- Scenarios under the names and units of InferenceX: seconds, and tokens per second and GPU.
-- column scenario_id: Number of the scenario within the run.
-- column hw: The machine with its variations.
-- column model: The model.
-- column framework: The serving engine's rules.
-- column precision: Number format of the weights.
-- column tp: Accelerators that share one copy of the model.
-- column median_ttft: Median time to first token, s.
-- column p99_ttft: 99th percentile of the time to first token, s.
-- column median_tpot: Median over requests of their mean time per output token, s.
-- column p99_tpot: 99th percentile of the same, s.
-- column median_itl: Median gap between two tokens, s.
-- column p99_itl: 99th percentile of the gap between two tokens, s.
-- column median_e2el: Median time from arrival to the last token, s.
-- column p99_e2el: 99th percentile of the same, s.
-- column median_intvty: Output tokens per second of the median request: 1 over `median_tpot`.
-- column tput_per_gpu: Tokens read or written per second and accelerator.
-- column output_tput_per_gpu: Output tokens per second and accelerator.
-- column input_tput_per_gpu: Prompt tokens per second and accelerator.
WITH wide AS (
  SELECT
    s.scenario_id, s.machine, s.model, s.engine, s.weight_dtype, s.tensor_parallel, s.accelerators,
    max(m.value) FILTER (WHERE m.metric = 'p50_ttft_ms') / 1000 AS median_ttft,
    max(m.value) FILTER (WHERE m.metric = 'p99_ttft_ms') / 1000 AS p99_ttft,
    max(m.value) FILTER (WHERE m.metric = 'p50_itl_ms') / 1000 AS median_itl,
    max(m.value) FILTER (WHERE m.metric = 'p99_itl_ms') / 1000 AS p99_itl,
    max(m.value) FILTER (WHERE m.metric = 'p50_e2e_ms') / 1000 AS median_e2el,
    max(m.value) FILTER (WHERE m.metric = 'p99_e2e_ms') / 1000 AS p99_e2el,
    max(m.value) FILTER (WHERE m.metric = 'total_tokens_per_s') AS total_tokens_per_s,
    max(m.value) FILTER (WHERE m.metric = 'output_tokens_per_s') AS output_tokens_per_s
  FROM scenarios s LEFT JOIN metrics m ON m.scenario_id = s.scenario_id
  WHERE s.status = 'ok'
  GROUP BY s.scenario_id, s.machine, s.model, s.engine, s.weight_dtype, s.tensor_parallel, s.accelerators
),
per_request AS (
  SELECT
    scenario_id, quantile_disc(mean_itl_ns, 0.5) / 1e9 AS median_tpot,
    quantile_disc(mean_itl_ns, 0.99) / 1e9 AS p99_tpot
  FROM request_costs WHERE mean_itl_ns IS NOT NULL AND NOT is_added GROUP BY scenario_id
)
SELECT
  w.scenario_id, w.machine AS hw, w.model, w.engine AS framework, w.weight_dtype AS precision, w.tensor_parallel AS tp,
  w.median_ttft, w.p99_ttft, r.median_tpot, r.p99_tpot, w.median_itl, w.p99_itl, w.median_e2el, w.p99_e2el,
  1 / nullif(r.median_tpot, 0) AS median_intvty, w.total_tokens_per_s / w.accelerators AS tput_per_gpu,
  w.output_tokens_per_s / w.accelerators AS output_tput_per_gpu,
  (w.total_tokens_per_s - w.output_tokens_per_s) / w.accelerators AS input_tput_per_gpu
FROM wide w LEFT JOIN per_request r ON r.scenario_id = w.scenario_id
