-- Puts a group out of every claim's reach; what its number was stays in it.
-- KEYS  see prelude.lua, 1 to 9
-- ARGV  1 clock, 2 group
-- Returns 1 if there is such a group, else 0.

local group = find(ARGV[2])
if not group then
    return 0
end
if not group.held then
    if group.token ~= '' then
        write('ZREM', KEYS[4], group.member)
    end
    group.held, group.since = true, now()
    put(group, number_of(group) + HELD)
    save(group)
    finish()
end
return 1
