-- Who gets the cache's savings, who warms it, and what does each tenant cost and earn?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column tenant: Who sent the requests; null where the source names nobody.
-- column requests: Requests of users that were served to the end.
-- column prompt_tokens: Tokens of their prompts.
-- column hit_tokens: Prompt tokens found in the prefix cache.
-- column hit_tokens_ratio: Hits over prompt tokens.
-- column hit_share_ratio: Share of the tenant in the hits of all tenants.
-- column saved_usd: What computing those hits would have cost, at the replay's mean cost of a computed prompt token, US dollars.
-- column computed_tokens: Tokens computed in prefills, of what stages send for its turns too: what warms the cache for all.
-- column computed_share_ratio: Share of the tenant in what all tenants computed.
-- column output_tokens: Tokens that users get.
-- column cost_usd: Cost of their machine time, idle time not in it, US dollars; null where the price of the accelerators is not disclosed.
-- column cost_share_ratio: Share of the tenant in that of all tenants.
-- column usd_per_mtok_output: That cost over their output tokens, US dollars per million.
-- column revenue_usd: What their tokens are sold for, US dollars; null without a tariff or a kept promise.
-- column gross_margin_ratio: Revenue less that cost, over revenue.
WITH prompts AS (
  SELECT
    m.scenario_id,
    max(m.value) FILTER (WHERE m.metric = 'usd_prompts')
      / nullif(max(c.computed_tokens), 0) AS usd_per_token
  FROM metrics m
  JOIN (
    SELECT scenario_id, CAST(sum(CAST(computed_tokens AS BIGINT)) AS DOUBLE) AS computed_tokens
    FROM request_costs GROUP BY scenario_id
  ) c ON c.scenario_id = m.scenario_id
  GROUP BY m.scenario_id
)
SELECT
  t.scenario_id, s.name AS scenario, t.tenant, t.requests, t.prompt_tokens, t.hit_tokens, t.hit_tokens_ratio,
  t.hit_share_ratio, t.hit_tokens * p.usd_per_token AS saved_usd, t.computed_tokens, t.computed_share_ratio,
  t.output_tokens, t.cost_usd,
  t.cost_usd / nullif(sum(t.cost_usd) OVER (PARTITION BY t.scenario_id), 0) AS cost_share_ratio,
  t.cost_usd * 1e6 / nullif(t.output_tokens, 0) AS usd_per_mtok_output, t.revenue_usd,
  (t.revenue_usd - t.cost_usd) / nullif(t.revenue_usd, 0) AS gross_margin_ratio
FROM tenant_stats t
JOIN scenarios s ON s.scenario_id = t.scenario_id
LEFT JOIN prompts p ON p.scenario_id = t.scenario_id
ORDER BY scenario_id, tenant
