-- Sets the time of a write to the caller's.
-- :now  epoch seconds

UPDATE {prefix}_clock SET now_s = :now WHERE id = 1;
