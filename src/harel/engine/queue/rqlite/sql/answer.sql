-- Reads what a write found, and when.
-- :request

SELECT answer, at FROM {prefix}_requests WHERE id = :request;
