-- forget: take the name of a campaign out of the list of all, if it has expired.
--
-- ARGV   1 campaign
--
-- O(log campaigns).

if redis.call('EXISTS', run) == 0 then
  redis.call('ZREM', names, ARGV[1])
end
