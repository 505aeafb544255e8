-- How much is kept more than once across sessions, instances and tiers?
-- column workload: The requests.
-- column across: sessions (if nothing were shared), instances (each with a cache of its own) or tiers.
-- column parties: How many there are.
-- column stored_blocks: Blocks, counted for each that has them.
-- column copies: Of these, those beyond the first of each block.
-- column copies_ratio: Copies over stored blocks.
-- column copies_gib: What they take, GiB.
SELECT workload, across, parties, stored_blocks, copies, copies_ratio, copies_bytes / 1073741824.0 AS copies_gib
FROM stored_copies
ORDER BY workload, across
