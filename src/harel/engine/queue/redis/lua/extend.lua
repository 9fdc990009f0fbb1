-- Renews a lease from now; a hold stays.
-- KEYS  see prelude.lua, 1 to 9
-- ARGV  1 clock, 2 group, 3 token, 4 visibility (seconds)
-- Returns when the lease runs out, or nil if it was not current.

local group = held_by(ARGV[2], ARGV[3])
if not group then
    return nil
end
even_when_full()
local expires_at = now() + tonumber(ARGV[4])
put(group, group.held and expires_at + HELD or expires_at)
finish()
return exact(expires_at)
