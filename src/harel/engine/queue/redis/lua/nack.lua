-- Gives a head back and parks its group.
-- KEYS  see prelude.lua, 1 to 9
-- ARGV  1 clock, 2 group, 3 token, 4 delay (seconds)
-- Returns 1 if the lease was current, else 0.

local group = held_by(ARGV[2], ARGV[3])
if not group then
    return 0
end
free(group, now() + tonumber(ARGV[4]))
finish()
return 1
