-- What do the tokens earn, and what is left of it after their cost?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column tariff: The book of token prices; null where nothing is sold.
-- column promise: The dearest promise that the replay kept, which the tokens are sold for; null if none.
-- column usd_total: Cost of all accelerators over the replay, US dollars.
-- column revenue_usd: What the tokens of users' finished requests are sold for, US dollars.
-- column revenue_usd_per_mtok_output: Revenue, prompts included, per million output tokens.
-- column usd_per_mtok_output: Cost per million output tokens.
-- column markup_ratio: Profit over cost at the load of the trace.
-- column gross_margin_ratio: Profit over revenue at the load of the trace.
-- column markup_saturated_ratio: Profit over cost if requests came just as fast as they can be served.
-- column gross_margin_saturated_ratio: Profit over revenue in that case, the promise still kept.
-- column profit_usd_per_accelerator_hour: Profit of one accelerator in one hour.
-- column goodput_requests_per_s: Requests per second that were themselves served as promised.
-- column goodput_ratio: Their share of all requests of users.
WITH wide AS (
  SELECT
    s.scenario_id, s.name AS scenario, s.tariff,
    max(m.value) FILTER (WHERE m.metric = 'usd_total') AS usd_total,
    max(m.value) FILTER (WHERE m.metric = 'revenue_usd') AS revenue_usd,
    max(m.value) FILTER (WHERE m.metric = 'revenue_usd_per_mtok_output') AS revenue_usd_per_mtok_output,
    max(m.value) FILTER (WHERE m.metric = 'usd_per_mtok_output') AS usd_per_mtok_output,
    max(m.value) FILTER (WHERE m.metric = 'markup_ratio') AS markup_ratio,
    max(m.value) FILTER (WHERE m.metric = 'gross_margin_ratio') AS gross_margin_ratio,
    max(m.value) FILTER (WHERE m.metric = 'markup_saturated_ratio') AS markup_saturated_ratio,
    max(m.value) FILTER (WHERE m.metric = 'gross_margin_saturated_ratio') AS gross_margin_saturated_ratio,
    max(m.value) FILTER (WHERE m.metric = 'profit_usd_per_accelerator_hour') AS profit_usd_per_accelerator_hour,
    max(m.value) FILTER (WHERE m.metric = 'goodput_requests_per_s') AS goodput_requests_per_s,
    max(m.value) FILTER (WHERE m.metric = 'goodput_ratio') AS goodput_ratio
  FROM scenarios s LEFT JOIN metrics m ON m.scenario_id = s.scenario_id
  WHERE s.status = 'ok'
  GROUP BY s.scenario_id, s.name, s.tariff
)
SELECT
  w.scenario_id, w.scenario, w.tariff, p.promise, w.usd_total, w.revenue_usd, w.revenue_usd_per_mtok_output,
  w.usd_per_mtok_output, w.markup_ratio, w.gross_margin_ratio, w.markup_saturated_ratio,
  w.gross_margin_saturated_ratio, w.profit_usd_per_accelerator_hour, w.goodput_requests_per_s, w.goodput_ratio
FROM wide w LEFT JOIN promises p ON p.scenario_id = w.scenario_id AND p.is_sold
ORDER BY scenario_id
