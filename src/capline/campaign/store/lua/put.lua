-- put: store a batch, once.
--
-- ARGV   1 run id; 2 expiry in ms; 3 campaign; 4 number; 5 rows; 6 data; 7 when it is due in us, 0 with its campaign;
--        8 the fence of who prepares
-- Reply  how many batches are stored now; -1 where there is no such run (any more); -2 where another worker prepares
--
-- Stores the next number, or puts a dead letter back; any other number is there already, and nothing happens. With the
-- last one the campaign is prepared.
-- O(length of the data).

if redis.call('HGET', run, 'run_id') ~= ARGV[1] then
  return -1
end
local number = ARGV[4]
local is_next = number == redis.call('HGET', run, 'queued')
if is_next and not owned(PREPARE, ARGV[8]) then
  return -2
end
if redis.call('HDEL', aside, number) == 1 or is_next then
  redis.call('HSET', steps, number .. ':rows', ARGV[5], number .. ':data', ARGV[6])
  redis.call('HDEL', steps, number .. ':claims')
  wait_until(number, ARGV[7])
end
if is_next and redis.call('HINCRBY', run, 'queued', 1) == tonumber(redis.call('HGET', run, 'batches')) then
  let_go(PREPARE)
end
plan(ARGV[3])
return tonumber(redis.call('HGET', run, 'queued'))
