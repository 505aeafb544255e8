-- What did each change do to each booth: was a cost removed, or only moved?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column floor: application, algorithm or hardware; floors are added in this order.
-- column floor_position: Order of the floor.
-- column change: What is different on the floor.
-- column booth: What is paid for.
-- column booth_position: Order of the booth.
-- column before_ns: Time of the booth before the change, all instances, ns; null where it is unknown.
-- column change_ns: By how much the change makes it longer, ns.
-- column before_bytes: Bytes moved before the change; null for booths that move none.
-- column change_bytes: By how much the change makes them more.
-- column before_j: Energy before the change, J; null where the power is unknown.
-- column change_j: By how much the change makes it more, J.
-- column before_usd: Money before the change, US dollars; null where the price of the accelerators is unknown.
-- column change_usd: By how much the change makes it more, US dollars.
-- column verdict: removed, moved, received, added or unchanged.
-- column moved_ratio: Of the time that the floor saves in some booths, the share that came back in others.
-- column note: What the change asks of software and people, or why it is unknown.
-- column adaptation_days: Engineer-days of software_adaptation, as the user gave them.
-- column certainty: The least certain input.
SELECT
  l.scenario_id, s.name AS scenario, l.floor, l.floor_position, l.change, l.booth, l.booth_position, l.before_ns,
  l.change_ns, l.before_bytes, l.change_bytes, l.before_j, l.change_j, l.before_usd, l.change_usd, l.verdict,
  l.moved_ratio, l.note, l.adaptation_days, l.certainty
FROM ledger l JOIN scenarios s ON s.scenario_id = l.scenario_id
ORDER BY scenario_id, floor_position, booth_position
