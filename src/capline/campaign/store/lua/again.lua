-- again: put a settled batch back, or a further one, and write the outcomes of the batches whose rows it takes.
--
-- ARGV   1 run id; 2 expiry in ms; 3 number; 4 rows; 5 data; 6 campaign; 7 how many subjects are to be done again;
--        then for each of these batches its number and its outcome
-- Reply  1 where it is so now, or was by the same call before; 0 where another process was first, or the run is gone
--
-- The number of a further batch is how many there are. O(length of the data and the outcomes).

local found = redis.call('HMGET', run, 'run_id', 'batches', 'queued', 'due_us')
if found[1] ~= ARGV[1] then
  return 0
end
local is_done = tonumber(ARGV[3]) < tonumber(found[2])
for place = 8, #ARGV, 2 do
  is_done = is_done and redis.call('HGET', steps, ARGV[place] .. ':outcome') == ARGV[place + 1]
end
if is_done then
  return 1
end
if ARGV[3] == found[2] and found[2] == found[3] then
  redis.call('HINCRBY', run, 'batches', 1)
  redis.call('HINCRBY', run, 'queued', 1)
else
  -- An outcome begins with whether the batch is settled: true in MessagePack.
  local outcome = redis.call('HGET', steps, ARGV[3] .. ':outcome')
  if not outcome or string.byte(outcome, 2) ~= 0xc3 then
    return 0
  end
  redis.call('HINCRBY', run, 'settled', -1)
end
redis.call('HSET', steps, ARGV[3] .. ':rows', ARGV[4], ARGV[3] .. ':data', ARGV[5])
wait_until(ARGV[3], 0)
for place = 8, #ARGV, 2 do
  redis.call('HSET', steps, ARGV[place] .. ':outcome', ARGV[place + 1])
end
redis.call('HINCRBY', run, 'done', -ARGV[7])
redis.call('HDEL', run, 'finished')
redis.call('ZADD', open, found[4], ARGV[6])
plan(ARGV[6])
return 1
