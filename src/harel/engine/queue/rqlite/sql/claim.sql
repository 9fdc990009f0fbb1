-- Writes down the groups that have waited longest, and leases them.
-- :request, :keep (seconds in which it may be sent again)
-- :stem        what the tokens begin with; their last twelve digits number the leases in their order
-- :visibility  seconds
-- :limit       how many at most
-- {floor}      0 to 4: a literal, because only a literal lets the planner use {claimable}, the floor's index

INSERT INTO {prefix}_requests (id, at, until, answer)
SELECT
    :request, now_s, now_s + :keep,
    (
        SELECT json_group_array(group_id)
        FROM (
            SELECT group_id FROM {prefix}_groups INDEXED BY {claimable}
            WHERE lock_expiry <= {now} AND priority >= {floor}
            ORDER BY lock_expiry, rowid
            LIMIT :limit
        )
    )
FROM {prefix}_clock WHERE id = 1;

UPDATE {prefix}_groups AS g
SET locked_by = :stem || printf('%012x', pick.key),
    lock_expiry = {now} + :visibility,
    attempts = attempts + 1,
    since = {now}
FROM (
    SELECT key, value FROM json_each((SELECT answer FROM {prefix}_requests WHERE id = :request)) LIMIT :limit
) AS pick  -- the limit has it made first, and the groups looked up, whatever the statistics say of their number
WHERE g.group_id = pick.value;
