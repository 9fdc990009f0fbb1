-- queue/sqlite/sql/lock.sql
-- Changes nothing, and takes the write lock: for a transaction of a caller's that began without it.

UPDATE {prefix}_schema SET version = version WHERE false;
