-- Tenants in each scenario: what they sent, what the cache spared them, what they warmed it with, and what they cost.
-- column scenario_id: Number of the scenario within the run.
-- column tenant: Who sent the requests; null where the source names nobody.
-- column requests: Requests of users that were served to the end.
-- column prompt_tokens: Tokens of their prompts.
-- column hit_tokens: Prompt tokens found in the prefix cache.
-- column hit_tokens_ratio: Hits over prompt tokens.
-- column hit_share_ratio: Share of the tenant in the hits of all tenants.
-- column computed_tokens: Tokens computed in prefills, of what stages send for its turns too: what warms the cache for all.
-- column computed_share_ratio: Share of the tenant in what all tenants computed.
-- column output_tokens: Tokens that users get.
-- column machine_ns: Step time, shared by computed tokens, of what stages send for its turns too, ns.
-- column cost_usd: Its cost, US dollars; null where the price of the accelerators is not disclosed.
-- column revenue_usd: What the tokens are sold for, US dollars; null without a tariff or a kept promise.
WITH sent AS (
  -- What a stage sends belongs to whose turn it is sent for.
  SELECT a.scenario_id, a.request_id AS added_id, min(t.request_id) AS request_id
  FROM session_turns a
  JOIN session_turns t
    ON t.scenario_id = a.scenario_id AND t.session = a.session AND t.turn = a.turn AND t.role = 'recorded'
  WHERE a.role <> 'recorded'
  GROUP BY a.scenario_id, a.request_id
),
served AS (
  SELECT
    c.scenario_id, r.tenant, count(*) FILTER (WHERE NOT c.is_added) AS requests,
    coalesce(sum(CAST(c.prompt_tokens AS BIGINT)) FILTER (WHERE NOT c.is_added), 0) AS prompt_tokens,
    coalesce(sum(CAST(c.hit_tokens AS BIGINT)) FILTER (WHERE NOT c.is_added), 0) AS hit_tokens,
    sum(CAST(c.computed_tokens AS BIGINT)) AS computed_tokens,
    coalesce(sum(CAST(c.output_tokens AS BIGINT)) FILTER (WHERE NOT c.is_added), 0) AS output_tokens,
    sum(c.machine_ns) AS machine_ns, sum(c.cost_usd) AS cost_usd, sum(c.revenue_usd) AS revenue_usd
  FROM request_costs c
  LEFT JOIN sent s ON s.scenario_id = c.scenario_id AND s.added_id = c.request_id
  LEFT JOIN requests r ON r.request_id = coalesce(s.request_id, c.request_id)
  WHERE c.status = 'finished'
  GROUP BY c.scenario_id, r.tenant
)
SELECT
  scenario_id, tenant, requests, prompt_tokens, hit_tokens,
  CAST(hit_tokens AS DOUBLE) / nullif(prompt_tokens, 0) AS hit_tokens_ratio,
  CAST(hit_tokens AS DOUBLE) / nullif(CAST(sum(hit_tokens) OVER (PARTITION BY scenario_id) AS DOUBLE), 0)
    AS hit_share_ratio,
  computed_tokens,
  CAST(computed_tokens AS DOUBLE) / nullif(CAST(sum(computed_tokens) OVER (PARTITION BY scenario_id) AS DOUBLE), 0)
    AS computed_share_ratio,
  output_tokens, machine_ns, cost_usd, revenue_usd
FROM served
