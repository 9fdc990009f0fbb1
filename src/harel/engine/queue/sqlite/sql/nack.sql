-- Gives a head back and parks its group.
-- :group_id, :token, :delay (seconds)
-- Returns a row when the lease was current.

UPDATE {prefix}_groups
SET locked_by = NULL,
    lock_expiry = CASE WHEN lock_expiry >= {held_from} THEN lock_expiry ELSE {now} + :delay END,
    since = CASE WHEN lock_expiry >= {held_from} THEN since ELSE {now} END
WHERE group_id = :group_id AND locked_by = :token
RETURNING 1;
