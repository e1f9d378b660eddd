-- release: end the consumer's lease of a batch that is not settled.
--
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
local pending = owned(ARGV[1], id)
if not pending then
  return 0
end
if ARGV[4] == 'give_back' then
  local claims = math.max(tonumber(pending[4]) - 1, 0)
  -- Idle for a month, so that any takeover time has passed.
  redis.call('XCLAIM', batches, 'workers', 'nobody', 0, id, 'IDLE', 2592000000, 'RETRYCOUNT', claims, 'JUSTID')
elseif ARGV[4] == 'fail' then
  redis.call('XCLAIM', batches, 'workers', 'nobody', 0, id, 'JUSTID')
  redis.call('HSET', steps, number .. ':error', ARGV[5])
else
  redis.call('HSET', aside, number, ARGV[5])
  redis.call('XACK', batches, 'workers', id)
  redis.call('XDEL', batches, id)
end
renew_expiry()
return 1
