-- Sets the time of a write, which all its statements go by; each write is a little later than the one before.
-- rqlite puts a literal in place of 'now', another in each statement, and only where its own parser understands the
-- statement. So it stands once, in a plain one. The literal has six decimals, steps of 86.4 ms: within a step the time
-- goes on by a microsecond a write, so that numbers are equal only within one write.
-- Another leader's clock may be behind: ten seconds are waited out, more is taken as it is, or time would stand still.

UPDATE {prefix}_clock SET told = julianday('now') WHERE id = 1;

UPDATE {prefix}_clock
SET now_s = CASE
    WHEN (told - 2440587.5) * 86400.0 BETWEEN now_s - 10.0 AND now_s THEN now_s + 0.000001
    ELSE (told - 2440587.5) * 86400.0
END
WHERE id = 1;
