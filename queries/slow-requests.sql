-- Which users waited longest, and what for?
-- param limit int 10: How many requests per scenario.
-- param scenario int null: Only this scenario; null for all.
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column rank: 1 for the longest wait.
-- column request_id: The request.
-- column worst_wait_ms: The longer of the time to first token and the largest gap between two tokens, ms.
-- column cause: preempted, gap (one exceeds the time to first token), stage (most of that time went to requests that a stage sent first), queued (most of it), or prefill.
-- column stage_wait_ms: From arrival to the end of what stages sent for it, ms.
-- column queue_ms: From arrival to first admission, that wait included, ms.
-- column ttft_ms: From arrival to the first token, ms.
-- column max_itl_ms: Largest gap between two tokens, ms.
-- column e2e_ms: From arrival to the last token, ms.
-- column prompt_tokens: Tokens of the prompt.
-- column hit_tokens: Prompt tokens found in the prefix cache.
-- column output_tokens: Tokens generated.
-- column preemptions: Times it was preempted.
WITH waits AS (
  -- Few columns are ranked; the others are read for those that are shown.
  SELECT scenario_id, request_id, greatest(ttft_ns, coalesce(max_itl_ns, 0)) AS worst_wait_ns
  FROM request_costs WHERE ttft_ns IS NOT NULL AND NOT is_added AND ($scenario IS NULL OR scenario_id = $scenario)
),
ranked AS (
  SELECT *, row_number() OVER (PARTITION BY scenario_id ORDER BY worst_wait_ns DESC, request_id) AS rank FROM waits
),
worst AS (SELECT scenario_id, request_id, worst_wait_ns, rank FROM ranked WHERE rank <= $limit)
SELECT
  r.scenario_id, s.name AS scenario, w.rank, r.request_id, w.worst_wait_ns / 1e6 AS worst_wait_ms,
  CASE
    WHEN r.preemptions > 0 THEN 'preempted'
    WHEN r.max_itl_ns > r.ttft_ns THEN 'gap'
    WHEN r.stage_wait_ns * 2 > r.ttft_ns THEN 'stage'
    WHEN r.queue_ns * 2 > r.ttft_ns THEN 'queued'
    ELSE 'prefill'
  END AS cause,
  r.stage_wait_ns / 1e6 AS stage_wait_ms, r.queue_ns / 1e6 AS queue_ms, r.ttft_ns / 1e6 AS ttft_ms, r.max_itl_ns / 1e6 AS max_itl_ms, r.e2e_ns / 1e6 AS e2e_ms,
  r.prompt_tokens, r.hit_tokens, r.output_tokens, r.preemptions
FROM worst w
JOIN request_costs r ON r.scenario_id = w.scenario_id AND r.request_id = w.request_id
JOIN scenarios s ON s.scenario_id = w.scenario_id
ORDER BY scenario_id, rank
