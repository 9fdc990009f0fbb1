-- Reads groups in the order of their names.
-- KEYS  see prelude.lua, 1 to 9
-- ARGV  1 clock, 2 after (the last name before, or empty), 3 limit
-- Returns the time, then for each: name, number, since, token, attempts, messages, priority.

local after = ARGV[2] == '' and '-' or '(' .. ARGV[2]
local reply = {exact(now())}
for _, name in ipairs(call('ZRANGEBYLEX', KEYS[3], after, '+', 'LIMIT', 0, ARGV[3])) do
    local group = find(name)
    for _, value in ipairs({name, exact(number_of(group)), exact(group.since), group.token, group.attempts,
                            group.tail - group.head + 1, group.priority}) do
        reply[#reply + 1] = value
    end
end
return reply
