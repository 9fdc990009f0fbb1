-- Renews leases from now; a hold stays.
-- :leases      JSON [[group_id, token], ...]
-- :visibility  seconds
-- Returns for each that was current its token and when it runs out. (That is computed again: SQLite 3.40 compares a
-- column in RETURNING with the affinity of another, so nothing is compared there.) A token is in one group alone.

UPDATE {prefix}_groups
SET lock_expiry = {now} + :visibility + CASE WHEN lock_expiry >= {held_from} THEN {held} ELSE 0 END
WHERE group_id IN (SELECT value ->> 0 FROM json_each(:leases))
  AND +locked_by IN (SELECT value ->> 1 FROM json_each(:leases))
RETURNING locked_by, {now} + :visibility;
