-- How few blocks hold most of a recorded request's attention, and how much mass comes back to what had been cold?
-- column recording: The recorded model and grade.
-- column request_id: The recorded request.
-- column layer: The layer; null for all layers together.
-- column steps: Decode steps of all its KV heads.
-- column near_50_ratio: Fewest blocks with 50% of a step's mass over all blocks that it reads, mean over steps and heads.
-- column near_90_ratio: The same for 90%.
-- column near_99_ratio: The same for 99%.
-- column reawakened_mass_ratio: Mass on blocks that are among the heaviest tenth and were not in any of the 32 steps before, mean.
-- column p99_reawakened_mass_ratio: The same that 99 of 100 steps do not exceed.
SELECT
  recording, request_id, layer, steps, near_50_ratio, near_90_ratio, near_99_ratio, reawakened_mass_ratio,
  p99_reawakened_mass_ratio
FROM attention_reads
ORDER BY recording, request_id, layer
