-- steer: change when a campaign is due or over, or pause, resume or cancel it. Of a cancelled one that which is decided
-- waits no longer; it is finished where nobody has a batch and none is decided.
--
-- ARGV   1 campaign; 2 expiry in ms; 3 when it is due in us, 0 for since it began, or empty to keep that;
--        4 'pause', 'resume', 'cancel', or empty to keep that; 5 when it is over in us, 0 for never, or empty to keep
--        that; 6 who changes it, or empty where its file says so; 7 a name of this call
-- Reply  1, also to the same call again; 0 where no such run is there, it is finished or cancelled, or someone changes when it is due too late
--
-- O(log campaigns); to cancel O(batches).

local found = redis.call('HMGET', run, 'run_id', 'finished', 'begun_us', 'cancelled', 'due_us', 'steered')
if found[6] == ARGV[7] then
  return 1
end
local is_late = ARGV[3] ~= '' and ARGV[6] ~= '' and tonumber(found[5] or 0) <= now_us()
if not found[1] or found[2] or found[4] or is_late then
  return 0
end
redis.call('HSET', run, 'steered', ARGV[7])
if ARGV[3] ~= '' then
  redis.call('HSET', run, 'due_us', ARGV[3] ~= '0' and ARGV[3] or found[3])
end
if ARGV[5] ~= '' then
  redis.call('HSET', run, 'until_us', ARGV[5])
end
if ARGV[6] ~= '' then
  redis.call('HINCRBY', run, 'changes', 1)
  redis.call('HSET', run, 'changed_us', text(now_us()), 'changed_by', ARGV[6])
end
if ARGV[4] == 'pause' then
  redis.call('HSET', run, 'paused', 1)
elseif ARGV[4] ~= '' then
  redis.call('HDEL', run, 'paused')
end
-- A paused one is open again when it has expired, so that its name is removed then.
local due = redis.call('HMGET', run, 'due_us', 'paused')
redis.call('ZADD', open, due[2] and text(now_us() + (expiry_ms(due[1]) + DAY_MS) * 1000) or due[1], ARGV[1])
if ARGV[4] == 'cancel' then
  local due_us = text(now_us())
  redis.call('HSET', run, 'cancelled', 1, 'due_us', due_us)
  redis.call('ZADD', open, due_us, ARGV[1])
  for _, number in ipairs(redis.call('ZRANGE', waiting, 0, -1)) do
    if redis.call('HEXISTS', steps, number .. ':decided') == 0 then
      redis.call('ZREM', waiting, number)
    end
  end
end
plan(ARGV[1])
return 1
