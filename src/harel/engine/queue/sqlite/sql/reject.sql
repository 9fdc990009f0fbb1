-- Copies a head to the dead letters, once; the statements of ack.sql then settle it.
-- :group_id, :seq, :token, :reason
-- Returns a row when the lease was current.

INSERT INTO {prefix}_dead_letters (seq, group_id, event, attempts, priority, reason, rejected_at)
SELECT
    seq, group_id, event,
    (SELECT attempts FROM {prefix}_groups WHERE group_id = :group_id),
    (SELECT priority FROM {prefix}_groups WHERE group_id = :group_id),
    :reason, {now}
FROM {prefix}_messages
WHERE seq = :seq AND group_id = :group_id
  AND EXISTS (SELECT 1 FROM {prefix}_groups WHERE group_id = :group_id AND locked_by = :token)
RETURNING 1;
