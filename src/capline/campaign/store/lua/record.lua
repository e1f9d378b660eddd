-- record: write a step of a batch, or renew its lease, if it is still held under this fence. The last step of a batch
-- settles it; the last batch finishes the run.
--
-- ARGV   1 fence; 2 expiry in ms; 3 number; 4 campaign; to write: 5 decided, or empty to keep it; 6 outcome; 7 the
--        batch's rows where this step settles it, else empty; 8 its first and last subject
-- Reply  1 where it is written, or was by the same call before; 0 where another worker has claimed it, or nobody has it
--
-- O(length of the bytes).

local number, campaign = ARGV[3], ARGV[4]
local settles = ARGV[7] and ARGV[7] ~= ''

if not owned(number, ARGV[1]) then
  local was = redis.call('HMGET', steps, number .. ':fence', number .. ':outcome')
  local again = settles and was[1] == ARGV[1] and was[2] == ARGV[6] and not redis.call('ZSCORE', waiting, number)
  return again and 1 or 0
end

local recorded_us = now_us()
if ARGV[5] and ARGV[5] ~= '' then
  redis.call('HSET', steps, number .. ':decided', ARGV[5], number .. ':ids', ARGV[8])
end
if ARGV[6] then
  redis.call('HSET', steps, number .. ':outcome', ARGV[6])
  redis.call('HDEL', steps, number .. ':error')
  worked(recorded_us)
end
if settles then
  let_go(number)
  redis.call('HDEL', steps, number .. ':data', number .. ':claims')
  redis.call('HINCRBY', run, 'done', ARGV[7])
  if redis.call('HINCRBY', run, 'settled', 1) == tonumber(redis.call('HGET', run, 'batches')) then
    finish(campaign)
  end
else
  redis.call('ZADD', held, text(recorded_us + 1000 * redis.call('HGET', steps, number .. ':lease')), number)
end
plan(campaign)
return 1
