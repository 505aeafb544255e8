-- Do sessions have in their contexts what they need?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column session: Number of the session.
-- column session_id: Its name in the store.
-- column evidence: What shows the need.
-- column recall_ratio: Needed and present over needed.
-- column precision_ratio: Loaded and used over loaded.
-- column density_ratio: Recall over the share of the recorded context that is left.
-- column reread_ratio: Of the named texts taken out, the share that a later turn reads again.
-- column duplicate_tokens_per_turn: Tokens of texts that stand in a context more than once.
-- column needed_tokens: Tokens needed, all turns together.
-- column loaded_tokens: Tokens in contexts without tools, system and memory.
SELECT
  m.scenario_id, s.name AS scenario, m.session, m.session_id, m.evidence, m.recall_ratio, m.precision_ratio,
  m.density_ratio, m.reread_ratio, m.duplicate_tokens_per_turn, m.needed_tokens, m.loaded_tokens
FROM session_memory m JOIN scenarios s ON s.scenario_id = m.scenario_id
ORDER BY scenario_id, session
