-- Says which leases are current: returns their places in :leases.
-- :leases  JSON [[group_id, token], ...]

SELECT lease.key
FROM json_each(:leases) AS lease
WHERE lease.value ->> 1 = (SELECT locked_by FROM {prefix}_groups WHERE group_id = lease.value ->> 0);
