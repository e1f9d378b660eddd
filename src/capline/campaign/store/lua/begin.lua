-- begin: create a campaign's run, unless there is one.
--
-- ARGV   1 campaign; 2 expiry in ms; then names and values of the run's fields
-- Reply  1 where it was created; 0 where there is a run, which stays unchanged
--
-- First deletes what an expired run left behind. O(fields).

if redis.call('EXISTS', run) == 1 then
  return 0
end
redis.call('DEL', waiting, held, steps, aside)
local begun_us = text(now_us())
redis.call('HSET', run, unpack(ARGV, 3))
redis.call('HSET', run, 'queued', 0, 'settled', 0, 'done', 0, 'begun_us', begun_us, 'due_us', begun_us,
  'last_us', begun_us)
redis.call('ZADD', open, begun_us, ARGV[1])
redis.call('ZADD', names, 0, ARGV[1])
plan(ARGV[1])
return 1
