-- Stands before every script.
--
-- KEYS   1 run, 2 batches, 3 steps, 4 aside, 5 open campaigns
-- ARGV   each script names its own; the second is the expiry in ms

local run, batches, steps, aside, open = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]

-- The server's time in microseconds, as text: a number would be written with an exponent.
local function now_us()
  local time = redis.call('TIME')
  return time[1] .. string.format('%06d', tonumber(time[2]))
end

local DAY_MS = 86400000

-- A campaign that is due later lives so much longer.
local function expiry_ms()
  local wait_us = tonumber(redis.call('HGET', run, 'due_us') or 0) - tonumber(now_us())
  return ARGV[2] + math.ceil(math.max(wait_us, 0) / 1000)
end

-- The list of all of them outlives each, so that a worker meets the name of one that has expired.
local function renew_expiry()
  local ms = expiry_ms()
  for key = 1, 4 do
    redis.call('PEXPIRE', KEYS[key], string.format('%.0f', ms))
  end
  if redis.call('PTTL', open) < ms + 2 * DAY_MS then
    redis.call('PEXPIRE', open, string.format('%.0f', ms + 2 * DAY_MS))
  end
end

-- The pending entry, if this consumer owns it.
local function owned(consumer, id)
  return redis.call('XPENDING', batches, 'workers', id, id, 1, consumer)[1]
end
