-- put: store batches, each once and in their order.
--
-- ARGV   1 run id; 2 expiry in ms; 3 campaign; 4 the fence of who prepares; then of each batch: number; rows; data; when
--        it is due in us, 0 with its campaign; its first and last subject, or empty
-- Reply  how many batches are stored now; -1 where there is no such run (any more); -2 where another worker prepares
--
-- Stores the next number, or puts a dead letter back; any other number is there already, and nothing happens. With the
-- last one the campaign is prepared.
-- O(length of the data).

local found = redis.call('HMGET', run, 'run_id', 'queued', 'batches')
if found[1] ~= ARGV[1] then
  return -1
end
local queued, batches = tonumber(found[2]), tonumber(found[3])
for place = 5, #ARGV, 5 do
  local number = ARGV[place]
  local is_next = number == text(queued)
  if is_next and not owned(PREPARE, ARGV[4]) then
    return -2
  end
  if redis.call('HDEL', aside, number) == 1 or is_next then
    redis.call('HSET', steps, number .. ':rows', ARGV[place + 1], number .. ':data', ARGV[place + 2])
    redis.call('HDEL', steps, number .. ':claims')
    if ARGV[place + 4] ~= '' then
      redis.call('HSET', steps, number .. ':ids', ARGV[place + 4])
    end
    wait_until(number, ARGV[place + 3])
  end
  if is_next then
    queued = redis.call('HINCRBY', run, 'queued', 1)
    if queued == batches then
      let_go(PREPARE)
    end
  end
end
plan(ARGV[3])
return queued
