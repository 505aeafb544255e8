-- What would the same tokens cost under each price book: owned piece by piece, owned at a provider, or rented?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column prices: The price book.
-- column title: What kind of price it holds.
-- column price_date: Day on which it was read.
-- column is_chosen: Whether it is the scenario's own book.
-- column usd_per_accelerator_hour: Price of one accelerator for one hour; null where it is not disclosed.
-- column usd_per_mtok_output: US dollars per million output tokens at the load of the trace.
-- column usd_per_mtok_output_saturated: The same if requests came as fast as they are served.
-- column capex_usd: Capital for one accelerator, where the price follows from owning it.
-- column life_years: Years over which it is written off.
-- column pue: Power of the facility over that of what stands in it.
-- column usd_per_kwh: Price of electricity.
-- column w_per_accelerator: All-in power of one accelerator, W.
-- column certainty: How well the price is known.
-- column source: Where it comes from.
WITH used AS (
  SELECT
    s.scenario_id, s.name AS scenario, s.prices AS own_book, s.machine, s.accelerators,
    max(m.value) FILTER (WHERE m.metric = 'duration_s') AS duration_s,
    max(m.value) FILTER (WHERE m.metric = 'output_tokens') AS output_tokens,
    max(m.value) FILTER (WHERE m.metric = 'usd_per_mtok_output') AS usd_per_mtok_output,
    max(m.value) FILTER (WHERE m.metric = 'usd_per_mtok_output_saturated') AS usd_per_mtok_output_saturated
  FROM scenarios s LEFT JOIN metrics m ON m.scenario_id = s.scenario_id
  WHERE s.status = 'ok'
  GROUP BY s.scenario_id, s.name, s.prices, s.machine, s.accelerators
)
SELECT
  u.scenario_id, u.scenario, p.prices, p.title, p.price_date, p.prices = u.own_book AS is_chosen,
  p.usd_per_accelerator_hour,
  p.usd_per_accelerator_hour * u.accelerators * u.duration_s / 3600 * 1e6 / nullif(u.output_tokens, 0)
    AS usd_per_mtok_output,
  p.usd_per_accelerator_hour * u.accelerators * u.duration_s / 3600 * 1e6 / nullif(u.output_tokens, 0)
    * u.usd_per_mtok_output_saturated / nullif(u.usd_per_mtok_output, 0) AS usd_per_mtok_output_saturated,
  p.capex_usd, p.life_years, p.pue, p.usd_per_kwh, p.w_per_accelerator, p.certainty, p.source
FROM used u JOIN prices p ON p.scenario_id = u.scenario_id
ORDER BY scenario_id, prices
