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
WITH wide AS (
  SELECT
    s.scenario_id, s.name AS scenario, s.is_baseline, s.accelerators, s.certainty, s.machine, s.prices, s.workload,
    s.model, s.policy, coalesce(s.offered_load_ratio, 0) > 1 AS is_overloaded,
    max(o.usd_per_mtok_output) AS price,
    max(m.value) FILTER (WHERE m.metric = 'p99_itl_ms') AS p99_itl_ms,
    max(m.value) FILTER (WHERE m.metric = 'usd_per_mtok_output_saturated') AS usd_saturated,
    max(m.value) FILTER (WHERE m.metric = 'usd_per_mtok_output') AS usd,
    max(m.value) FILTER (WHERE m.metric = 'output_tokens_per_s_per_accelerator') AS speed,
    max(m.value) FILTER (WHERE m.metric = 'kv_capacity_tokens') AS capacity
  FROM scenarios s
  LEFT JOIN metrics m ON m.scenario_id = s.scenario_id
  LEFT JOIN promises o ON o.scenario_id = s.scenario_id AND o.is_sold
  WHERE s.status = 'ok'
  GROUP BY s.scenario_id, s.name, s.is_baseline, s.accelerators, s.certainty, s.machine, s.prices, s.workload,
    s.model, s.policy, s.offered_load_ratio
),
decoded AS (
  SELECT
    workload, model, policy,
    sum(CAST(stored_bytes AS DOUBLE)) / count(*) FILTER (WHERE layer_group = 0) AS stored_bytes,
    sum(CAST(read_bytes AS DOUBLE)) / sum(CAST(last_step AS BIGINT)) FILTER (WHERE layer_group = 0) AS read_bytes
  FROM demand WHERE phase = 'decode'
  GROUP BY workload, model, policy
),
-- What is asked of another workload says nothing about this one.
same AS (
  SELECT * FROM wide
  WHERE workload = (SELECT max(workload) FROM wide WHERE is_baseline) OR NOT EXISTS (SELECT 1 FROM wide WHERE is_baseline)
),
-- Costs at full load are not held against costs at the load of the trace.
at_full_load AS (SELECT count(*) = 0 AS is_known FROM same WHERE usd IS NOT NULL AND usd_saturated IS NULL),
figures AS (
  SELECT
    'price' AS lens, 1 AS lens_position, scenario_id, scenario, is_baseline, is_overloaded, certainty,
    'price_usd_per_mtok_output' AS figure, price AS value, -price AS key, 'p99_itl_ms' AS second_figure,
    p99_itl_ms AS second_value, p99_itl_ms AS second_key
  FROM same
  UNION ALL
  SELECT
    'utilisation', 2, scenario_id, scenario, is_baseline, is_overloaded, certainty,
    CASE WHEN is_known THEN 'usd_per_mtok_output_saturated' ELSE 'usd_per_mtok_output' END,
    CASE WHEN is_known THEN usd_saturated ELSE usd END, CASE WHEN is_known THEN usd_saturated ELSE usd END,
    'output_tokens_per_s_per_accelerator', speed, -speed
  FROM same CROSS JOIN at_full_load
  UNION ALL
  SELECT
    'memory', 3, w.scenario_id, w.scenario, w.is_baseline, w.is_overloaded, w.certainty, 'usd_per_mtok_held_hour',
    p.usd_per_accelerator_hour * w.accelerators * 1e6 / nullif(w.capacity, 0),
    p.usd_per_accelerator_hour * w.accelerators * 1e6 / nullif(w.capacity, 0), 'kv_tokens_per_accelerator',
    w.capacity / w.accelerators, -w.capacity / w.accelerators
  FROM same w LEFT JOIN prices p ON p.prices = w.prices AND p.machine = w.machine
),
base AS (SELECT lens, max(value) AS base_value FROM figures WHERE is_baseline GROUP BY lens),
booths AS (
  SELECT
    scenario_id, bound_by,
    row_number() OVER (PARTITION BY scenario_id ORDER BY sum(total_ns) DESC, bound_by) AS place
  FROM step_costs GROUP BY scenario_id, bound_by
)
SELECT
  f.lens, f.lens_position,
  row_number() OVER (
    PARTITION BY f.lens ORDER BY f.is_overloaded AND f.lens = 'price', f.key NULLS LAST, f.second_key NULLS LAST,
      CASE WHEN f.lens = 'memory' THEN d.read_bytes END NULLS LAST, f.scenario_id
  ) AS rank,
  f.scenario_id, f.scenario, f.is_baseline, f.figure, f.value, f.value / nullif(b.base_value, 0) - 1 AS change_ratio,
  f.second_figure, f.second_value, d.stored_bytes, d.read_bytes, coalesce(l.unknown_loss, 'nothing') AS unknown_loss, p.promise, o.bound_by, f.is_overloaded, f.certainty
FROM figures f
JOIN same w ON w.scenario_id = f.scenario_id
LEFT JOIN decoded d ON d.workload = w.workload AND d.model = w.model AND d.policy = w.policy
LEFT JOIN scenario_losses l ON l.scenario_id = f.scenario_id
LEFT JOIN base b ON b.lens = f.lens
LEFT JOIN promises p ON p.scenario_id = f.scenario_id AND p.is_sold
LEFT JOIN booths o ON o.scenario_id = f.scenario_id AND o.place = 1
ORDER BY lens_position, rank
