-- Ends a hold: a lease that is still running goes on, else the group is at the back of the line; if it
-- drained meanwhile, it goes.
-- :group_id
-- The first returns a row when the group was held.

UPDATE {prefix}_groups
SET since = {now},
    lock_expiry = CASE WHEN locked_by IS NULL THEN {now} ELSE max({now}, lock_expiry - {held}) END
WHERE group_id = :group_id AND lock_expiry >= {held_from}
RETURNING 1;

DELETE FROM {prefix}_groups
WHERE group_id = :group_id AND lock_expiry < {held_from}
  AND NOT EXISTS (SELECT 1 FROM {prefix}_messages AS m INDEXED BY {prefix}_messages_group WHERE m.group_id = :group_id);
