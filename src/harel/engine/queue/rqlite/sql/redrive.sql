-- Writes down whether there is such a dead letter.
-- :request, :keep (seconds in which it may be sent again), :seq

INSERT INTO {prefix}_requests (id, at, until, answer)
SELECT
    :request, now_s, now_s + :keep,
    EXISTS (SELECT 1 FROM {prefix}_dead_letters WHERE seq = :seq)
FROM {prefix}_clock WHERE id = 1;
