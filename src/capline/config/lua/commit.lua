-- KEYS: version, feed, pending, totals, token, places. ARGV: expected version, token, commit, rows, the most commits,
-- how many words follow about totals, then these as policy, value, …, then the places' fields and values.
local version = tonumber(redis.call('GET', KEYS[1]) or '0')
if version ~= tonumber(ARGV[1]) then
  -- The reply to this very commit may have been lost.
  if version == tonumber(ARGV[1]) + 1 and redis.call('GET', KEYS[5]) == ARGV[2] then
    return 1
  end
  return 0
end
redis.call('SET', KEYS[1], string.format('%.0f', version + 1))
redis.call('SET', KEYS[5], ARGV[2])
redis.call('RPUSH', KEYS[2], ARGV[3])
redis.call('LTRIM', KEYS[2], -tonumber(ARGV[5]), -1)
redis.call('HSET', KEYS[3], string.format('%.0f', version + 1), ARGV[4])
local places = 7 + ARGV[6]
for i = 7, #ARGV, 2 do
  redis.call('HSET', i < places and KEYS[4] or KEYS[6], ARGV[i], ARGV[i + 1])
end
return 1
