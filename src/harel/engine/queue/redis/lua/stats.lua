-- Counts the queue, in O(log n).
-- KEYS  see prelude.lua, 1 to 12
-- ARGV  1 clock
-- Returns the fields of QueueStats in their order.

local groups, ready, held, oldest = call('ZCARD', KEYS[3]), 0, 0, now()
for tier = 0, 4 do
    local key = KEYS[5 + tier]
    ready = ready + call('ZCOUNT', key, '-inf', now())
    held = held + call('ZCOUNT', key, HELD_FROM, '+inf')
    local fresh = call('ZRANGEBYSCORE', key, '-inf', '(0', 'WITHSCORES', 'LIMIT', 0, 1)[2]
    local served = call('ZRANGEBYSCORE', key, 0, now(), 'WITHSCORES', 'LIMIT', 0, 1)[2]
    oldest = math.min(oldest, fresh and fresh + FRESH or now(), served and tonumber(served) or now())
end
local leased = call('ZCOUNT', KEYS[4], '(' .. exact(now()), '+inf')
return {call('HLEN', KEYS[2]) - 2 * groups, groups, ready, leased, groups - ready - held - leased, held,
        call('HLEN', KEYS[10]), exact(now() - oldest)}
