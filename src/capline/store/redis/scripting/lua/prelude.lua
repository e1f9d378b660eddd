-- What every script begins with: the commands, the clock, how long a key lives, and the sizes. Runs nothing by itself.

local call = redis.call
local SHORT = 128                       -- a value of at most so many hits is read and written whole
local LONG_BYTES = 22 + SHORT * 14      -- no short value has more bytes than these
local MOST_UNITS = 2 ^ 53               -- the largest whole number that Lua counts to; stamps are below it

-- The instant of the script in us: the caller's clock, or the server's where the argument is empty. Read once.
local function clock(argument)
  local now = tonumber(argument)
  if now then return now end
  local time = call('TIME')
  return time[1] * 1000000 + time[2]
end

-- In how many ms a key expires whose last stamp is this one.
local function lifetime(last, retention, now, grace)
  return math.max(1, math.ceil((last + retention - now) / 1000)) + grace
end

-- Let a bucket live so many ms, or longer; ahead by half the grace, so that not every write has to say so.
local function keep_bucket(key, ttl, grace)
  if call('PTTL', key) < ttl then call('PEXPIRE', key, ttl + math.floor(grace / 2)) end
end

-- Let a key whose last stamp is this one live as long as this rule keeps hits: it may have been written under a rule that
-- keeps them for less, and a refusal writes nothing. A write only where more than half the grace is missing.
local function prolong(key, last, retention, now, grace)
  keep_bucket(key, lifetime(last, retention, now, grace - math.floor(grace / 2)), grace)
end
