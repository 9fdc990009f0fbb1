-- Writes down that it was done.
-- :request, :keep (seconds in which it may be sent again)

INSERT INTO {prefix}_requests (id, at, until, answer)
SELECT :request, now_s, now_s + :keep, NULL FROM {prefix}_clock WHERE id = 1;
