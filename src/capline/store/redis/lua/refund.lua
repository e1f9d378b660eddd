--@head
-- Give one hit back, in the policy's own log and in whichever channel's log has it. One atomic step.
--
-- KEYS   the policy's own log, then every channel's log, of one subject or its bucket
-- ARGV   1 stamp   2 field in the bucket (empty: keys of their own)   3 now in us (empty: the server's clock)
--        4 keep_us   5 grace_ms   6 bytes of a plain stamp
-- Returns 1 when given back; 0 when no such hit is within the widest window, or it was given back; -1 when what is stored
-- is no log. The time that a key has to live stays as it is. Cost: O(hits after it).

local call = redis.call
local stamp, field, now = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local keep, wide = tonumber(ARGV[4]), tonumber(ARGV[6])
if not now then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
--@include log

local function open(key)
  local v
  if field == '' then
    v = redis.pcall('STRLEN', key)
    local log = type(v) == 'number' and open_long(key, v)
    if log then return log end
    v = redis.pcall('GET', key)
  else
    v = redis.pcall('HGET', key, field)
  end
  if type(v) == 'table' then return nil end
  return decode(v)
end

local function give_back(key, log)
  local i = index_of(log, stamp)
  if not i or log.c[i] == log.c[i - 1] then return false end
  refund(log, i)
  if log.key then
    local ids = log.size - 14
    call('SETRANGE', key, log.start + (i - 1) * log.size, entries(log, i, 0, 0, 7, 7, ids))
  elseif field == '' then
    call('SET', key, encode(log, wide), 'KEEPTTL')
  else
    call('HSET', key, field, encode(log, wide))
  end
  return true
end

local logs = {}
for k, key in ipairs(KEYS) do
  logs[k] = open(key)
  if not logs[k] then return -1 end
end
if stamp <= math.max(now, logs[1].floor) - keep then return 0 end
if not give_back(KEYS[1], logs[1]) then return 0 end
for k = 2, #KEYS do give_back(KEYS[k], logs[k]) end
return 1
