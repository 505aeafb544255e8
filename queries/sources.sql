-- Which files were ingested, how were they understood, and was every row kept?
-- column source_id: Number of the source within the store.
-- column path: The path as given on the command line.
-- column format: The adapter that read it.
-- column sha256: SHA-256 in hex, of the file as stored on disk; with companions, of its hash and theirs.
-- column file_bytes: Size of the file on disk, bytes.
-- column rows_in: Rows found.
-- column rows_out: Rows kept.
-- column rows_rejected: Rows that could not be read; rows_in = rows_out + rows_rejected.
-- column time_unit: Unit of the file's instants.
-- column clock: What the instants count from.
-- column block_tokens: Tokens of one block of the file.
-- column rounding: How a partial last block is counted.
-- column hash_scope: Where equal ids mean equal content.
-- column settings_origin: How those settings were found: format, detected or flag.
-- column companions: Files that were read beside it, SHA-256 and name, one a line.
SELECT
  source_id, path, format, sha256, file_bytes, rows_in, rows_out, rows_rejected, time_unit, clock, block_tokens,
  rounding, hash_scope, settings_origin, companions
FROM sources
ORDER BY source_id
