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
    p.scenario_id, s.name AS scenario, s.prices, p.p99_itl_ns AS base_itl_ns, p.p99_ttft_ns AS base_ttft_ns,
    p.asked_ns_per_output_token IS NOT NULL AS is_full,
    coalesce(p.asked_ns_per_output_token, p.ns_per_output_token) AS ns,
    coalesce(p.asked_ns_per_output_token, p.ns_per_output_token)
      * m.usd_total / nullif(m.duration_s * s.instances, 0) / 1e9 AS usd_per_token
  FROM spec p JOIN scenarios s ON s.scenario_id = p.scenario_id LEFT JOIN money m ON m.scenario_id = p.scenario_id
  WHERE p.factor = 1 AND p.resource_position = 0
),
books AS (
  SELECT
    b.*, k.prices AS book, k.certainty, k.usd_per_accelerator_hour / own.usd_per_accelerator_hour AS factor,
    row_number() OVER (PARTITION BY b.scenario_id ORDER BY k.usd_per_accelerator_hour, k.prices) AS cheapest,
    row_number() OVER (PARTITION BY b.scenario_id ORDER BY k.usd_per_accelerator_hour DESC, k.prices) AS dearest
  FROM base b
  JOIN prices own ON own.scenario_id = b.scenario_id AND own.prices = b.prices
  JOIN prices k ON k.scenario_id = b.scenario_id AND k.prices <> b.prices
  WHERE k.usd_per_accelerator_hour > 0 AND own.usd_per_accelerator_hour > 0
),
settings AS (
  -- The sums take what the tables say of the column off it, which a union of two tables may not differ in.
  SELECT
    p.scenario_id + 0 AS scenario_id, b.scenario || '' AS scenario, b.base_itl_ns + 0 AS base_itl_ns,
    b.base_ttft_ns + 0 AS base_ttft_ns, b.is_full, p.resource_position AS position,
    CASE WHEN p.resource = 'host' THEN 'host_speed' ELSE p.resource END AS input,
    CASE WHEN p.factor < 1 THEN 'half' ELSE 'twice' END AS setting, p.factor,
    b.usd_per_token * CASE WHEN b.is_full THEN p.asked_ns_per_output_token ELSE p.ns_per_output_token END
      / nullif(b.ns, 0) AS usd_per_token,
    b.ns / nullif(CASE WHEN b.is_full THEN p.asked_ns_per_output_token ELSE p.ns_per_output_token END, 0) - 1
      AS change_ratio, p.p99_itl_ns, p.p99_ttft_ns, 'assumed' AS certainty, p.error
  FROM spec p JOIN base b ON b.scenario_id = p.scenario_id
  WHERE p.factor IN (0.5, 2.0)
  UNION ALL
  SELECT
    scenario_id + 0, scenario || '', base_itl_ns + 0, base_ttft_ns + 0, is_full, 99, 'price', book, factor,
    usd_per_token * factor, 1 / factor - 1, base_itl_ns - 0, base_ttft_ns - 0, certainty, NULL
  FROM books
  WHERE cheapest = 1 OR dearest = 1
),
spans AS (
  SELECT *, coalesce(max(abs(change_ratio)) OVER (PARTITION BY scenario_id, input), 0) AS span_ratio FROM settings
)
SELECT
  scenario_id, scenario, dense_rank() OVER (PARTITION BY scenario_id ORDER BY span_ratio DESC, position) AS place, input,
  setting, factor, CASE WHEN is_full THEN 'full load' ELSE 'steps' END AS basis,
  1 / nullif(usd_per_token, 0) AS tokens_per_usd, usd_per_token * 1e6 AS usd_per_mtok, change_ratio, span_ratio,
  p99_itl_ns / 1e6 AS p99_itl_ms,
  CAST(p99_itl_ns AS DOUBLE) / nullif(base_itl_ns, 0) - 1 AS p99_itl_change_ratio, p99_ttft_ns / 1e6 AS p99_ttft_ms,
  CAST(p99_ttft_ns AS DOUBLE) / nullif(base_ttft_ns, 0) - 1 AS p99_ttft_change_ratio, certainty, error
FROM spans
ORDER BY scenario_id, place, factor, setting
