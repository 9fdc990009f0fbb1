-- Deletes a group's messages, except the head while a live lease has it; then what is left of an empty group.
-- KEYS  see prelude.lua, 1 to 9
-- ARGV  1 clock, 2 group
-- Returns how many.

local group = find(ARGV[2])
if not group then
    return 0
end
local number = number_of(group)
local leased = group.token ~= '' and (group.held and number - HELD or number) > now()
local first = leased and group.head + 1 or group.head
local count = group.tail - first + 1
gathering = true
for place = first, group.tail do
    write('HDEL', KEYS[2], field(group.name, place))
end
if leased then
    write('HSET', KEYS[2], '#' .. group.name, group.head)
else
    forget_token(group)
    group.head, group.attempts = group.tail + 1, 0
    if group.held then
        save(group)
    else
        drop(group)
    end
end
finish()
return count
