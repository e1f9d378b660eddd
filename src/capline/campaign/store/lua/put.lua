-- put: queue a batch, once.
--
-- ARGV   1 run id; 2 expiry in ms; 3 number; 4 rows; 5 data
-- Reply  how many batches are queued now; -1 where there is no such run (any more)
--
-- Queues the next number, or puts a dead letter back; any other number is queued already, and nothing happens. Entry
-- ids (generation-number) must ascend, so putting back begins a new generation. O(length of the data).

if redis.call('HGET', run, 'run_id') ~= ARGV[1] then
  return -1
end
local queued = tonumber(redis.call('HGET', run, 'queued'))
local number = tonumber(ARGV[3])
if redis.call('HEXISTS', aside, ARGV[3]) == 1 then
  local generation = tonumber(redis.call('HGET', run, 'generation')) + 1
  redis.call('XADD', batches, generation .. '-' .. ARGV[3], 'rows', ARGV[4], 'data', ARGV[5])
  redis.call('HSET', run, 'generation', generation)
  redis.call('HDEL', aside, ARGV[3])
elseif number == queued then
  local generation = redis.call('HGET', run, 'generation')
  redis.call('XADD', batches, generation .. '-' .. ARGV[3], 'rows', ARGV[4], 'data', ARGV[5])
  queued = redis.call('HINCRBY', run, 'queued', 1)
end
renew_expiry()
return queued
