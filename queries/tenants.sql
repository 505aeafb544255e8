-- Who gets the cache's savings, who warms it, and what does each tenant cost?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column tenant: Who sent the requests; null where the source names nobody.
-- column requests: Requests that were served to the end.
-- column prompt_tokens: Tokens of their prompts.
-- column hit_tokens: Prompt tokens found in the prefix cache.
-- column hit_tokens_ratio: Hits over prompt tokens.
-- column hit_share_ratio: Share of the tenant in the hits of all tenants.
-- column computed_tokens: Tokens computed in prefills: what warms the cache for all.
-- column computed_share_ratio: Share of the tenant in what all tenants computed.
-- column output_tokens: Tokens generated.
-- column cost_usd: Price of their machine time, US dollars; null where the price is not disclosed.
-- column usd_per_mtok_output: That price over their output tokens, US dollars per million.
SELECT
  t.scenario_id, s.name AS scenario, t.tenant, t.requests, t.prompt_tokens, t.hit_tokens, t.hit_tokens_ratio,
  t.hit_share_ratio, t.computed_tokens, t.computed_share_ratio, t.output_tokens, t.cost_usd,
  t.cost_usd * 1e6 / nullif(t.output_tokens, 0) AS usd_per_mtok_output
FROM tenant_stats t JOIN scenarios s ON s.scenario_id = t.scenario_id
ORDER BY scenario_id, tenant
