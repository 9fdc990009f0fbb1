-- Adds messages at their groups' tails, and the groups that do not exist yet.
-- :messages  JSON [[group_id, event, priority], ...], in order
-- :ahead     seconds that a new group is put before now

INSERT INTO {prefix}_messages (group_id, event)
SELECT value ->> 0, value ->> 1 FROM json_each(:messages);

INSERT INTO {prefix}_groups (group_id, locked_by, lock_expiry, priority, attempts, since)
SELECT value ->> 0, NULL, {now} - :ahead, value ->> 2, 0, {now} FROM json_each(:messages) WHERE true
ON CONFLICT (group_id) DO NOTHING;
