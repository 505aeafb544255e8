-- How far do sessions get, what does hardware alone, policy alone and both buy, and how far back do they still reach?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column session: Number of the session.
-- column session_id: Its name in the store.
-- column turns: Recorded turns.
-- column recorded_peak_tokens: Longest prompt as recorded.
-- column peak_tokens: Longest prompt as served.
-- column recorded_tokens_per_turn: Growth of the prompt per turn as recorded.
-- column tokens_per_turn: The same as served.
-- column recorded_bytes_per_turn: Growth of KV per turn as recorded, under the baseline's policy for KV.
-- column bytes_per_turn: The same as served.
-- column turns_before: Turns until the session alone fills the baseline's memory; null if it never does.
-- column hardware_turns: Turns gained by this scenario's memory alone.
-- column policy_turns: Turns gained by this scenario's policy alone.
-- column both_turns: Turns gained by both.
-- column recorded_sessions_per_accelerator: Sessions like this that fit, as recorded, on the baseline.
-- column sessions_per_accelerator: The same as served, in this scenario.
-- column verbatim_turns: Age at the end of the oldest turn of which something is there as it was.
-- column summarised_turns: Age of the oldest that a summary tells of.
-- column recallable_turns: Age of the oldest that can be asked for.
-- column lost_turns: Age of the oldest of which something is lost.
SELECT
  p.scenario_id, s.name AS scenario, p.session, p.session_id, p.turns, p.recorded_peak_tokens, p.peak_tokens,
  p.recorded_tokens_per_turn, p.tokens_per_turn, p.recorded_bytes_per_turn, p.bytes_per_turn, p.turns_before,
  p.turns_hardware - p.turns_before AS hardware_turns, p.turns_policy - p.turns_before AS policy_turns,
  p.turns_both - p.turns_before AS both_turns, p.recorded_sessions_per_accelerator, p.sessions_per_accelerator,
  p.verbatim_turns, p.summarised_turns, p.recallable_turns, p.lost_turns
FROM session_span p JOIN scenarios s ON s.scenario_id = p.scenario_id
ORDER BY scenario_id, session
