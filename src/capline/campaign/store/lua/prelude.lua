-- Stands before every script.
--
-- KEYS   1 run, 2 waiting, 3 held, 4 steps, 5 aside; of all campaigns: 6 open, 7 next, 8 names
-- ARGV   each script names its own; the second is the expiry in ms

local run, waiting, held, steps, aside, open, next_of_all, names = unpack(KEYS)

local DAY_MS, SILENT_US = 86400000, 10000000
local BAND = 2 ^ 46
local PREPARE = '-1'

local function now_us()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- Whole, without an exponent.
local function text(number)
  return string.format('%.0f', number)
end

-- The time since the last step was work.
local function worked(until_us)
  local since_us = until_us - redis.call('HGET', run, 'last_us')
  redis.call('HINCRBY', run, 'elapsed_us', text(math.max(since_us, 0)))
  redis.call('HSET', run, 'last_us', text(until_us))
end

-- What is due later lives so much longer.
local function expiry_ms(due_us)
  return ARGV[2] + math.ceil(math.max((due_us or 0) - now_us(), 0) / 1000)
end

-- Whether a campaign is not prepared yet.
local function partial(cancelled, queued, batches)
  return not cancelled and (batches == '0' or tonumber(queued) < tonumber(batches))
end

local function finish(campaign)
  redis.call('HSET', run, 'finished', text(now_us()))
  redis.call('ZREM', open, campaign)
end

-- The end of each script that changes a campaign: a cancelled one is over when nobody has a batch and none waits. What
-- expires is renewed, and when a worker has something to claim there is put into the list of all. Where there is
-- nothing, that is after it has expired, so that its name is removed then; the lists outlive each campaign.
local function plan(campaign)
  if redis.call('HEXISTS', run, 'cancelled') == 1 and redis.call('ZCARD', waiting) + redis.call('ZCARD', held) == 0 then
    finish(campaign)
  end
  local found = redis.call('HMGET', run, 'finished', 'paused', 'cancelled', 'due_us', 'priority', 'keep_us',
    'queued', 'batches')
  local due_us = tonumber(found[4] or 0)
  local last_us = redis.call('ZRANGE', waiting, -1, -1, 'WITHSCORES')[2]
  local lives_ms = found[1] and tonumber(found[6] or '') or nil
  lives_ms = lives_ms and math.ceil(lives_ms / 1000) or expiry_ms(math.max(due_us, last_us or 0))
  for key = 1, 5 do
    redis.call('PEXPIRE', KEYS[key], text(lives_ms))
  end
  local next_us = math.huge
  local ends_us = redis.call('ZRANGE', held, 0, 0, 'WITHSCORES')[2] or next_us
  if partial(found[3], found[7], found[8]) then
    next_us = math.min(redis.call('ZSCORE', waiting, PREPARE) or next_us, ends_us)
  elseif not found[2] then
    local first_us = redis.call('ZRANGE', waiting, 0, 0, 'WITHSCORES')[2] or next_us
    next_us = math.max(math.min(found[3] and last_us and 0 or first_us, ends_us), due_us)
  end
  if found[1] then
    redis.call('ZREM', next_of_all, campaign)
  else
    local next_ms = math.ceil(math.min(next_us / 1000, now_us() / 1000 + lives_ms + DAY_MS))
    redis.call('ZADD', next_of_all, text((100 - (found[5] or 50)) * BAND + next_ms), campaign)
  end
  for key = 6, 8 do
    redis.call('PEXPIRE', KEYS[key], text(math.max(lives_ms + 2 * DAY_MS, redis.call('PTTL', KEYS[key]))))
  end
end

-- Whether the batch was claimed last by who names this fence, and not put back or settled since.
local function owned(number, fence)
  return redis.call('ZSCORE', held, number) and redis.call('HGET', steps, number .. ':fence') == fence
end

-- Nobody has the batch any more.
local function let_go(number)
  redis.call('ZREM', held, number)
  local owns = 'owns:' .. (redis.call('HGET', steps, number .. ':by') or '')
  if redis.call('HGET', steps, owns) == number then
    redis.call('HDEL', steps, owns)
  end
end

-- Another claim has another fence, also where the one before was lost with a server: it is no less than the instant.
local function raise_fence(number)
  local fence = text(math.max((redis.call('HGET', steps, number .. ':fence') or 0) + 1, now_us()))
  redis.call('HSET', steps, number .. ':fence', fence)
  return fence
end

-- A worker has the batch.
local function hold(number, worker, lease_ms, since_us)
  redis.call('ZADD', held, text(since_us + 1000 * lease_ms), number)
  redis.call('HSET', steps, number .. ':by', worker, number .. ':since', text(since_us), number .. ':lease', lease_ms,
    'owns:' .. worker, number)
end

local function wait_until(number, due_us)
  redis.call('ZADD', waiting, text(math.max(due_us, number)), number)
end

local function set_aside(number, why)
  let_go(number)
  redis.call('ZREM', waiting, number)
  redis.call('HSET', aside, number, why)
end
