-- What the scripts share. A script is sent with those of these parts that it uses, a part ending at an empty line.
--
-- KEYS, the same in every script:
--   1     meta       hash: schema (the layout's version), seq (the last message's), arrivals (the last group's)
--   2     groups     hash: @name -> the group's record (see find), #name -> its tail (its last message's place),
--                    place:name -> a message, seq:event
--   3     names      zset, all scores 0: the names in the order of their bytes
--   4     leased     zset: groups that have a token and are not held, as in 5-9, so that they can be counted
--   5-9   ready      zset a priority, 0 to 4: groups by when they may next be claimed (see schedule.py)
-- and where dead letters are touched:
--   10    dead       hash: seq -> letter
--   11    dead:seq   zset: seqs by themselves
--   12    dead:name  zset, all scores 0: name NUL seq
--
-- In 4 to 9 a member is the group's arrival, sixteen digits, and its name: so that equal scores go by arrival.
-- ARGV[1] of a script that asks for the time is the time, epoch seconds, or empty for the server's.

local call = redis.call

local FRESH, HELD, HELD_FROM = $fresh, $held, $held_from

local time, woken = nil, false

local function now()
    if not time then
        if ARGV[1] ~= '' then
            time = tonumber(ARGV[1])
        else
            local parts = call('TIME')
            time = parts[1] + parts[2] / 1000000
        end
    end
    return time
end

-- A number as a reply: Redis would cut a Lua number down to an integer.
local function exact(number)
    return string.format('%.17g', number)
end

-- A message's field in KEYS[2].
local function field(name, place)
    return string.format('%d:', place) .. name
end

local gathering, batches = false, {}

local function flush()
    for _, batch in ipairs(batches) do
        call(unpack(batch))
    end
    batches = {}
end

-- Changes a key by a command with one argument, or two. A script that does the same to many groups gathers: then a
-- command goes out once, with all its arguments, since it costs the server more than what it does.
local function write(command, key, one, two)
    if not gathering then
        if two then
            call(command, key, one, two)
        else
            call(command, key, one)
        end
        return
    end
    local batch = batches[command .. key]
    if not batch then
        batch = {command, key}
        batches[command .. key] = batch
        batches[#batches + 1] = batch
    end
    batch[#batch + 1] = one
    batch[#batch + 1] = two
    if #batch > 4000 then
        flush() -- unpack takes no more than 8,000
    end
end

-- A group as its record says. Its messages have the places from head to tail; token is '' when nobody has it leased.
local function opened(name, member, record, tail)
    local arrival, priority, head, attempts, since, token, held = cmsgpack.unpack(record)
    return {name = name, member = member or string.format('%016d', arrival) .. name, arrival = arrival,
            priority = priority, head = head, tail = tail, attempts = attempts, since = since, token = token,
            held = held}
end

-- The group, or nil.
local function find(name)
    local found = call('HMGET', KEYS[2], '@' .. name, '#' .. name)
    return found[1] and opened(name, nil, found[1], tonumber(found[2])) or nil
end

-- The group, if this token is its current one.
local function held_by(name, token)
    local group = find(name)
    return group and group.token == token and group or nil
end

-- Writes the record. The tail has a field of its own, so that a publish to a group that exists touches nothing else.
local function save(group)
    write('HSET', KEYS[2], '@' .. group.name, cmsgpack.pack(group.arrival, group.priority, group.head,
        group.attempts, group.since, group.token, group.held))
end

local function number_of(group)
    return tonumber(call('ZSCORE', KEYS[5 + group.priority], group.member))
end

local function put(group, number)
    write('ZADD', KEYS[5 + group.priority], number, group.member)
    if group.token ~= '' and not group.held then
        write('ZADD', KEYS[4], number, group.member)
    end
end

local function forget_token(group)
    if group.token ~= '' then
        write('ZREM', KEYS[4], group.member)
        group.token = ''
    end
end

-- Begins the writes of a script with one that needs no memory: a server that is full lets a script go on with what
-- it has begun. So it refuses publishes, and the queue can still be drained.
local function even_when_full()
    call('HDEL', KEYS[1], '')
end

local function drop(group)
    write('HDEL', KEYS[2], '@' .. group.name, '#' .. group.name)
    forget_token(group)
    write('ZREM', KEYS[5 + group.priority], group.member)
    write('ZREM', KEYS[3], group.name)
end

-- Ends a lease: the group is in line again at this time, unless it is held.
local function free(group, number)
    forget_token(group)
    if not group.held then
        group.since = now()
        put(group, number)
        woken = true
    end
    save(group)
end

-- Takes the head away and ends its lease.
local function settle(group, number)
    write('HDEL', KEYS[2], field(group.name, group.head))
    group.head, group.attempts = group.head + 1, 0
    if group.head > group.tail and not group.held then
        drop(group)
    else
        free(group, number)
    end
end

-- Adds a message at its group's tail, and the group if there is none, ahead seconds before now.
local function append(name, priority, seq, event, ahead)
    local tail = call('HINCRBY', KEYS[2], '#' .. name, 1)
    call('HSET', KEYS[2], field(name, tail), string.format('%d:', seq) .. event)
    if tail > 1 then
        return
    end
    local arrival = call('HINCRBY', KEYS[1], 'arrivals', 1)
    local group = {name = name, member = string.format('%016d', arrival) .. name, arrival = arrival,
                   priority = priority, head = 1, attempts = 0, since = now(), token = '', held = false}
    put(group, now() - ahead)
    write('ZADD', KEYS[3], 0, name)
    save(group)
    woken = true
end

-- Writes what was gathered; and wakes who waits, if this made something claimable or moved when it will be. The channel
-- has the name of the first key. A user that may not publish there still gets its work done, hence pcall.
local function finish()
    if gathering then
        flush()
    end
    if woken then
        redis.pcall('PUBLISH', KEYS[1], '')
    end
end
