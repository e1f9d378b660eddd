-- renew: renew the consumer's lease of a batch, if it still owns the batch.
--
-- KEYS   1 run, 2 batches, 3 steps, 4 aside, 5 open campaigns
-- ARGV   1 consumer; 2 expiry in ms; 3 entry id
-- Reply  1; 0 where it does not own the batch (any more)
--
-- O(log batches in work).

if #redis.call('XPENDING', KEYS[2], 'workers', ARGV[3], ARGV[3], 1, ARGV[1]) == 0 then
  return 0
end
redis.call('XCLAIM', KEYS[2], 'workers', ARGV[1], 0, ARGV[3], 'JUSTID')
for key = 1, 5 do
  redis.call('PEXPIRE', KEYS[key], ARGV[2])
end
return 1
