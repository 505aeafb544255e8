-- Do prefix hits shorten the time to first token, or does the queue eat what they save?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column hits: Share of the prompt that the cache held: none, up to 25%, up to 50%, up to 75%, up to 100%.
-- column position: Order of the shares.
-- column requests: Requests of users with such a share; those without a first token are left out.
-- column prompt_tokens: Tokens of their prompts.
-- column hit_tokens: Of these, found in the prefix cache.
-- column p50_ttft_ms: Median time to first token, ms.
-- column p99_ttft_ms: 99th percentile of the time to first token, ms.
-- column p50_queue_ms: Median wait for admission, what stages send first included, ms.
-- column p50_prefill_ms: Median time from admission to the first token, ms.
WITH placed AS (
  SELECT
    scenario_id, ttft_ns, queue_ns, ttft_ns - queue_ns AS prefill_ns,
    CAST(prompt_tokens AS BIGINT) AS prompt_tokens, CAST(hit_tokens AS BIGINT) AS hit_tokens,
    CASE
      WHEN hit_tokens = 0 THEN 0
      WHEN 4 * CAST(hit_tokens AS BIGINT) <= CAST(prompt_tokens AS BIGINT) THEN 1
      WHEN 2 * CAST(hit_tokens AS BIGINT) <= CAST(prompt_tokens AS BIGINT) THEN 2
      WHEN 4 * CAST(hit_tokens AS BIGINT) <= 3 * CAST(prompt_tokens AS BIGINT) THEN 3
      ELSE 4
    END AS position
  FROM request_costs WHERE ttft_ns IS NOT NULL AND queue_ns IS NOT NULL AND NOT is_added
)
SELECT
  r.scenario_id, s.name AS scenario,
  CASE r.position
    WHEN 0 THEN 'none' WHEN 1 THEN 'up to 25%' WHEN 2 THEN 'up to 50%' WHEN 3 THEN 'up to 75%' ELSE 'up to 100%'
  END AS hits,
  r.position, count(*) AS requests, CAST(sum(r.prompt_tokens) AS BIGINT) AS prompt_tokens,
  CAST(sum(r.hit_tokens) AS BIGINT) AS hit_tokens,
  quantile_disc(r.ttft_ns, 0.5) / 1e6 AS p50_ttft_ms,
  quantile_disc(r.ttft_ns, 0.99) / 1e6 AS p99_ttft_ms,
  quantile_disc(r.queue_ns, 0.5) / 1e6 AS p50_queue_ms,
  quantile_disc(r.prefill_ns, 0.5) / 1e6 AS p50_prefill_ms
FROM placed r JOIN scenarios s ON s.scenario_id = r.scenario_id
GROUP BY r.scenario_id, s.name, r.position
ORDER BY scenario_id, position
