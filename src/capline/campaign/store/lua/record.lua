-- record: write a step of a batch, if the consumer owns it. The last step of a batch settles it; the last batch
-- finishes the run.
--
-- ARGV   1 consumer; 2 expiry in ms; 3 entry id; 4 decided, or empty to keep it; 5 outcome; 6 the batch's rows where
--        this step settles it, else 0; 7 campaign; 8 its first and last subject
-- Reply  1 where it is written, or was by the same call before; 0 where the consumer does not own the batch (any more)
--
-- O(length of the bytes).

local number = string.match(ARGV[3], '-(%d+)$')
local settles = ARGV[6] ~= '0'

if not owned(ARGV[1], ARGV[3]) then
  local again = settles and redis.call('HGET', steps, number .. ':by') == ARGV[1]
    and redis.call('HGET', steps, number .. ':outcome') == ARGV[5]
    and #redis.call('XRANGE', batches, ARGV[3], ARGV[3]) == 0
  return again and 1 or 0
end

local recorded_us = now_us()
if ARGV[4] ~= '' then
  redis.call('HSET', steps, number .. ':decided', ARGV[4], number .. ':outcome', ARGV[5],
    number .. ':ids', ARGV[8])
else
  redis.call('HSET', steps, number .. ':outcome', ARGV[5])
end
redis.call('HDEL', steps, number .. ':error')
worked(recorded_us)
redis.call('XCLAIM', batches, 'workers', ARGV[1], 0, ARGV[3], 'JUSTID')
if settles then
  redis.call('XACK', batches, 'workers', ARGV[3])
  redis.call('XDEL', batches, ARGV[3])
  redis.call('HINCRBY', run, 'done', ARGV[6])
  local settled = redis.call('HINCRBY', run, 'settled', 1)
  if settled == tonumber(redis.call('HGET', run, 'batches')) then
    redis.call('HSET', run, 'finished', recorded_us)
    redis.call('ZREM', open, ARGV[7])
  end
end
renew_expiry()
return 1
