-- What do all sessions of a scenario pay together, as recorded and as served?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column payee: own for the machine's time; else the tariff of a provider.
-- column cache: Whether the prompt cache is warm, lives as long as the provider says, or is cold, own time being that of each request alone; replay: own time as the scenario's replay shares it.
-- column sessions: Sessions of several turns, or on which a stage acted.
-- column changed: Of these, those on which a stage acted.
-- column dearer: Of these, those that cost more than recorded.
-- column recorded_usd: As recorded, USD.
-- column cost_usd: As served, USD.
-- column saved_usd: The difference, USD.
-- column saved_ratio: Saved over recorded.
-- column saved_ns: Machine time saved, ns.
-- column extra_requests: Requests that stages added.
-- column dearest: Why the session that lost most is dearer; null if none is.
SELECT
  c.scenario_id, s.name AS scenario, c.payee, c.cache, count(*) AS sessions,
  sum(CASE WHEN c.first_turn IS NOT NULL THEN 1 ELSE 0 END) AS changed,
  sum(CASE WHEN c.is_dearer THEN 1 ELSE 0 END) AS dearer,
  sum(c.recorded_usd) AS recorded_usd, sum(c.cost_usd) AS cost_usd, sum(c.saved_usd) AS saved_usd,
  sum(c.saved_usd) / nullif(sum(c.recorded_usd), 0) AS saved_ratio,
  sum(c.saved_ns) AS saved_ns, sum(CAST(c.extra_requests AS BIGINT)) AS extra_requests,
  first_value(CASE WHEN c.is_dearer THEN c.why END ORDER BY c.saved_usd, c.session) AS dearest
FROM session_costs c JOIN scenarios s ON s.scenario_id = c.scenario_id
GROUP BY c.scenario_id, s.name, c.payee, c.cache
ORDER BY scenario_id, payee, cache
