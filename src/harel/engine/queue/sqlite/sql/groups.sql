-- Lists groups by name, a page: the fields of GroupInfo in their order.
-- :state (or NULL), :limit, :after ('' for the first page), :counted (count messages up to this many)

SELECT
    group_id, state,
    CASE state WHEN 'ready' THEN max(since, lock_expiry) ELSE since END,
    CASE WHEN state IN ('leased', 'parked') THEN lock_expiry END,
    CASE WHEN state IN ('leased', 'held') THEN locked_by END,
    attempts,
    (SELECT count(*) FROM (SELECT 1 FROM {prefix}_messages AS m INDEXED BY {prefix}_messages_group WHERE m.group_id = g.group_id LIMIT :counted)),
    priority
FROM (
    SELECT *,
        CASE
            WHEN lock_expiry >= {held_from} THEN 'held'
            WHEN lock_expiry <= {now} THEN 'ready'
            WHEN locked_by IS NULL THEN 'parked'
            ELSE 'leased'
        END AS state
    FROM {prefix}_groups
) AS g
WHERE group_id > :after AND (:state IS NULL OR state = :state)
ORDER BY group_id
LIMIT :limit;
