-- begin: create a campaign's run, unless there is one.
--
-- KEYS   1 run, 2 batches, 3 steps, 4 aside, 5 open campaigns
-- ARGV   1 campaign; 2 expiry in ms; then names and values of the run's fields
-- Reply  1 where it was created; 0 where there is a run, which stays unchanged
--
-- Creates the run with its stream and group, and first deletes what an expired run left behind. O(fields).

if redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end
redis.call('DEL', KEYS[2], KEYS[3], KEYS[4])
local time = redis.call('TIME')
local now_us = time[1] .. string.format('%06d', tonumber(time[2]))
redis.call('HSET', KEYS[1], unpack(ARGV, 3))
redis.call('HSET', KEYS[1], 'queued', 0, 'generation', 1, 'settled', 0, 'done', 0, 'last_us', now_us)
redis.call('XGROUP', 'CREATE', KEYS[2], 'workers', '0', 'MKSTREAM')
redis.call('ZADD', KEYS[5], now_us, ARGV[1])
for key = 1, 5 do
  redis.call('PEXPIRE', KEYS[key], ARGV[2])
end
return 1
