-- Writes down whether there is such a group.
-- :request, :keep (seconds in which it may be sent again), :group_id

INSERT INTO {prefix}_requests (id, at, until, answer)
SELECT
    :request, now_s, now_s + :keep,
    EXISTS (SELECT 1 FROM {prefix}_groups WHERE group_id = :group_id)
FROM {prefix}_clock WHERE id = 1;
