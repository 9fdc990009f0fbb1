-- Returns a row when something can be claimed.

SELECT 1 FROM {prefix}_groups WHERE lock_expiry <= {now} LIMIT 1;
