-- Ends a hold: a lease that is still running goes on, else the group is at the back of the line; if it drained
-- meanwhile, it goes.
-- KEYS  see prelude.lua, 1 to 9
-- ARGV  1 clock, 2 group
-- Returns 1 if the group was held, else 0.

local group = find(ARGV[2])
if not group or not group.held then
    return 0
end
if group.head > group.tail then
    drop(group)
    finish()
    return 1
end
local number = number_of(group)
group.held, group.since = false, now()
put(group, group.token == '' and now() or math.max(now(), number - HELD))
save(group)
woken = true
finish()
return 1
