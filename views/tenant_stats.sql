-- Tenants in each scenario: what they sent, what the cache spared them, what they warmed it with, and what they cost.
-- column scenario_id: Number of the scenario within the run.
-- column tenant: Who sent the requests; null where the source names nobody.
-- column requests: Requests that were served to the end.
-- column prompt_tokens: Tokens of their prompts.
-- column hit_tokens: Prompt tokens found in the prefix cache.
-- column hit_tokens_ratio: Hits over prompt tokens.
-- column hit_share_ratio: Share of the tenant in the hits of all tenants.
-- column computed_tokens: Tokens computed in prefills: what warms the cache for all.
-- column computed_share_ratio: Share of the tenant in what all tenants computed.
-- column output_tokens: Tokens generated.
-- column machine_ns: Step time, shared by computed tokens, ns.
-- column cost_usd: Its cost, US dollars; null where the price of the accelerators is not disclosed.
-- column revenue_usd: What the tokens are sold for, US dollars; null without a tariff or a kept promise.
WITH served AS (
  SELECT
    c.scenario_id, r.tenant, count(*) AS requests, sum(CAST(c.prompt_tokens AS BIGINT)) AS prompt_tokens,
    sum(CAST(c.hit_tokens AS BIGINT)) AS hit_tokens, sum(CAST(c.computed_tokens AS BIGINT)) AS computed_tokens,
    sum(CAST(c.output_tokens AS BIGINT)) AS output_tokens, sum(c.machine_ns) AS machine_ns, sum(c.cost_usd) AS cost_usd,
    sum(c.revenue_usd) AS revenue_usd
  FROM request_costs c LEFT JOIN requests r ON r.request_id = c.request_id
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
