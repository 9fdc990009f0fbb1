-- Writes down how many messages the statement before has deleted.
-- :request, :keep (seconds in which it may be sent again)

INSERT INTO {prefix}_requests (id, at, until, answer)
SELECT :request, now_s, now_s + :keep, changes() FROM {prefix}_clock WHERE id = 1;
