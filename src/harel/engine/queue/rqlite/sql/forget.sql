-- Deletes what nobody asks for any more: two for each that comes, so that they do not pile up.

DELETE FROM {prefix}_requests
WHERE id IN (SELECT id FROM {prefix}_requests INDEXED BY {prefix}_requests_until WHERE until < {now} LIMIT 2);
