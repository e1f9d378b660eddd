-- steer: change when a campaign is due, or pause, resume or cancel it. A paused one is due when it has expired, so that
-- a worker removes its name. A cancelled one is due now, for its decided batches; it is finished where none is in work.
--
-- ARGV   1 campaign; 2 expiry in ms; 3 when it is due in us, 0 for since it began, or empty to keep that;
--        4 'pause', 'resume', 'cancel', or empty to keep that
-- Reply  1; 0 where no such run is there, or it is finished or cancelled
--
-- O(log campaigns).

local found = redis.call('HMGET', run, 'run_id', 'finished', 'begun_us', 'cancelled')
if not found[1] or found[2] or found[4] then
  return 0
end
if ARGV[3] ~= '' then
  redis.call('HSET', run, 'due_us', ARGV[3] ~= '0' and ARGV[3] or found[3] or now_us())
end
if ARGV[4] == 'pause' then
  redis.call('HSET', run, 'paused', 1)
elseif ARGV[4] ~= '' then
  redis.call('HDEL', run, 'paused')
end
if ARGV[4] == 'cancel' then
  redis.call('HSET', run, 'cancelled', 1, 'due_us', now_us())
  if redis.call('XPENDING', batches, 'workers')[1] == 0 then
    redis.call('HSET', run, 'finished', now_us())
    redis.call('ZREM', open, ARGV[1])
    renew_expiry()
    return 1
  end
end
local due = redis.call('HMGET', run, 'due_us', 'paused')
local expired_us = string.format('%.0f', now_us() + (expiry_ms(due[1]) + DAY_MS) * 1000)
redis.call('ZADD', open, due[2] and expired_us or due[1] or now_us(), ARGV[1])
renew_expiry()
return 1
