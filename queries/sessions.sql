-- What do sessions pay as recorded and as served, and when have the application's stages paid for themselves?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column session: Number of the session.
-- column session_id: Its name in the store.
-- column payee: own for the machine's time, each request alone; else the tariff of a provider.
-- column cache: Whether the prompt cache is warm, lives as long as the provider says, or is cold.
-- column turns: Recorded turns.
-- column recorded_usd: As recorded, USD.
-- column cost_usd: As served, USD.
-- column saved_usd: The difference, below 0 where the stages make the session dearer, USD.
-- column saved_ns: The difference in machine time, ns.
-- column extra_requests: Requests that stages added.
-- column first_turn: The turn in which a stage first acted.
-- column break_even_turns: Turns until the stages have paid for themselves, by the replay.
-- column formula_turns: The same by the formula of break-even, turn by turn from what stages did.
-- column is_dearer: Whether the session costs more than recorded.
-- column why: In words.
-- column certainty: The least certain input.
SELECT
  c.scenario_id, s.name AS scenario, c.session, c.session_id, c.payee, c.cache, c.turns, c.recorded_usd, c.cost_usd,
  c.saved_usd, c.saved_ns, c.extra_requests, c.first_turn, c.break_even_turns, c.formula_turns, c.is_dearer, c.why,
  c.certainty
FROM session_costs c JOIN scenarios s ON s.scenario_id = c.scenario_id
ORDER BY scenario_id, session, payee, cache
