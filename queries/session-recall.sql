-- Do sessions have in their contexts what they need, all sessions of a scenario together?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column evidence: What shows the need: a named text read again, or all of the recorded context, an upper bound.
-- column sessions: Sessions with that evidence.
-- column recall_ratio: Needed and present over needed.
-- column precision_ratio: Loaded and used over loaded, mean over sessions.
-- column density_ratio: Recall over the share of the recorded context that is left, mean over sessions.
-- column reread_ratio: Of the named texts taken out, the share that a later turn reads again, mean over sessions.
-- column duplicate_tokens_per_turn: Tokens of texts that stand in a context more than once, mean over sessions.
SELECT
  m.scenario_id, s.name AS scenario, m.evidence, count(*) AS sessions,
  CAST(sum(m.present_tokens) AS DOUBLE) / nullif(sum(m.needed_tokens), 0) AS recall_ratio,
  avg(m.precision_ratio) AS precision_ratio, avg(m.density_ratio) AS density_ratio, avg(m.reread_ratio) AS reread_ratio,
  avg(m.duplicate_tokens_per_turn) AS duplicate_tokens_per_turn
FROM session_memory m JOIN scenarios s ON s.scenario_id = m.scenario_id
GROUP BY m.scenario_id, s.name, m.evidence
ORDER BY scenario_id, evidence
