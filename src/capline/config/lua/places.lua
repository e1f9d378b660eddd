-- Corrects places, unless there was a commit. KEYS: version, places. ARGV: the version they are of, then fields and values.
if tonumber(redis.call('GET', KEYS[1]) or '0') ~= tonumber(ARGV[1]) then
  return 0
end
redis.call('HSET', KEYS[2], unpack(ARGV, 2))
return 1
