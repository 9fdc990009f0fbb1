-- Writes down which leases are current: their places in :leases.
-- :request, :keep (seconds in which it may be sent again)
-- :leases  JSON [[group_id, token], ...]

INSERT INTO {prefix}_requests (id, at, until, answer)
SELECT
    :request, now_s, now_s + :keep,
    (
        SELECT json_group_array(lease.key)
        FROM json_each(:leases) AS lease
        WHERE lease.value ->> 1 = (SELECT locked_by FROM {prefix}_groups WHERE group_id = lease.value ->> 0)
    )
FROM {prefix}_clock WHERE id = 1;
