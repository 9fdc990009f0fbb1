-- Renews a lease from now; a hold stays.
-- :group_id, :token, :visibility (seconds)
-- Returns when the lease runs out, when it was current. (It is computed again: SQLite 3.40 compares a column in
-- RETURNING with the affinity of another, so nothing is compared there.)

UPDATE {prefix}_groups
SET lock_expiry = {now} + :visibility + CASE WHEN lock_expiry >= {held_from} THEN {held} ELSE 0 END
WHERE group_id = :group_id AND locked_by = :token
RETURNING {now} + :visibility;
