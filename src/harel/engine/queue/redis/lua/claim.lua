-- Leases the groups that have waited longest, and returns their heads.
-- KEYS  see prelude.lua, 1 to 9
-- ARGV  1 clock, 2 stem (what the tokens begin with; their last twelve digits number the leases in their order),
--       3 visibility (seconds), 4 limit, 5 floor
-- Returns nil, or: when the leases run out, then for each: group, attempt, seq:event.

local floor, limit = tonumber(ARGV[5]), tonumber(ARGV[4])

-- The claimable groups, member and number each, tier by tier. A tier of which there is no key is not asked for.
local picked, unsorted = {}, false
local tiers = call('EXISTS', unpack(KEYS, 5 + floor, 9))
for tier = floor, 4 do
    if tiers == 0 then
        break
    end
    local first = call('ZRANGE', KEYS[5 + tier], 0, 0, 'WITHSCORES')
    if first[1] then
        tiers = tiers - 1
        if tonumber(first[2]) <= now() then
            unsorted = picked[1] ~= nil
            picked[#picked + 1] = first
            if limit > 1 then
                local found = call('ZRANGEBYSCORE', KEYS[5 + tier], '-inf', now(), 'WITHSCORES', 'LIMIT', 1, limit - 1)
                for at = 1, #found, 2 do
                    picked[#picked + 1] = {found[at], found[at + 1]}
                end
            end
        end
    end
end
if not picked[1] then
    return nil
end
if unsorted then
    table.sort(picked, function(one, other)
        local number, others = tonumber(one[2]), tonumber(other[2])
        if number ~= others then
            return number < others
        end
        return tonumber(string.sub(one[1], 1, 16)) < tonumber(string.sub(other[1], 1, 16))
    end)
end

even_when_full()
gathering = limit > 1
local expires_at = exact(now() + tonumber(ARGV[3]))
local reply = {expires_at}
local count = math.min(limit, #picked)
for from = 1, count, 1000 do
    local last = math.min(from + 999, count)
    local names, records, heads = {}, {}, {}
    for place = from, last do
        names[#names + 1] = string.sub(picked[place][1], 17)
        records[#records + 1] = '@' .. names[#names]
    end
    for at, record in ipairs(call('HMGET', KEYS[2], unpack(records))) do
        local place = from + at - 1
        local group = opened(names[at], picked[place][1], record)
        group.token = ARGV[2] .. string.format('%012x', place)
        group.attempts, group.since = group.attempts + 1, now()
        put(group, expires_at)
        save(group)
        heads[at] = field(group.name, group.head)
        reply[#reply + 1] = group.name
        reply[#reply + 1] = group.attempts
        reply[#reply + 1] = ''
    end
    for at, message in ipairs(call('HMGET', KEYS[2], unpack(heads))) do
        reply[1 + 3 * (from + at - 1)] = message
    end
end
finish()
return reply
