-- What was skipped, guessed or repaired while files were read?
-- column source_id: Number of the source within the store.
-- column path: The path as given on the command line.
-- column severity: info, notice, data_loss or error.
-- column code: A stable name of the kind of event.
-- column count: How often it happened.
-- column first_line: Line of the first, from 1.
-- column first_byte: Offset of the first in the decompressed file, bytes.
-- column message: What happened.
-- column advice: What can be done about it.
SELECT l.source_id, s.path, l.severity, l.code, l.count, l.first_line, l.first_byte, l.message, l.advice
FROM import_log l LEFT JOIN sources s ON s.source_id = l.source_id
ORDER BY source_id, code, first_line, first_byte, message
