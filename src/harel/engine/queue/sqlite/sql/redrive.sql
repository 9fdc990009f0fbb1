-- Puts a dead letter back as a new message at its group's tail, once.
-- :seq, :ahead (seconds that a new group is put before now)
-- The last returns a row when there was such a dead letter.

INSERT INTO {prefix}_messages (group_id, event)
SELECT group_id, event FROM {prefix}_dead_letters WHERE seq = :seq;

INSERT INTO {prefix}_groups (group_id, locked_by, lock_expiry, priority, attempts, since)
SELECT group_id, NULL, {now} - :ahead, priority, 0, {now} FROM {prefix}_dead_letters WHERE seq = :seq
ON CONFLICT (group_id) DO NOTHING;

DELETE FROM {prefix}_dead_letters WHERE seq = :seq RETURNING 1;
