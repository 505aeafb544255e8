-- Which rule for the KV of idle sessions finds most of it again?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column keeping: The rule.
-- column capacity_blocks: Blocks that fit in the KV memory of an instance.
-- column accesses: Uses of blocks.
-- column hits: Uses that found theirs.
-- column token_hit_ratio: Prompt tokens in leading hits over all prompt tokens.
-- column evictions: Blocks that had to go for others.
-- column drops: Blocks that went without need for their room.
SELECT
  k.scenario_id, s.name AS scenario, k.keeping, k.capacity_blocks, k.accesses, k.hits, k.token_hit_ratio, k.evictions,
  k.drops
FROM session_keeping k JOIN scenarios s ON s.scenario_id = k.scenario_id
ORDER BY scenario_id, keeping
