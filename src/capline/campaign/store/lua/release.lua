-- release: put back a batch that is not settled, if it is still held under this fence.
--
-- ARGV   1 fence; 2 expiry in ms; 3 number; 4 campaign; 5 how: 'give_back', 'fail' or 'set_aside'; 6 why;
--        7 in how many us it is due
-- Reply  1, also to the same call again; 0 where another worker has claimed it, or nobody has it (any more)
--
-- give_back  this claim is not counted
-- fail       it is counted; `why` is kept
-- set_aside  it becomes a dead letter: no worker gets it until it is put again
--
-- O(log batches).

local number = ARGV[3]
if not owned(number, ARGV[1]) then
  local is_put_back = redis.call('ZSCORE', waiting, number) or redis.call('HEXISTS', aside, number) == 1
  return is_put_back and redis.call('HGET', steps, number .. ':fence') == ARGV[1] and 1 or 0
end
if ARGV[5] == 'set_aside' then
  set_aside(number, ARGV[6])
else
  let_go(number)
  wait_until(number, ARGV[7] == '0' and 0 or now_us() + ARGV[7])
  if ARGV[5] == 'give_back' then
    redis.call('HINCRBY', steps, number .. ':claims', -1)
  else
    redis.call('HSET', steps, number .. ':error', ARGV[6])
  end
end
plan(ARGV[4])
return 1
