-- rewrite: put other subjects into a batch that nobody has, if it and the run's facts still are as they were read.
--
-- ARGV   1 number; 2 expiry in ms; 3 rows; 4 by how many fewer subjects are done; then before and after of:
--        5, 6 facts; 7, 8 data; 9, 10 decided; 11, 12 outcome, empty for none; 13 first and last subject
-- Reply  1 where it was written, also by the same call before; 0 where not
--
-- Nothing expires later for it. O(length of the bytes).

local number = ARGV[1]
local was = redis.call('HMGET', steps, number .. ':data', number .. ':decided', number .. ':outcome')
-- Whether all is as it was before, or will be after.
local function is_as(offset)
  local is_same = redis.call('HGET', run, 'facts') == ARGV[5 + offset] and not redis.call('ZSCORE', held, number)
  for place = 1, 3 do
    is_same = is_same and (was[place] or '') == ARGV[5 + 2 * place + offset]
  end
  return is_same
end
if not is_as(0) then
  return is_as(1) and 1 or 0
end
redis.call('HSET', run, 'facts', ARGV[6])
if ARGV[4] ~= '0' then
  redis.call('HINCRBY', run, 'done', -ARGV[4])
end
redis.call('HSET', steps, number .. ':rows', ARGV[3])
for place, name in ipairs({':data', ':decided', ':outcome'}) do
  if was[place] then
    redis.call('HSET', steps, number .. name, ARGV[6 + 2 * place])
  end
end
if was[2] then
  redis.call('HSET', steps, number .. ':ids', ARGV[13])
end
return 1
