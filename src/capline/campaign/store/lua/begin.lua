-- begin: create a campaign's run with the batch that prepares it, unless there is one that is not refused.
--
-- ARGV   1 campaign; 2 expiry in ms; 3 the worker who prepares it, or empty; 4 length of its lease in ms; then names and
--        values of the run's fields
-- Reply  the id of the run that is there now: of this one, or of one that was there and stays unchanged
--
-- First deletes what an expired or refused run left behind, but for the fence. O(fields).

local is_refused = redis.call('HEXISTS', aside, PREPARE) == 1 and redis.call('HEXISTS', run, 'finished') == 0
if redis.call('EXISTS', run) == 1 and not is_refused then
  return redis.call('HGET', run, 'run_id')
end
local fence = redis.call('HGET', steps, PREPARE .. ':fence') or 0
redis.call('DEL', waiting, held, steps, aside)
local begun_us = now_us()
redis.call('HSET', run, unpack(ARGV, 5))
redis.call('HSET', run, 'queued', 0, 'settled', 0, 'done', 0, 'begun_us', text(begun_us), 'due_us', text(begun_us),
  'last_us', text(begun_us))
redis.call('HSET', steps, PREPARE .. ':rows', 0, PREPARE .. ':data', '', PREPARE .. ':fence', fence)
if ARGV[3] == '' then
  wait_until(PREPARE, 0)
else
  raise_fence(PREPARE)
  hold(PREPARE, ARGV[3], ARGV[4], begun_us)
end
redis.call('ZADD', open, text(begun_us), ARGV[1])
redis.call('ZADD', names, 0, ARGV[1])
plan(ARGV[1])
return redis.call('HGET', run, 'run_id')
