-- Which scenario is best under which business goal: price, utilisation or memory?
-- column lens: price (what output is sold for under the promise that is kept), utilisation (what a token costs at full load; at the load of the trace for all where that is unknown for one) or memory (what it costs to hold context; between equals what reads less is first).
-- column lens_position: Order of the lens.
-- column rank: 1 for the best.
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column is_baseline: Whether the others are compared with it.
-- column figure: What it is ranked by.
-- column value: That figure; null where the price of the accelerators or a tariff is unknown, which ranks behind all that are known.
-- column change_ratio: Its change against the baseline.
-- column second_figure: What decides between equals.
-- column second_value: That figure.
-- column stored_bytes: KV that a request stores at its end under the policy, mean over requests that decode; before the machine's replicas.
-- column read_bytes: KV that such a request reads for an output token, mean; what a selection leaves unread is not in it.
-- column unknown_loss: What of the policy's loss no recording of the store tells; `nothing` where all is known.
-- column promise: The promise that its tokens are sold under; null if none.
-- column bound_by: The booth that takes the most of its step time.
-- column is_overloaded: Whether it is offered more than it can serve, so that its latencies describe a backlog.
-- column certainty: The least certain input of the scenario.
WITH figured AS (
  SELECT
    scenario_id,
    max(value) FILTER (WHERE metric = 'p99_itl_ms') AS p99_itl_ms,
    max(value) FILTER (WHERE metric = 'usd_per_mtok_output_saturated') AS usd_saturated,
    max(value) FILTER (WHERE metric = 'usd_per_mtok_output') AS usd,
    max(value) FILTER (WHERE metric = 'output_tokens_per_s_per_accelerator') AS speed,
    max(value) FILTER (WHERE metric = 'kv_capacity_tokens') AS capacity
  FROM metrics GROUP BY scenario_id
),
sold AS (
  SELECT scenario_id, max(usd_per_mtok_output) AS price, max(promise) AS promise FROM promises WHERE is_sold GROUP BY scenario_id
),
wide AS (
  SELECT
    s.scenario_id, s.name AS scenario, s.is_baseline, s.certainty, s.workload, s.demand_id, s.bound_by,
    coalesce(s.offered_load_ratio, 0) > 1 AS is_overloaded, o.price, o.promise, m.p99_itl_ms, m.usd_saturated, m.usd,
    m.speed, m.capacity / s.accelerators AS capacity,
    p.usd_per_accelerator_hour * s.accelerators * 1e6 / nullif(m.capacity, 0) AS usd_held,
    max(CASE WHEN s.is_baseline THEN s.workload END) OVER () AS base_workload
  FROM scenarios s
  LEFT JOIN figured m ON m.scenario_id = s.scenario_id
  LEFT JOIN sold o ON o.scenario_id = s.scenario_id
  LEFT JOIN prices p ON p.scenario_id = s.scenario_id AND p.prices = s.prices
  WHERE s.status = 'ok'
),
-- What is asked of another workload says nothing about this one. Costs at full load are not held against costs at the load of
-- the trace.
same AS (
  SELECT *, count(*) FILTER (WHERE usd IS NOT NULL AND usd_saturated IS NULL) OVER () = 0 AS is_full_known
  FROM wide WHERE base_workload IS NULL OR workload = base_workload
),
lens (lens, lens_position) AS (VALUES ('price', 1), ('utilisation', 2), ('memory', 3)),
-- Each scenario once for each lens: what it is read more than once for would be computed as often.
figures AS (
  SELECT
    l.lens, l.lens_position, w.*,
    CASE l.lens
      WHEN 'price' THEN 'price_usd_per_mtok_output'
      WHEN 'memory' THEN 'usd_per_mtok_held_hour'
      ELSE CASE WHEN w.is_full_known THEN 'usd_per_mtok_output_saturated' ELSE 'usd_per_mtok_output' END
    END AS figure,
    CASE l.lens
      WHEN 'price' THEN w.price
      WHEN 'memory' THEN w.usd_held
      ELSE CASE WHEN w.is_full_known THEN w.usd_saturated ELSE w.usd END
    END AS value,
    CASE l.lens
      WHEN 'price' THEN 'p99_itl_ms'
      WHEN 'memory' THEN 'kv_tokens_per_accelerator'
      ELSE 'output_tokens_per_s_per_accelerator'
    END AS second_figure,
    CASE l.lens WHEN 'price' THEN w.p99_itl_ms WHEN 'memory' THEN w.capacity ELSE w.speed END AS second_value
  FROM same w CROSS JOIN lens l
),
decoded AS (
  SELECT
    demand_id,
    sum(CAST(stored_bytes AS DOUBLE)) / count(*) FILTER (WHERE layer_group = 0) AS stored_bytes,
    sum(CAST(read_bytes AS DOUBLE)) / sum(CAST(last_step AS BIGINT)) FILTER (WHERE layer_group = 0) AS read_bytes
  FROM demand WHERE phase = 'decode'
  GROUP BY demand_id
)
SELECT
  f.lens, f.lens_position,
  row_number() OVER (
    PARTITION BY f.lens ORDER BY f.is_overloaded AND f.lens = 'price',
      CASE WHEN f.lens = 'price' THEN -f.value ELSE f.value END NULLS LAST,
      CASE WHEN f.lens = 'price' THEN f.second_value ELSE -f.second_value END NULLS LAST,
      CASE WHEN f.lens = 'memory' THEN d.read_bytes END NULLS LAST, f.scenario_id
  ) AS rank,
  f.scenario_id, f.scenario, f.is_baseline, f.figure, f.value,
  f.value / nullif(max(CASE WHEN f.is_baseline THEN f.value END) OVER (PARTITION BY f.lens), 0) - 1 AS change_ratio,
  f.second_figure, f.second_value, d.stored_bytes, d.read_bytes, coalesce(l.unknown_loss, 'nothing') AS unknown_loss,
  f.promise, f.bound_by, f.is_overloaded, f.certainty
FROM figures f
LEFT JOIN decoded d ON d.demand_id = f.demand_id
LEFT JOIN scenario_losses l ON l.scenario_id = f.scenario_id
ORDER BY lens_position, rank
