-- swap: put one value of a field in the place of another, if that is as it was read.
--
-- KEYS   1 the key that has the field
-- ARGV   1 the field; 2 expiry in ms, or empty to keep that of a key, which must be there; 3 what it was, 4 what it is
--        now: empty for none
-- Reply  1 where it is so now, 0 where it was something else
--
-- O(1).

local found = redis.call('HGET', run, ARGV[1]) or ''
if found ~= ARGV[3] or ARGV[2] == '' and redis.call('EXISTS', run) == 0 then
  return found == ARGV[4] and 1 or 0
elseif ARGV[4] == '' then
  redis.call('HDEL', run, ARGV[1])
else
  redis.call('HSET', run, ARGV[1], ARGV[4])
  if ARGV[2] ~= '' then
    redis.call('PEXPIRE', run, ARGV[2])
  end
end
return 1
