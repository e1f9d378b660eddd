--@head
-- Merge past hits into the logs of one subject: the policy's own, and a channel's. One atomic step;
-- capline.window.merge in Lua.
--
-- KEYS   1  the policy's own log, in which known hits are found   2  a channel's, if any
-- ARGV   1 field in the bucket (empty: keys of their own)   2 now in us (empty: the server's clock)   3 retention_us
--        4 grace_ms   5 bytes of a plain stamp   6 the hits by stamp, 22 bytes each: stamp in us[7] units[7] id[8]
--        7 empty: a hit without an id is known by its stamp and units; else of an export, by its stamp alone
-- Reply: {added, known, old, ahead, ambiguous} as counts of hits; or {-1} if a stored value is not a log, {-2} if a log
--        cannot count so many units: then nothing is changed.
-- Invariant: the same hits merged again add nothing.
-- Complexity: O(hits in the logs and new ones); O(new ones) if they go to the end of a long log and none has an id.

local field, now, packed = ARGV[1], ARGV[2], ARGV[6]
--@include prelude
--@include blocks
local retention, grace, stamp_bytes = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
--@include log

local earliest = struct.unpack('>I7', packed)
local named = false
for pos = 1, #packed, 22 do named = named or string.sub(packed, pos + 14, pos + 21) ~= NONE end

local function open(key)
  local v
  if field == '' then
    v = redis.pcall('STRLEN', key)
    local log = type(v) == 'number' and not named and open_long(key, v)
    if log and not log.f and log.s[log.n] < earliest then return log end
    v = redis.pcall('GET', key)
  else
    v = redis.pcall('HGET', key, field)
  end
  if type(v) == 'table' then return nil end
  return decode(v)
end

local logs, keys, time, numbers = {}, {unpack(KEYS)}, now, nil
for k, key in ipairs(KEYS) do
  logs[k] = open(key)
  if logs[k] and logs[k].rows then   -- the log of hits is beside the numbers
    numbers, keys[k] = logs[k], string.gsub(key, ':{', '/+ids:{', 1)
    logs[k] = open(keys[k])
  end
  if not logs[k] then return {-1} end
  time = math.max(time, logs[k].floor)
end
local own, horizon = logs[1], time - retention
former_record(own, KEYS[1], field)
for _, log in ipairs(logs) do trim(log, horizon) end
local function is_id(id) return id and id ~= DENIED and id ~= REFUNDED and not is_carried(id) end
local marks = {}
if own.f then
  for i = 1, own.n do
    if is_id(own.f[i]) then marks[own.f[i]] = true end
  end
end

local fresh, at = {}, {}
local exported, known, old, ahead, ambiguous, more = ARGV[7] ~= '', 0, 0, 0, 0, 0

-- The units and the id of the hit with this stamp in the policy's log; nil if there is none.
local function hit_at(stamp)
  if at[stamp] then return at[stamp][2], at[stamp][3] end
  local i = index_of(own, stamp)
  if i then return own.c[i] - own.c[i - 1], own.f and own.f[i] end
end

local function taken(stamp)
  if at[stamp] then return true end
  for _, log in ipairs(logs) do
    if index_of(log, stamp) then return true end
  end
  return false
end

local function is_known(stamp, units, id)
  if id and marks[id] then return true end
  local there, its = hit_at(stamp)
  if not there then return false end
  return units == 0 or there == 0 or ((exported or there == units) and (not id or not its or id == its))
end

for pos = 1, #packed, 22 do
  local stamp, units = struct.unpack('>I7I7', packed, pos)
  local id = string.sub(packed, pos + 14, pos + 21)
  if id == NONE then id = nil end
  if stamp <= horizon then
    old = old + 1
  elseif stamp > time then
    ahead = ahead + 1
  elseif is_known(stamp, units, id) then
    known = known + 1
  elseif not is_id(id) and taken(stamp) then
    ambiguous = ambiguous + 1
  else
    while taken(stamp) do stamp = stamp + 1 end
    local one = {stamp, units, id}
    fresh[#fresh + 1], at[stamp], more = one, one, more + units
    if is_id(id) then marks[id] = true end
  end
end
if #fresh == 0 then
  if known > 0 then touch(keys[1], lifetime(math.max(newest(own), own.floor), retention, now, grace)) end
  return {0, known, old, ahead, ambiguous}
end

for _, log in ipairs(logs) do
  if not has_room(log, horizon, more, MOST_UNITS - 1) then return {-2} end
end

-- Merge the new hits into the log in one pass: inserting one by one would move the later hits each time.
local function weave(log, ids)
  local s, c, f, i = log.s, log.c, log.f, 1
  local s2, c2, f2, m, sum = {}, {[0] = 0}, {}, 0, 0
  local function add(stamp, units, id)
    m, sum = m + 1, sum + units
    s2[m], c2[m], f2[m] = stamp, sum, id or false
  end
  local function older(stamp)
    while i <= log.n and s[i] < stamp do
      add(s[i], c[i] - c[i - 1], f and f[i])
      i = i + 1
    end
  end
  for _, one in ipairs(fresh) do
    older(one[1])
    add(one[1], one[2], ids and one[3])
  end
  older(math.huge)
  log.s, log.c, log.f, log.n, log.key = s2, c2, f2, m, nil
  log.floor = math.max(log.floor, math.min(fresh[#fresh][1], time))
end

local last = numbers and numbers.floor or 0
for k, log in ipairs(logs) do
  if log.n == 0 or log.s[log.n] < fresh[1][1] then
    for _, one in ipairs(fresh) do record(log, one[1], one[2], math.min(one[1], time), k == 1 and one[3] or nil) end
  else
    weave(log, k == 1)
  end
  last = math.max(last, log.s[log.n], log.floor)
end
local ttl = lifetime(last, retention, now, grace)
if numbers then keys[#logs + 1], logs[#logs + 1] = KEYS[1], {rows = numbers.rows, floor = last} end
for k, key in ipairs(keys) do
  local log = logs[k]
  if log.key then
    save(log, ttl)
  elseif field == '' then
    call('SET', key, encode(log, stamp_bytes), 'PX', ttl)
  else
    call('HSET', key, field, encode(log, stamp_bytes))
    keep_bucket(key, ttl, grace)
  end
end
return {#fresh, known, old, ahead, ambiguous}
