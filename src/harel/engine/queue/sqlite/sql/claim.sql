-- Leases the groups that have waited longest, and returns their heads.
-- :stem        what the tokens begin with; their last twelve digits number the leases in their order
-- :visibility  seconds
-- :limit       how many at most
-- {floor}      0 to 4: a literal, because only a literal lets the planner use {claimable}, the floor's index

UPDATE {prefix}_groups AS g
SET locked_by = :stem || printf('%012x', pick.place),
    lock_expiry = {now} + :visibility,
    attempts = attempts + 1,
    since = {now}
FROM (
    SELECT id, row_number() OVER () AS place
    FROM (
        SELECT rowid AS id FROM {prefix}_groups INDEXED BY {claimable}
        WHERE lock_expiry <= {now} AND priority >= {floor}
        ORDER BY lock_expiry, rowid
        LIMIT :limit
    )
) AS pick
WHERE g.rowid = pick.id
RETURNING
    group_id, locked_by, attempts, lock_expiry,
    (
        SELECT m.seq FROM {prefix}_messages AS m INDEXED BY {prefix}_messages_group
        WHERE m.group_id = {prefix}_groups.group_id ORDER BY m.seq LIMIT 1
    ),
    (
        SELECT m.event FROM {prefix}_messages AS m INDEXED BY {prefix}_messages_group
        WHERE m.group_id = {prefix}_groups.group_id ORDER BY m.seq LIMIT 1
    );
