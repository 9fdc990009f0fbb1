-- Renews leases from now; a hold stays.
-- KEYS  see prelude.lua, 1 to 9
-- ARGV  1 clock, 2 visibility (seconds), then for each lease: group, token
-- Returns for each lease when it runs out, or '' if it was not current.

local fields = {}
for at = 3, #ARGV, 2 do
    fields[#fields + 1] = '@' .. ARGV[at]
end
local found = call('HMGET', KEYS[2], unpack(fields))

local expires_at, reply = now() + tonumber(ARGV[2]), {}
even_when_full()
gathering = #ARGV > 4
for at = 3, #ARGV, 2 do
    local name, record = ARGV[at], found[(at - 1) / 2]
    local group = record and opened(name, nil, record, nil)
    local current = group and group.token == ARGV[at + 1]
    if current then
        put(group, group.held and expires_at + HELD or expires_at)
    end
    reply[#reply + 1] = current and exact(expires_at) or ''
end
finish()
return reply
