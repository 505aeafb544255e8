-- On which input does the result hang most: what do half and twice of each do to tokens per dollar and to the tails?
-- column scenario_id: Number of the scenario within the run: the baseline.
-- column scenario: What the user calls it.
-- column place: 1 for the input that moves tokens per dollar most.
-- column input: memory_bandwidth, link, compute, memory_capacity, host_speed (its time per step) or price (of an accelerator-hour).
-- column setting: What it is set to.
-- column factor: Times as much of it.
-- column basis: full load (if requests came just as fast as they can be served) or steps (the time of all steps, where that is not known).
-- column tokens_per_usd: Output tokens for a dollar on that basis; null where the price of the accelerators is not disclosed.
-- column usd_per_mtok: The same as US dollars per million output tokens.
-- column change_ratio: Change of tokens per dollar against the scenario as it is, all else equal.
-- column span_ratio: The larger change of the two settings, without its sign.
-- column p99_itl_ms: 99th percentile of the gap between two tokens, ms.
-- column p99_itl_change_ratio: Its change.
-- column p99_ttft_ms: 99th percentile of the time to the first token, ms.
-- column p99_ttft_change_ratio: Its change.
-- column certainty: How well the setting is known: a resource that was varied is assumed, another price book is what it is.
-- column error: Why it could not be replayed.
WITH money AS (
  SELECT
    scenario_id, max(value) FILTER (WHERE metric = 'usd_total') AS usd_total,
    max(value) FILTER (WHERE metric = 'duration_s') AS duration_s
  FROM metrics GROUP BY scenario_id
),
base AS (
  SELECT
    p.scenario_id, s.name AS scenario, p.p99_itl_ns, p.p99_ttft_ns, p.asked_ns_per_output_token IS NOT NULL AS is_full,
    coalesce(p.asked_ns_per_output_token, p.ns_per_output_token) AS ns,
    coalesce(p.asked_ns_per_output_token, p.ns_per_output_token)
      * m.usd_total / nullif(m.duration_s * s.instances, 0) / 1e9 AS usd_per_token
  FROM spec p JOIN scenarios s ON s.scenario_id = p.scenario_id LEFT JOIN money m ON m.scenario_id = p.scenario_id
  WHERE p.factor = 1 AND p.resource_position = 0
),
books AS (
  SELECT
    p.scenario_id, p.prices, p.certainty, p.usd_per_accelerator_hour AS usd, p.prices = s.prices AS is_own,
    max(CASE WHEN p.prices = s.prices THEN p.usd_per_accelerator_hour END) OVER (PARTITION BY p.scenario_id) AS own_usd
  FROM prices p JOIN scenarios s ON s.scenario_id = p.scenario_id
),
others AS (
  SELECT
    *, row_number() OVER (PARTITION BY scenario_id ORDER BY usd, prices) AS cheapest,
    row_number() OVER (PARTITION BY scenario_id ORDER BY usd DESC, prices) AS dearest
  FROM books WHERE NOT is_own AND usd > 0 AND own_usd > 0
),
-- The sums take what the tables say of the column off it, which a union of two tables may not differ in.
inputs AS (
  SELECT
    scenario_id + 0 AS scenario_id, resource_position AS position,
    CASE WHEN resource = 'host' THEN 'host_speed' ELSE resource END AS input,
    CASE WHEN factor < 1 THEN 'half' ELSE 'twice' END AS setting, factor, asked_ns_per_output_token, ns_per_output_token,
    p99_itl_ns, p99_ttft_ns, 'assumed' AS certainty, error
  FROM spec WHERE factor IN (0.5, 2.0)
  UNION ALL
  SELECT scenario_id + 0, 99, 'price', prices, usd / own_usd, NULL, NULL, NULL, NULL, certainty, NULL
  FROM others WHERE cheapest = 1 OR dearest = 1
),
-- What a token takes beside what it took; a price changes no time.
settings AS (
  SELECT
    i.*, b.scenario, b.is_full, b.ns, b.usd_per_token AS base_usd, b.p99_itl_ns AS base_itl_ns,
    b.p99_ttft_ns AS base_ttft_ns, i.input = 'price' AS is_price,
    CASE
      WHEN i.input = 'price' THEN b.ns * i.factor
      WHEN b.is_full THEN i.asked_ns_per_output_token
      ELSE i.ns_per_output_token
    END AS paid_ns
  FROM inputs i JOIN base b ON b.scenario_id = i.scenario_id
),
spans AS (
  SELECT
    *, coalesce(max(abs(ns / nullif(paid_ns, 0) - 1)) OVER (PARTITION BY scenario_id, input), 0) AS span_ratio,
    CASE WHEN is_price THEN base_itl_ns ELSE p99_itl_ns END AS itl_ns,
    CASE WHEN is_price THEN base_ttft_ns ELSE p99_ttft_ns END AS ttft_ns
  FROM settings
)
SELECT
  scenario_id, scenario, dense_rank() OVER (PARTITION BY scenario_id ORDER BY span_ratio DESC, position) AS place, input,
  setting, factor, CASE WHEN is_full THEN 'full load' ELSE 'steps' END AS basis,
  1 / nullif(base_usd * paid_ns / nullif(ns, 0), 0) AS tokens_per_usd,
  base_usd * paid_ns / nullif(ns, 0) * 1e6 AS usd_per_mtok, ns / nullif(paid_ns, 0) - 1 AS change_ratio, span_ratio,
  itl_ns / 1e6 AS p99_itl_ms, CAST(itl_ns AS DOUBLE) / nullif(base_itl_ns, 0) - 1 AS p99_itl_change_ratio,
  ttft_ns / 1e6 AS p99_ttft_ms, CAST(ttft_ns AS DOUBLE) / nullif(base_ttft_ns, 0) - 1 AS p99_ttft_change_ratio,
  certainty, error
FROM spans
ORDER BY scenario_id, place, factor, setting
