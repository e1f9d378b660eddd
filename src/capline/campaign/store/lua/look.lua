-- look: the campaigns that have something to claim now, higher priority first, then the one that is due longest.
--
-- ARGV   1 how many at most; 2 expiry in ms
-- Reply  {ms until another one has at the earliest, or -1; name, score, ...}
--
-- A campaign's score is (100 - priority) * 2^46 + when it has something to claim, in ms: exact in a double. Each
-- priority that occurs is one band, which is read at its head: O(priorities * log campaigns).

local now_ms = math.floor(now_us() / 1000)
local most, names, next_ms, band = tonumber(ARGV[1]), {}, math.huge, 0
while true do
  local head = redis.call('ZRANGE', next_of_all, text(band * BAND), 'inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')[2]
  if not head then
    break
  end
  band = math.floor(head / BAND)
  local start = band * BAND
  if #names < 2 * most then
    for _, word in ipairs(redis.call('ZRANGE', next_of_all, text(start), text(start + now_ms), 'BYSCORE',
      'LIMIT', 0, most - #names / 2, 'WITHSCORES')) do
      names[#names + 1] = word
    end
  end
  local later = redis.call('ZRANGE', next_of_all, '(' .. text(start + now_ms), text(start + BAND - 1), 'BYSCORE',
    'LIMIT', 0, 1, 'WITHSCORES')[2]
  if later then
    -- An instant is kept rounded up, and now is rounded down: without the 1 a lease would seem longer than it is.
    next_ms = math.min(next_ms, math.max(1, later - start - now_ms - 1))
  end
  band = band + 1
end
return {next_ms < math.huge and next_ms or -1, unpack(names)}
