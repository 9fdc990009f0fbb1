-- Settles heads: takes each away, then frees its group or drops it.
-- KEYS  see prelude.lua, 1 to 9
-- ARGV  1 clock, then for each lease: group, token
-- Returns for each lease 1 if it was current, else 0.

local fields = {}
for at = 2, #ARGV, 2 do
    fields[#fields + 1] = '@' .. ARGV[at]
    fields[#fields + 1] = '#' .. ARGV[at]
end
local found = call('HMGET', KEYS[2], unpack(fields))

gathering = #ARGV > 3
local groups, reply = {}, {}
for at = 2, #ARGV, 2 do
    local name, token, record = ARGV[at], ARGV[at + 1], found[at - 1]
    local group = groups[name] or record and opened(name, nil, record, tonumber(found[at]))
    local current = group and group.token == token
    if current then
        settle(group, now())
        groups[name] = group -- a lease that is given twice is settled once
    end
    reply[#reply + 1] = current and 1 or 0
end
finish()
return reply
