-- What do a million tokens cost, at the utilisation that the replay found?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column prices: The price book.
-- column usd_per_accelerator_hour: Price of one accelerator for one hour; null where it is not disclosed.
-- column accelerators: Accelerators in all.
-- column usd_per_hour: Cost of all accelerators for one hour.
-- column utilisation_ratio: Time in which the engines were busy over the span of the replay.
-- column output_tokens_per_s: Output tokens per second, all accelerators together.
-- column usd_per_mtok_total: US dollars per million tokens read or written.
-- column usd_per_mtok_input: US dollars per million prompt tokens.
-- column usd_per_mtok_output: US dollars per million output tokens.
-- column usd_per_mtok_output_saturated: The same per million output tokens if requests came as fast as they are served.
-- column usd_total: US dollars of the whole replay.
-- column usd_prompts: Of these, for steps and shares of steps that compute prompt tokens.
-- column usd_outputs: Of these, for output tokens.
-- column usd_idle: Of these, for the time without a step; the three sum to the whole.
-- column usd_per_mtok_cached: Rent of the memory that cached blocks take per million prompt tokens found there.
-- column price_certainty: How well the price of the accelerators is known; assumed for a machine with variations.
-- column price_source: Where that price comes from; a machine with variations has the price of its preset.
WITH wide AS (
  SELECT
    s.scenario_id, s.name AS scenario, s.prices, s.machine, s.accelerators,
    max(m.value) FILTER (WHERE m.metric = 'utilisation_ratio') AS utilisation_ratio,
    max(m.value) FILTER (WHERE m.metric = 'output_tokens_per_s') AS output_tokens_per_s,
    max(m.value) FILTER (WHERE m.metric = 'usd_per_mtok_total') AS usd_per_mtok_total,
    max(m.value) FILTER (WHERE m.metric = 'usd_per_mtok_input') AS usd_per_mtok_input,
    max(m.value) FILTER (WHERE m.metric = 'usd_per_mtok_output') AS usd_per_mtok_output,
    max(m.value) FILTER (WHERE m.metric = 'usd_per_mtok_output_saturated') AS usd_per_mtok_output_saturated,
    max(m.value) FILTER (WHERE m.metric = 'usd_total') AS usd_total,
    max(m.value) FILTER (WHERE m.metric = 'usd_prompts') AS usd_prompts,
    max(m.value) FILTER (WHERE m.metric = 'usd_outputs') AS usd_outputs,
    max(m.value) FILTER (WHERE m.metric = 'usd_idle') AS usd_idle,
    max(m.value) FILTER (WHERE m.metric = 'usd_per_mtok_cached') AS usd_per_mtok_cached
  FROM scenarios s LEFT JOIN metrics m ON m.scenario_id = s.scenario_id
  WHERE s.status = 'ok'
  GROUP BY s.scenario_id, s.name, s.prices, s.machine, s.accelerators
)
SELECT
  w.scenario_id, w.scenario, w.prices, p.usd_per_accelerator_hour, w.accelerators,
  p.usd_per_accelerator_hour * w.accelerators AS usd_per_hour, w.utilisation_ratio, w.output_tokens_per_s,
  w.usd_per_mtok_total, w.usd_per_mtok_input, w.usd_per_mtok_output,
  w.usd_per_mtok_output_saturated, w.usd_total, w.usd_prompts, w.usd_outputs, w.usd_idle, w.usd_per_mtok_cached,
  p.certainty AS price_certainty, p.source AS price_source
FROM wide w LEFT JOIN prices p ON p.scenario_id = w.scenario_id AND p.prices = w.prices
ORDER BY scenario_id
