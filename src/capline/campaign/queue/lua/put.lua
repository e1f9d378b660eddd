-- put: queue a batch, once.
--
-- KEYS   1 run, 2 batches, 3 steps, 4 aside, 5 open campaigns
-- ARGV   1 run id; 2 expiry in ms; 3 number; 4 rows; 5 data
-- Reply  how many batches are queued now; -1 where there is no such run (any more)
--
-- Queues the next number, or puts a dead letter back; any other number is queued already, and nothing happens. Entry
-- ids (generation-number) must ascend, so putting back begins a new generation. O(length of the data).

if redis.call('HGET', KEYS[1], 'run_id') ~= ARGV[1] then
  return -1
end
local queued = tonumber(redis.call('HGET', KEYS[1], 'queued'))
local number = tonumber(ARGV[3])
if redis.call('HEXISTS', KEYS[4], ARGV[3]) == 1 then
  local generation = tonumber(redis.call('HGET', KEYS[1], 'generation')) + 1
  redis.call('XADD', KEYS[2], generation .. '-' .. ARGV[3], 'rows', ARGV[4], 'data', ARGV[5])
  redis.call('HSET', KEYS[1], 'generation', generation)
  redis.call('HDEL', KEYS[4], ARGV[3])
elseif number == queued then
  local generation = redis.call('HGET', KEYS[1], 'generation')
  redis.call('XADD', KEYS[2], generation .. '-' .. ARGV[3], 'rows', ARGV[4], 'data', ARGV[5])
  queued = redis.call('HINCRBY', KEYS[1], 'queued', 1)
end
for key = 1, 5 do
  redis.call('PEXPIRE', KEYS[key], ARGV[2])
end
return queued
