-- Puts a group out of every claim's reach; what its number was stays in it.
-- :group_id
-- Returns a row when there is such a group.

UPDATE {prefix}_groups
SET since = CASE WHEN lock_expiry >= {held_from} THEN since ELSE {now} END,
    lock_expiry = CASE WHEN lock_expiry >= {held_from} THEN lock_expiry ELSE lock_expiry + {held} END
WHERE group_id = :group_id
RETURNING 1;
