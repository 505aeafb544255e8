-- Which promises does each scenario keep, and what would its tokens earn under each?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column tariff: The book of token prices.
-- column position: Order of the promise in the book.
-- column promise: The promise.
-- column limit_ttft_ms: Longest time to the first token, ms; null without a limit.
-- column limit_itl_ms: Longest time between two tokens, ms; null without a limit.
-- column required_ratio: Share of requests and of tokens that must be within the limits.
-- column ttft_kept_ratio: Share of requests whose first token was.
-- column itl_kept_ratio: Share of tokens that were; null without a second token.
-- column is_kept: Whether both shares are as large as required.
-- column is_sold: Whether it is the dearest promise that is kept.
-- column good_requests: Requests that were themselves served within the limits.
-- column goodput_requests_per_s: These per second.
-- column usd_per_mtok_input: Price of a million computed prompt tokens, US dollars.
-- column usd_per_mtok_cached: Price of a million cached prompt tokens, US dollars.
-- column usd_per_mtok_output: Price of a million output tokens, US dollars.
-- column revenue_usd: What the tokens of the replay come to at these prices, US dollars.
-- column gross_margin_ratio: What would be left of that after the cost, whether or not the promise is kept.
-- column certainty: The least certain of the prices and limits.
-- column source: Where the price of output comes from.
WITH costs AS (
  SELECT
    scenario_id, max(value) FILTER (WHERE metric = 'usd_total') AS usd_total,
    max(value) FILTER (WHERE metric = 'duration_s') AS duration_s
  FROM metrics GROUP BY scenario_id
)
SELECT
  p.scenario_id, s.name AS scenario, p.tariff, p.position, p.promise, p.limit_ttft_ns / 1e6 AS limit_ttft_ms,
  p.limit_itl_ns / 1e6 AS limit_itl_ms, p.required_ratio, p.ttft_kept_ratio, p.itl_kept_ratio, p.is_kept, p.is_sold,
  p.good_requests, p.good_requests / nullif(c.duration_s, 0) AS goodput_requests_per_s,
  p.usd_per_mtok_input, p.usd_per_mtok_cached, p.usd_per_mtok_output, p.revenue_usd,
  1 - c.usd_total / nullif(p.revenue_usd, 0) AS gross_margin_ratio, p.certainty, p.source
FROM promises p JOIN scenarios s ON s.scenario_id = p.scenario_id LEFT JOIN costs c ON c.scenario_id = p.scenario_id
ORDER BY scenario_id, position
