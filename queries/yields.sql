-- What does a block yield that has lain unused for so long, and is that worth its room?
-- column workload: The requests.
-- column from_s: Idle time from which on the class counts, s.
-- column to_s: Idle time at which it ends; null for the last.
-- column block_hours: Time for which blocks lay there at this idle time, h.
-- column reads: Reads that came at this idle time; from 600 s on they are reawakenings.
-- column reads_per_block_hour: The yield: it falls as a block depreciates.
-- column usd_per_block_hour: Yield times the cost of the prefill that a read saves.
-- column room_usd_per_block_hour: Cost of the room of a block.
-- column pays: Whether the yield is worth more than the room.
SELECT
  workload, from_s, to_s, block_hours, reads, reads_per_block_hour, usd_per_block_hour, room_usd_per_block_hour, pays
FROM yields
ORDER BY workload, from_s
