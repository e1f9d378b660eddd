-- The head at one instant. KEYS: version, feed, pending, totals. ARGV: the version that is known, the most commits.
local version = tonumber(redis.call('GET', KEYS[1]) or '0')
local since = version - tonumber(ARGV[1])
local feed = false
if since == 0 then
  feed = {}
elseif since > 0 and since <= tonumber(ARGV[2]) and redis.call('LLEN', KEYS[2]) >= since then
  feed = redis.call('LRANGE', KEYS[2], -since, -1)
end
return {version, redis.call('TIME'), feed or 0, redis.call('HVALS', KEYS[3])}
