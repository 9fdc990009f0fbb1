-- Says when something can be claimed.
-- KEYS  see prelude.lua, 1 to 9
-- ARGV  1 clock
-- Returns in how many seconds, 0 or less if there is something now; nil if there are no groups.

local first
for tier = 0, 4 do
    local number = tonumber(call('ZRANGE', KEYS[5 + tier], 0, 0, 'WITHSCORES')[2])
    if number and not (first and first < number) then
        first = number
    end
end
return first and exact(first - now())
