-- How fast do contexts grow, how many turns and sessions fit, what buys turns, and how far back does memory reach?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column sessions: Sessions of several turns, or on which a stage acted.
-- column recorded_tokens_per_turn: Growth of the prompt per turn as recorded, median over sessions.
-- column tokens_per_turn: The same as served.
-- column bytes_per_turn: Growth of KV per turn as served, median over sessions.
-- column turns_before: Turns until a session alone fills the baseline's memory, median over those that ever do.
-- column hardware_turns: Turns gained by this scenario's memory alone, median.
-- column policy_turns: Turns gained by this scenario's policy alone, median.
-- column both_turns: Turns gained by both, median.
-- column recorded_sessions_per_accelerator: Sessions that fit at their mean context, as recorded, on the baseline, median.
-- column sessions_per_accelerator: The same as served, in this scenario.
-- column verbatim_turns: Largest age at the end of a turn of which something is there as it was.
-- column summarised_turns: Largest age of one that a summary tells of.
-- column recallable_turns: Largest age of one that can be asked for.
-- column lost_turns: Largest age of one of which something is lost.
SELECT
  p.scenario_id, s.name AS scenario, count(*) AS sessions,
  median(p.recorded_tokens_per_turn) AS recorded_tokens_per_turn, median(p.tokens_per_turn) AS tokens_per_turn,
  median(p.bytes_per_turn) AS bytes_per_turn, median(p.turns_before) AS turns_before,
  median(p.turns_hardware - p.turns_before) AS hardware_turns, median(p.turns_policy - p.turns_before) AS policy_turns,
  median(p.turns_both - p.turns_before) AS both_turns,
  median(p.recorded_sessions_per_accelerator) AS recorded_sessions_per_accelerator,
  median(p.sessions_per_accelerator) AS sessions_per_accelerator,
  max(p.verbatim_turns) AS verbatim_turns, max(p.summarised_turns) AS summarised_turns,
  max(p.recallable_turns) AS recallable_turns, max(p.lost_turns) AS lost_turns
FROM session_span p JOIN scenarios s ON s.scenario_id = p.scenario_id
GROUP BY p.scenario_id, s.name
ORDER BY scenario_id
