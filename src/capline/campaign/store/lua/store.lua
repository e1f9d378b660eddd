-- store: freeze a run's store, before anything is decided.
--
-- ARGV   1 the identity of the store that the worker opened, as JSON
-- Reply  the frozen identity: that of the first worker that called; nil where there is no run
--
-- O(1).

if redis.call('EXISTS', run) == 0 then
  return nil
end
redis.call('HSETNX', run, 'store_identity', ARGV[1])
return redis.call('HGET', run, 'store_identity')
