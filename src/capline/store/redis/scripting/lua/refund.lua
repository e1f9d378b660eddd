--@head
-- Refund one hit: in the policy's own log and in every other log that has it (a channel's, or one of a single limit).
-- One atomic step; `refund` of capline.window.rule in Lua.
--
-- KEYS   the policy's own log, then the others, of one subject or its bucket
-- ARGV   1 the hit's stamp in us   2 field in the bucket (empty: keys of their own)
--        3 now in us (empty: the server's clock)   4 keep_us   5 grace_ms   6 bytes of a plain stamp
--        7 the hit's cost in units, used where hits are kept as sums
--        8 empty: every log keeps single hits; else msgpack: [keeps, rise, keeps, rise, ...] for each key's log: `keeps`
--          as in rule.lua; `rise`, by which a unit raises the level of gcra, 0 for other algorithms
-- Reply: 1 refunded; 0 no such hit in the widest window, or refunded before; -1 a stored value is not a log.
-- Invariant: a hit is refunded at most once, and its stamp stays; the time to live of a key does not change.
-- Complexity: O(hits after it).

local call = redis.call
local stamp, field, now = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local keep, wide, cost = tonumber(ARGV[4]), tonumber(ARGV[6]), tonumber(ARGV[7])
local kept = ARGV[8] ~= '' and cmsgpack.unpack(ARGV[8]) or {}
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

local function write(key, log)
  if log.key then
    local ids = log.size - 14
    call('SETRANGE', key, log.start + (log.dirty - 1) * log.size, entries(log, log.dirty, 0, 0, 7, 7, ids))
  elseif field == '' then
    call('SET', key, encode(log, wide), 'KEEPTTL')
  else
    call('HSET', key, field, encode(log, wide))
  end
end

-- Take the cost off the sum, or the level, that the hit was added to.
local function give_back_sum(log, keeps, rise, units)
  local n = log.n
  if rise > 0 then
    local rest = n > 0 and units_of(log, n) or 0
    return give_back(log, n, math.min(rest, units * rise))
  end
  local i = upto(log.s, n, stamp - 1) + 1
  if i <= n and log.s[i] == stamp then
    return give_back(log, i, log.f and log.f[i] and units_of(log, i) or units)
  end
  -- A sum is stamped with the newest of its hits.
  local stop = stamp - stamp % keeps + keeps
  while i <= n and log.s[i] < stop do
    if not (log.f and log.f[i]) and give_back(log, i, units) then return true end
    i = i + 1
  end
  return false
end

local logs = {}
for k, key in ipairs(KEYS) do
  logs[k] = open(key)
  if not logs[k] then return -1 end
end
local own = logs[1]
if stamp <= math.max(now, own.floor) - keep then return 0 end
local given, at = 0, index_of(own, stamp)
local units = at and units_of(own, at) or 0
if (kept[1] or 0) > 0 then
  if give_back_sum(own, kept[1], kept[2], cost) then given = 1 end
elseif kept[1] == -1 then
  if units > 0 then
    give_back(own, at, units)
  elseif at then
    return 0
  end
  for k = 2, #KEYS do
    if give_back_sum(logs[k], kept[2 * k - 1], kept[2 * k], units > 0 and units or cost) then given = 1 end
  end
elseif units > 0 then
  given = 1
  for _, log in ipairs(logs) do
    local i = index_of(log, stamp)
    if i then give_back(log, i, units) end
  end
end
for k, key in ipairs(KEYS) do
  if logs[k].dirty then write(key, logs[k]) end
end
return given
