-- Which share of a scenario's change is due to which of its differences?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column part_position: Order of the difference.
-- column part: application, selection, format or hardware.
-- column floor: application, algorithm or hardware.
-- column change: What is different.
-- column alone_ns_per_output_token: By how much it alone changes the time of an output token, ns.
-- column left_out_ns_per_output_token: By how much the whole is worse without it, with the sign turned, ns.
-- column share_ns_per_output_token: Its share in the change of all together: the mean over all orders of adding, ns.
-- column share_ratio: That over the whole change; the shares of a scenario sum to 1.
SELECT
  h.scenario_id, s.name AS scenario, h.part_position, h.part, h.floor, h.change, h.alone_ns_per_output_token, h.left_out_ns_per_output_token, h.share_ns_per_output_token,
  h.share_ratio
FROM stacking_shares h JOIN scenarios s ON s.scenario_id = h.scenario_id
ORDER BY scenario_id, part_position
