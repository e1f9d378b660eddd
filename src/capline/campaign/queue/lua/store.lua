-- store: fix a run's store, before anything is decided.
--
-- KEYS   1 run, 2 batches, 3 steps, 4 aside, 5 open campaigns
-- ARGV   1 the identity of the store that the worker opened, as JSON
-- Reply  the fixed identity: that of the first worker that called; nil where there is no run
--
-- O(1).

if redis.call('EXISTS', KEYS[1]) == 0 then
  return nil
end
redis.call('HSETNX', KEYS[1], 'store_identity', ARGV[1])
return redis.call('HGET', KEYS[1], 'store_identity')
