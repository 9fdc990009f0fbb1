-- Marks the queue with the version of its layout, if it has no mark yet.
-- KEYS  see prelude.lua, 1 to 9
-- ARGV  1 version
-- Returns the version that the queue has.

call('HSETNX', KEYS[1], 'schema', ARGV[1])
return call('HGET', KEYS[1], 'schema')
