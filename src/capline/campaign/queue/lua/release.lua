-- release: end the consumer's lease of a batch that is not settled.
--
-- KEYS   1 run, 2 batches, 3 steps, 4 aside, 5 open campaigns
-- ARGV   1 consumer; 2 expiry in ms; 3 entry id; 4 how: 'give_back', 'fail' or 'set_aside'; 5 why
-- Reply  1; 0 where it does not own the batch (any more)
--
-- give_back  the next worker that asks claims it, and this claim is not counted
-- fail       it can be claimed when its lease would have expired, which is the pause before the next try; `why` is kept
-- set_aside  it becomes a dead letter: no worker gets it until it is put again
--
-- O(log batches in work).

local id = ARGV[3]
local number = string.match(id, '-(%d+)$')
local pending = redis.call('XPENDING', KEYS[2], 'workers', id, id, 1, ARGV[1])[1]
if not pending then
  return 0
end
if ARGV[4] == 'give_back' then
  local claims = math.max(tonumber(pending[4]) - 1, 0)
  -- Idle for a month, so that any takeover time has passed.
  redis.call('XCLAIM', KEYS[2], 'workers', 'nobody', 0, id, 'IDLE', 2592000000, 'RETRYCOUNT', claims, 'JUSTID')
elseif ARGV[4] == 'fail' then
  redis.call('XCLAIM', KEYS[2], 'workers', 'nobody', 0, id, 'JUSTID')
  redis.call('HSET', KEYS[3], number .. ':error', ARGV[5])
else
  redis.call('HSET', KEYS[4], number, ARGV[5])
  redis.call('XACK', KEYS[2], 'workers', id)
  redis.call('XDEL', KEYS[2], id)
end
for key = 1, 5 do
  redis.call('PEXPIRE', KEYS[key], ARGV[2])
end
return 1
