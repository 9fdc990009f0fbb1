-- Lists dead letters by seq, a page.
-- KEYS  see prelude.lua, 1 to 12
-- ARGV  1 group (or empty: of all groups), 2 after (a seq, -1 for the first page), 3 limit
-- Returns for each: seq, group, event, attempts, priority, reason, when it was rejected.

local seqs
if ARGV[1] == '' then
    seqs = call('ZRANGEBYSCORE', KEYS[11], '(' .. ARGV[2], '+inf', 'LIMIT', 0, ARGV[3])
else
    local from = ARGV[1] .. string.format('\0%016d', ARGV[2] + 1)
    seqs = call('ZRANGEBYLEX', KEYS[12], '[' .. from, '(' .. ARGV[1] .. '\1', 'LIMIT', 0, ARGV[3])
    for at, member in ipairs(seqs) do
        seqs[at] = string.format('%d', string.sub(member, -16))
    end
end
local reply = {}
for _, seq in ipairs(seqs) do
    local group, event, attempts, priority, reason, rejected_at = cmsgpack.unpack(call('HGET', KEYS[10], seq))
    for _, value in ipairs({seq, group, event, attempts, priority, reason, exact(rejected_at)}) do
        reply[#reply + 1] = value
    end
end
return reply
