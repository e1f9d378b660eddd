--@head
-- Refund one hit, settle it at what it really cost, or commit it if it is reserved: in the policy's own log and in
-- every other log that has it (a channel's, or one of a single limit). One atomic step; capline.window.charge and
-- reservation in Lua.
--
-- KEYS   the policy's own log, then the others, of one subject or its bucket; then as many as ARGV 12 says of numbers that
--        the policy kept before it kept hits; last the record of its reservations, if ARGV 10 says so
-- ARGV   1 the hit's stamp in us   2 field in the bucket (empty: keys of their own)
--        3 now in us (empty: the server's clock)   4 retention_us   5 grace_ms   6 bytes of a plain stamp
--        7 the hit's cost in units; to refund, used where hits are kept as sums
--        8 empty: every log keeps single hits; else msgpack, five for each key's log: `storage` as in rule.lua; the most
--          units that a sum may have; rise, fall and brim of the level of gcra, 0 for other algorithms
--        9 empty: refund; 1: settle; 2: commit   10 empty: no reservations; else the mark of each other key's log, 4 bytes
--        each, see reservation.lua   11 msgpack, the terms in full, as joint.lua takes them; for numbers
--        12 how many keys are of former numbers
-- Reply: 1 done; 0 no such hit in the widest window, or refunded before; -1 a stored value is not a log; -2 more units
--        than a log can count.
-- Invariant: a hit is refunded at most once, and its stamp stays. Reservations that have ended are written with a change
-- only. A key's time to live changes only where a level must be kept longer.
-- Complexity: O(hits after it); in a log by blocks, O(hits after it in its block).

local stamp, field, now = tonumber(ARGV[1]), ARGV[2], ARGV[3]
--@include prelude
--@include blocks
local retention, stamp_bytes, cost = tonumber(ARGV[4]), tonumber(ARGV[6]), tonumber(ARGV[7])
local kept = ARGV[8] ~= '' and cmsgpack.unpack(ARGV[8]) or {}
--@include log
--@include level
--@include reservation

-- The rule, for numbers that are one value.
local function load_numbers_of_rule()
  --@include limit_reader
  --@include rule
  --@include numbers
  return take_numbers, save_numbers, take_former
end

local function open(key)
  local v
  if field == '' then
    v = redis.pcall('STRLEN', key)
    local log = type(v) == 'number' and open_long(key, v)
    if log and not log.first then return log end
    v = redis.pcall('GET', key)
  else
    v = redis.pcall('HGET', key, field)
  end
  if type(v) == 'table' then return nil end
  return decode(v)
end

local numbers   -- of the policy, where they are one value

-- Give hit number i so many units; at 0 its id, if it has one, is REFUNDED. In a long log of which nothing else was
-- changed, the units up to each later hit wait for `shifted`.
local function set_units(log, i, units)
  local more = units - units_of(log, i)
  keep_above(log, i, more)
  local most = log.ahead and MOST_AHEAD - math.abs(ahead_of(log, math.huge)) - math.abs(more) or MOST_UNITS
  if log.key and not log.ended and not numbers and log.c[log.n] + more <= most then
    log.dirty, log.more, log.refunded = i, more, units == 0 and log.f and log.f[i]
  elseif units == 0 then
    give_back(log, i, units_of(log, i))
  else
    amend(log, i, units)
  end
end

-- Write a long log from the changed hit on: to the end, or where it is one by blocks, to the end of the hit's block.
local function write_shifted(log)
  local key, at, more = log.key, log.dirty, log.more
  if not log.ahead and log.n - at > 2 * IN_BLOCK and log.c[log.n] + math.abs(more) < MOST_AHEAD
    and cmsgpack.unpack(ARGV[11])[6]
  then
    log.start, log.skipped, log.ahead = BLOCKS_HEAD, 0, string.rep(NONE, BLOCKS)
    local head, tail = call('GETRANGE', key, 0, HEAD - 1), call('GETRANGE', key, HEAD, -1)
    local tag = string.char(string.byte(head) + 128)
    call('SET', key, tag .. string.sub(head, 2) .. '\0\0\0\0\0\0' .. log.ahead .. tail, 'KEEPTTL')
  end
  local last = shift_blocks(log, at, more)
  local narrow = math.max(at - 1, math.min(log.narrow, last))   -- so far without bytes for an id
  local mark, new = log.refunded and REFUNDED, shifted(log, at, narrow, 14, more)
  call('SETRANGE', key, place_of(log, at), new .. shifted(log, narrow + 1, last, log.size, more, new == '' and mark))
end

local function write(key, log)
  local longer = log.until_us and lifetime(log.until_us, retention, now, tonumber(ARGV[5]))
  if log.n == 0 then
    remove(key, field)
  elseif log.key and log.more then
    write_shifted(log)
  elseif log.key then
    call('SETRANGE', key, place_of(log, log.dirty), entries(log, log.dirty, 0, 0, 7, 7, log.size - 14))
  elseif field == '' then
    call('SET', key, encode(log, stamp_bytes), 'KEEPTTL')
  else
    call('HSET', key, field, encode(log, stamp_bytes))
  end
  if longer and call('PTTL', key) < longer then call('PEXPIRE', key, longer) end
end

-- What ARGV 8 says of the log of key k.
local function kept_of(k)
  return unpack(kept, 5 * k - 4, 5 * k)
end

-- Move the level's hit.
local function set_level(log, at, level, floor)
  if log.n == 0 then record(log, at, level, floor) else extend(log, at, level - units_of(log, log.n), floor) end
  log.until_us = at
end

-- Take the cost off the sum, or the level, that the hit was added to. A hit of before a change is in none, so it takes
-- only of what was carried over then, and at most what is left of it.
local function give_back_sum(log, storage, _, rise, fall, brim, units)
  local n, stamp = log.n, stamp
  if stamp <= (log.carried_at or -1) then
    units, stamp = math.min(units, log.carried), log.carried_at
    if units == 0 then return false end
    log.carried = log.carried - units
  end
  if rise > 0 then
    if n == 0 or units_of(log, n) == 0 then return false end
    local at, level = level_lowered(log, math.max(now, log.floor), units, rise, fall, brim)
    set_level(log, at, level, 0)
    return true
  end
  local i = upto(log.s, n, stamp - 1) + 1
  if i <= n and log.s[i] == stamp then
    return give_back(log, i, log.f and log.f[i] and units_of(log, i) or units)
  end
  -- A sum is stamped just behind its newest hit.
  local stop = stamp - stamp % storage + storage
  while i <= n and log.s[i] < stop do
    if not (log.f and log.f[i]) and give_back(log, i, units) then return true end
    i = i + 1
  end
  return false
end

local logs, former = {}, {}
local hit_keys = #KEYS - ARGV[12] - (ARGV[10] ~= '' and 1 or 0)
for k, key in ipairs(KEYS) do
  local log = open(key)
  if not log then return -1 end
  if k > hit_keys and k <= hit_keys + ARGV[12] then
    former[k - hit_keys] = {log = log, key = key, storage = -9}
  else
    logs[#logs + 1] = log
  end
end
local storage, bound, save_numbers = kept[1] or 0, {}, nil
if ARGV[9] ~= '2' and (logs[1].rows or storage < -4 or former[1]) then
  local take, take_former
  take, save_numbers, take_former = load_numbers_of_rule()
  local _, limits, storages, denied, zone = unpack(cmsgpack.unpack(ARGV[11]), 1, 5)
  for k = 1, storage < 0 and #limits or 1 do
    bound[k] = {
      log = logs[k], limits = limits[k], cost = cost, retention = retention, denied = denied, zone = zone,
      storage = storages and storages[k] or 0,
    }
  end
  for k = 1, former[1] and #storages or 0 do
    if storages[k] == -9 then
      local one = former[#bound]
      one.limits, bound[#bound + 1] = limits[k], one
    end
  end
  bound = take_former(bound)
  numbers = take(bound, now, KEYS[1], field)
  if numbers == false then return -1 end
  for k, one in ipairs(bound) do logs[k], one.log.dirty = one.log, nil end
  if storage < -4 then storage = storage + 4 end
elseif logs[1].rows then
  logs[1] = open((string.gsub(KEYS[1], ':{', '/+ids:{', 1)))
  if not logs[1] then return -1 end
end
local own, many, entries, left = logs[1], #logs, nil, nil
if ARGV[10] ~= '' then
  local pending, marks = logs[many], {}
  many = many - 1
  logs[many + 1] = nil
  for k = 1, many do marks[k] = struct.unpack('>I4', ARGV[10], 4 * k - 3) end
  entries, left = end_reservations(logs, pending, marks, now, retention)
else
  local pending = former_record(own, KEYS[1], field)
  if pending then end_reservations(storage < 0 and {own} or logs, pending, {}, now, retention) end
end
for _, log in ipairs(logs) do log.ended, log.dirty = log.dirty, nil end
local time, at = now, index_of(own, stamp)
for _, log in ipairs(logs) do time = math.max(time, log.floor) end
local units = at and units_of(own, at) or 0

-- The number of the sum, without an id, that the hit was added to: it is stamped just behind its newest.
local function sum_of(log, grain)
  local stamp = math.max(stamp, stamp <= (log.carried_at or -1) and log.carried_at or 0)
  local i, stop = upto(log.s, log.n, stamp - 1) + 1, stamp - stamp % grain + grain
  while i <= log.n and log.f and log.f[i] do i = i + 1 end
  return i <= log.n and log.s[i] < stop and i or nil
end

-- Settle the hit in every log that has it: 1, or -2, and nothing changed, if one cannot count so many units.
local function settle(more)
  local horizon, changes = time - retention, {}
  for k, log in ipairs(logs) do
    local grain, most, rise, fall, brim = kept_of(k)
    local i = index_of(log, stamp)
    if k > 1 and (grain or 0) > 0 then
      if more < 0 then
        changes[k] = function() give_back_sum(log, grain, most, rise, fall, brim, -more) end
      elseif rise > 0 then
        trim(log, horizon)
        local to, level = level_raised(log, time, more, rise, fall, brim)
        if not to then return -2 end
        changes[k] = function() set_level(log, to, level, to <= time + 1 and to or time) end
      else
        if not has_room(log, horizon, more, most) then return -2 end
        local s = sum_of(log, grain)
        changes[k] = function() if s then amend(log, s, units_of(log, s) + more) end end
      end
      if more > 0 and stamp <= (log.carried_at or -1) then
        local change = changes[k]
        changes[k] = function()
          log.carried = log.carried + more
          change()
        end
      end
    elseif i and (k == 1 or units_of(log, i) > 0) then
      if more > 0 and not has_room(log, horizon, more, most and most > 0 and most or MOST_UNITS - 1) then return -2 end
      changes[k] = function() set_units(log, i, cost) end
    end
  end
  for k = 1, many do
    if changes[k] then changes[k]() end
  end
  return 1
end

-- Commit the hit. One that is committed already is written again, unchanged, so that a WAIT after this script covers it.
if ARGV[9] == '2' then
  if units == 0 or stamp <= time - retention then return 0 end
  local pending = record_of(entries, stamp)
  if pending.n < #entries then
    write(KEYS[#KEYS], pending)
  else
    touch(KEYS[1], lifetime(math.max(newest(own), own.floor), retention, now, tonumber(ARGV[5])))
  end
  return 1
end

local settles = ARGV[9] ~= ''
local function change()
  local given, id = 0, at and own.f and own.f[at]
  if stamp <= time - retention or is_carried(id) or settles and (units == 0 or storage ~= 0 and not id) then return 0 end
  if settles and cost > 0 then
    given = cost == units and 1 or settle(cost - units)
    -- Where it changes nothing it is written again, so that a WAIT covers what an earlier one has written.
    if cost == units then touch(KEYS[1], lifetime(math.max(newest(own), own.floor), retention, now, tonumber(ARGV[5]))) end
  elseif storage > 0 then
    if give_back_sum(own, storage, kept[2], kept[3], kept[4], kept[5], cost) then given = 1 end
  elseif storage < 0 then
    if units > 0 then
      give_back(own, at, units)
    elseif at then
      return 0
    end
    for k = 2, many do
      local grain, most, rise, fall, brim = kept_of(k)
      if give_back_sum(logs[k], grain, most, rise, fall, brim, units > 0 and units or cost) then given = 1 end
    end
    -- What was recorded as a hit, before the policy kept numbers, may be in none of these yet.
    local counted = units == 0
    for k = 2, many do counted = counted or logs[k].n > 0 end
    if not counted then given = 1 end
    if settles then given = 1 end
  elseif units > 0 then
    given = 1
    for _, log in ipairs(logs) do
      local i = index_of(log, stamp)
      if i and units_of(log, i) > 0 then set_units(log, i, units_of(log, i) - units) end
    end
  end
  return given
end

local given, changed = change(), false
if given < 0 then return given end
if numbers then
  for k, one in ipairs(bound) do one.log, one.changed = logs[k], logs[k].dirty end
  save_numbers(numbers, bound, now, tonumber(ARGV[5]), stamp_bytes)
  for k, one in ipairs(bound) do
    local log = one.log
    logs[k], log.dirty = log, one.changed and 1 or nil
    if k == 1 then log.until_us = math.max(log.floor, newest(log)) end
  end
  for _, one in ipairs(former) do
    if one.changed then remove(one.key, field) end
  end
end
for _, log in ipairs(logs) do changed = changed or log.dirty end
if left and changed then
  at = index_of(own, stamp)
  local gone = false
  for _, entry in ipairs(left) do
    gone = gone or entry[1] == stamp and entry.clean and (not at or units_of(own, at) == 0)
  end
  left = record_of(left, gone and stamp or nil)
  own.reserved = left.n > 0
end
for k, log in ipairs(logs) do
  log.dirty = math.min(log.dirty or math.huge, changed and log.ended or math.huge)
  if log.dirty < math.huge then write(KEYS[k], log) end
end
if left and changed and left.n < #entries then write(KEYS[#KEYS], left) end
return given
