-- wake: make batches due now that were decided, and wait.
--
-- ARGV   1 campaign; 2 expiry in ms; then the numbers of batches
--
-- O(numbers * log batches).

for place = 3, #ARGV do
  local number = ARGV[place]
  if redis.call('ZSCORE', waiting, number) and redis.call('HEXISTS', steps, number .. ':decided') == 1 then
    wait_until(number, 0)
  end
end
plan(ARGV[1])
