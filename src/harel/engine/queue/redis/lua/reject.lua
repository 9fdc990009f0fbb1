-- Moves a head to the dead letters, then frees its group or drops it.
-- KEYS  see prelude.lua, 1 to 12
-- ARGV  1 clock, 2 group, 3 token, 4 reason
-- Returns 1 if the lease was current, else 0.

local group = held_by(ARGV[2], ARGV[3])
if not group then
    return 0
end
even_when_full()
local stored = call('HGET', KEYS[2], field(group.name, group.head))
local colon = string.find(stored, ':', 1, true)
local seq, event = string.sub(stored, 1, colon - 1), string.sub(stored, colon + 1)
call('HSET', KEYS[10], seq, cmsgpack.pack(group.name, event, group.attempts, group.priority, ARGV[4], now()))
call('ZADD', KEYS[11], seq, seq)
call('ZADD', KEYS[12], 0, group.name .. string.format('\0%016d', seq))
settle(group, now())
finish()
return 1
