-- The published sliding window of two limits, one sorted set for each user: the baseline.
--
-- KEYS   1  the user's sorted set; score and member are the stamp of a hit in us
-- ARGV   1  now in us
--        2  seconds until the set may go: the wider window
--        3  quota   4  cutoff in us: hits at or before it are out          (the narrower window)
--        5  quota   6  cutoff in us                                        (the wider window)
-- Returns 1 where the hit was recorded, 0 where a window is full.
--
-- Two hits in the same microsecond are one. Cost: O(log n) for each call, and n grows with the wider quota.

redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[6])
for i = 3, 5, 2 do
  if redis.call('ZCOUNT', KEYS[1], '(' .. ARGV[i + 1], '+inf') >= tonumber(ARGV[i]) then
    return 0
  end
end
redis.call('ZADD', KEYS[1], ARGV[1], ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
