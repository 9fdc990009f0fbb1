-- Reads the leases of a claim, with their heads; those that somebody has taken over since are left out.
-- :request, :stem

SELECT
    g.group_id, g.locked_by, g.attempts, g.lock_expiry,
    (
        SELECT m.seq FROM {prefix}_messages AS m INDEXED BY {prefix}_messages_group
        WHERE m.group_id = g.group_id ORDER BY m.seq LIMIT 1
    ),
    (
        SELECT m.event FROM {prefix}_messages AS m INDEXED BY {prefix}_messages_group
        WHERE m.group_id = g.group_id ORDER BY m.seq LIMIT 1
    )
FROM json_each((SELECT answer FROM {prefix}_requests WHERE id = :request)) AS pick
CROSS JOIN {prefix}_groups AS g ON g.group_id = pick.value AND g.locked_by = :stem || printf('%012x', pick.key);
