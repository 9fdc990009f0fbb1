-- Deletes a group's messages, except the head while a live lease has it; then what is left of an empty group.
-- :group_id
-- The second returns how many.

DELETE FROM {prefix}_messages INDEXED BY {prefix}_messages_group
WHERE group_id = :group_id
  AND seq > coalesce((
    SELECT min(m.seq)
    FROM {prefix}_groups AS g
    CROSS JOIN {prefix}_messages AS m INDEXED BY {prefix}_messages_group ON m.group_id = g.group_id
    WHERE g.group_id = :group_id AND g.locked_by IS NOT NULL
      AND g.lock_expiry - CASE WHEN g.lock_expiry >= {held_from} THEN {held} ELSE 0 END > {now}
  ), -1);

SELECT changes();

UPDATE {prefix}_groups
SET locked_by = NULL, attempts = 0
WHERE group_id = :group_id
  AND NOT EXISTS (SELECT 1 FROM {prefix}_messages AS m INDEXED BY {prefix}_messages_group WHERE m.group_id = :group_id);

DELETE FROM {prefix}_groups
WHERE group_id = :group_id AND lock_expiry < {held_from}
  AND NOT EXISTS (SELECT 1 FROM {prefix}_messages AS m INDEXED BY {prefix}_messages_group WHERE m.group_id = :group_id);
