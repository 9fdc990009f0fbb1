-- Puts a dead letter back as a new message at its group's tail, once.
-- KEYS  see prelude.lua, 1 to 12
-- ARGV  1 clock, 2 ahead (seconds that a new group is put before now), 3 seq
-- Returns 1 if there was such a dead letter, else 0.

local letter = call('HGET', KEYS[10], ARGV[3])
if not letter then
    return 0
end
local name, event, _, priority = cmsgpack.unpack(letter)
call('HDEL', KEYS[10], ARGV[3])
call('ZREM', KEYS[11], ARGV[3])
call('ZREM', KEYS[12], name .. string.format('\0%016d', ARGV[3]))
append(name, priority, call('HINCRBY', KEYS[1], 'seq', 1), event, ARGV[2])
finish()
return 1
