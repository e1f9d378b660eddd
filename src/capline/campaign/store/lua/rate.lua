-- rate: put one rate of a key in the place of another, if that is as it was read.
--
-- KEYS   1 the key's
-- ARGV   1 what it was, empty for none; 2 expiry in ms; 3 what it is now, empty for none
-- Reply  1 where it is so now, 0 where another process was first
--
-- O(1).

local found = redis.call('HGET', KEYS[1], 'rate') or ''
if found ~= ARGV[1] then
  return found == ARGV[3] and 1 or 0
end
if ARGV[3] == '' then
  redis.call('DEL', KEYS[1])
else
  redis.call('HSET', KEYS[1], 'rate', ARGV[3])
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 1
