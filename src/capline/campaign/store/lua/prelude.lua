-- Stands before every script.
--
-- KEYS   1 run, 2 batches, 3 steps, 4 aside, 5 open campaigns, 6 names of all campaigns
-- ARGV   each script names its own; the second is the expiry in ms

local run, batches, steps, aside, open, names = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]

-- The server's time in microseconds, as text: a number would be written with an exponent.
local function now_us()
  local time = redis.call('TIME')
  return time[1] .. string.format('%06d', tonumber(time[2]))
end

local DAY_MS, SILENT_MS = 86400000, 10000

-- The time since the last step was work.
local function worked(until_us)
  local since_us = until_us - redis.call('HGET', run, 'last_us')
  redis.call('HINCRBY', run, 'elapsed_us', string.format('%.0f', math.max(since_us, 0)))
  redis.call('HSET', run, 'last_us', until_us)
end

-- What is due later lives so much longer.
local function expiry_ms(due_us)
  return ARGV[2] + math.ceil(math.max((due_us or 0) - now_us(), 0) / 1000)
end

local function expire(key, ms)
  redis.call('PEXPIRE', key, string.format('%.0f', ms))
end

-- The lists of campaigns outlive each, so that a worker meets the name of one that has expired.
local function renew_expiry()
  local ms = expiry_ms(redis.call('HGET', run, 'due_us'))
  for key = 1, 4 do
    expire(KEYS[key], ms)
  end
  local last_ms = expiry_ms(redis.call('ZRANGE', open, -1, -1, 'WITHSCORES')[2]) + 2 * DAY_MS
  expire(open, last_ms)
  expire(names, last_ms)
end

-- The pending entry, if this consumer owns it.
local function owned(consumer, id)
  return redis.call('XPENDING', batches, 'workers', id, id, 1, consumer)[1]
end
