-- leave: let go of a batch that is not settled.
--
-- KEYS   1 run, 2 batches, 3 steps, 4 aside, 5 open campaigns
-- ARGV   1 consumer; 2 expiry in ms; 3 entry id; 4 how: 'release', 'fail' or 'aside'; 5 why
-- Reply  1, or 0 where another has the batch, or nobody
--
-- release  whoever asks next has it, and this take is not counted
-- fail     it stays until its idle time is over, which is the pause before another tries; why is kept for people
-- aside    nobody is given it any more, until it is put again
--
-- O(log batches in work).

local id = ARGV[3]
local number = string.match(id, '-(%d+)$')
local pending = redis.call('XPENDING', KEYS[2], 'workers', id, id, 1, ARGV[1])[1]
if not pending then
  return 0
end
if ARGV[4] == 'release' then
  local takes = math.max(tonumber(pending[4]) - 1, 0)
  -- As if nobody had touched it for a month.
  redis.call('XCLAIM', KEYS[2], 'workers', 'nobody', 0, id, 'IDLE', 2592000000, 'RETRYCOUNT', takes, 'JUSTID')
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
