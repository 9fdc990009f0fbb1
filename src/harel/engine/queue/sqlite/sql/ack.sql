-- Settles heads: deletes each, then frees its group or drops it. Run for each lease, together.
-- Every statement is guarded by the token, which the second clears unless the group is drained.
-- :group_id, :seq, :token

DELETE FROM {prefix}_messages
WHERE seq = :seq AND group_id = :group_id
  AND EXISTS (SELECT 1 FROM {prefix}_groups WHERE group_id = :group_id AND locked_by = :token);

UPDATE {prefix}_groups
SET locked_by = NULL,
    lock_expiry = CASE WHEN lock_expiry >= {held_from} THEN lock_expiry ELSE {now} END,
    attempts = 0,
    since = CASE WHEN lock_expiry >= {held_from} THEN since ELSE {now} END
WHERE group_id = :group_id AND locked_by = :token
  AND (
    lock_expiry >= {held_from}
    OR EXISTS (SELECT 1 FROM {prefix}_messages INDEXED BY {prefix}_messages_group WHERE group_id = :group_id)
  );

DELETE FROM {prefix}_groups WHERE group_id = :group_id AND locked_by = :token;
