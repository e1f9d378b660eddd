-- describe: write what the audience of a campaign is, if it is prepared under this fence and nobody wrote it.
--
-- ARGV   1 fence; 2 expiry in ms; 3 campaign; then names and values of the run's fields
--
-- O(fields).

if owned(PREPARE, ARGV[1]) and redis.call('HGET', run, 'batches') == '0' then
  redis.call('HSET', run, unpack(ARGV, 4))
  plan(ARGV[3])
end
