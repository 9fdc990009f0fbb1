-- A group's first messages.
-- KEYS  see prelude.lua, 1 to 9
-- ARGV  1 group, 2 limit
-- Returns seq:event for each.

local group = find(ARGV[1])
local reply = {}
if group then
    for place = group.head, math.min(group.tail, group.head + tonumber(ARGV[2]) - 1) do
        reply[#reply + 1] = call('HGET', KEYS[2], field(group.name, place))
    end
end
return reply
