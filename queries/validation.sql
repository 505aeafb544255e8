-- How far is what ships from measurements?
-- column kind: kernels (a surface, each measured point without itself) or serving (a replay of a measured run).
-- column subject: The surface or the model.
-- column rows: Measurements that it was held against.
-- column median_error_ratio: Half of the estimates are off by less.
-- column p90_error_ratio: Nine of ten are off by less.
-- column source: Whose measurements they are.
SELECT kind, subject, rows, median_error_ratio, p90_error_ratio, source
FROM validation
ORDER BY kind, subject
