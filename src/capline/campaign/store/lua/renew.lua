-- renew: renew the consumer's lease of a batch, if it still owns the batch.
--
-- ARGV   1 consumer; 2 expiry in ms; 3 entry id
-- Reply  1; 0 where it does not own the batch (any more)
--
-- O(log batches in work).

if not owned(ARGV[1], ARGV[3]) then
  return 0
end
redis.call('XCLAIM', batches, 'workers', ARGV[1], 0, ARGV[3], 'JUSTID')
renew_expiry()
return 1
