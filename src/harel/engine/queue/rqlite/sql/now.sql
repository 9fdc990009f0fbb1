-- The time of a look, which changes nothing and so cannot set the clock: no earlier than the latest write, and by the
-- leader's own clock, less what rounding may take off the time of the claim that follows: half a step, half a
-- millisecond, and a little.

max((SELECT now_s FROM {prefix}_clock WHERE id = 1), (julianday('now') - 2440587.5) * 86400.0 - 0.044)
