-- Frees the groups of heads that are deleted, or drops them. As SQLite's, for many leases at once.
-- Both statements are guarded by the tokens, which the first clears unless a group is drained.
-- :leases  JSON [[group_id, token], ...]; a token is in one group alone

UPDATE {prefix}_groups
SET locked_by = NULL,
    lock_expiry = CASE WHEN lock_expiry >= {held_from} THEN lock_expiry ELSE {now} END,
    attempts = 0,
    since = CASE WHEN lock_expiry >= {held_from} THEN since ELSE {now} END
WHERE group_id IN (SELECT value ->> 0 FROM json_each(:leases))
  AND +locked_by IN (SELECT value ->> 1 FROM json_each(:leases))
  AND (
    lock_expiry >= {held_from}
    OR EXISTS (
        SELECT 1 FROM {prefix}_messages AS m INDEXED BY {prefix}_messages_group
        WHERE m.group_id = {prefix}_groups.group_id
    )
  );

DELETE FROM {prefix}_groups
WHERE group_id IN (SELECT value ->> 0 FROM json_each(:leases))
  AND +locked_by IN (SELECT value ->> 1 FROM json_each(:leases));
