-- Adds messages at their groups' tails, and the groups that do not exist yet.
-- KEYS  see prelude.lua, 1 to 9
-- ARGV  1 clock, 2 ahead (seconds that a new group is put before now), then for each message: group, event, priority
-- Returns nothing.

local count = (#ARGV - 2) / 3
local seq = call('HINCRBY', KEYS[1], 'seq', count) - count
for at = 3, #ARGV, 3 do
    seq = seq + 1
    append(ARGV[at], tonumber(ARGV[at + 2]), seq, ARGV[at + 1], ARGV[2])
end
finish()
