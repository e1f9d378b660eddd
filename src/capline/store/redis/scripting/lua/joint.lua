--@head
-- One attempt over several subjects (parts), each on logs of its own and at the time of these logs: all parts are
-- recorded, or none is. One atomic step; capline.window.joint in Lua.
--
-- KEYS   for each part, the key of each of its logs: the subject's, or its bucket's. All in one slot.
-- ARGV   1  empty: decide, and each part is one unit without an id, on keys of its own. Else mode[1] max_wait_us[8]
--           not_before_us[8], the times signed and as one.lua takes them. Mode: 0 decide, 1 peek, 2 take a slot: one
--           instant for all parts
--        2  now in us; empty: the server's clock
--        then of each part its terms, as one.lua takes them; behind the text, msgpack, the terms in full: [logs, limits
--           of each log, storage of each log (nil: every hit), denied, zone, next], as in attempt.lua, and `judged` if
--           something must stay free
--        then, unless 1 is empty, of each part cost[7] id[8], and its field in its bucket, if it has one. No id: zeros;
--           of a slot all parts have one, or none has
-- Reply: one string: now in us[8]; kind[1]; the number of the part whose limit binds[1]; that limit's number in the
--        part[1]; remaining[8]; retry_after in us + 1 (0: never)[8]; reset_after in us[8]; then for each part
--        whether its id was known (2: of a slot that this log has forgotten)[1] and its hit[8]; then for each part, but
--        one that has forgotten, the state of each limit, as in rule.lua, unless kind is 2, 3, 5 or 6.
--        The kinds:
--        0 refused   1 allowed
--        2 the part's id was recorded with another cost, which is in the place of remaining
--        3 the value stored for the part is not a log
--        4 allowed before: each part's id was known; the limit is the one that had the fewest units left
--        5 the ids of a slot are known in some parts only, or at several instants
--        6 the part's log cannot count so many units
-- Invariant: nothing is written unless all parts are allowed. Complexity: O(limits), some commands for each log.

local now, with_states, mode, many, max_wait, not_before = ARGV[2], true, 0, #ARGV - 2, -1, 0
--@include prelude
if ARGV[1] ~= '' then
  many = many / 2
  mode, max_wait, not_before = unpack_at('>Bi8i8', ARGV[1])
end

-- The fast path: no log has a hit at this instant or later, each part is one unit on a plain log or what flat.lua answers,
-- and all fit now, which is then the next slot too. Or else one does not, and flat.lua answers all parts as of a refusal.
-- `done`: false where one is refused; nil, and no hit is written, where the general rule has to answer.
do
  local done, owner, binds, left, latest, empty, all, last_stamp, slot
  local writes, last_write = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 0   -- room for three parts: to grow is slow
  for turn = 1, not_before == 0 and 2 or 0 do
    local first = 0   -- the keys of the parts before
    done, owner, binds, left, latest, empty, all, last_stamp = true, 0, 255, MOST_UNITS, now, 0, '', now
    for p = 1, many do
      local static, asked, key = ARGV[2 + p], ARGV[2 + many + p], KEYS[first + 1]
      local stamp_bytes, many, text, retention, grace, least, number, widest, quota, window =
        unpack_at('>BI2BI8I8I8BI8I8I8', static)
      local cost, id, field, path, keeps = 1, '', '', least > 0 and 7 or number % 32, number % 64 >= 32
      if asked then cost, id, field = unpack_at('>I7', asked), sub(asked, 8, 15), sub(asked, 16) end
      if id == '\0\0\0\0\0\0\0\0' then id = '' end
      local text_at = 38 + ((path > 0 and path < 7 and 32 or 16) + (keeps and 8 or 0)) * many
      local ttl = sub(static, text_at, text_at + text - 1)
      local limits, judged, facts, begins_next, v, bytes, news
      local logs, new, kind, limit, remaining, when, reset, states = 1, false, nil, nil, nil, nil, nil, ''
      if turn == 1 and least > 0 and cost == 1 and id == '' then
        --@include stored
        if type(v) ~= 'table' then
          --@include unit
          if bytes and not new then
            --@include blocks
            --@include long
            new, kind, limit, remaining, when, reset, states = long_unit(key, bytes, limits, widest, nil, v, judged)
          end
        end
      end
      if kind ~= 1 or when ~= now then
        --@include flat
        local tightest
        when, limit, remaining, tightest, reset, states, news = flat(call, unpack_at, pack, byte, sub, floor, now, mode, static,
          cost, field, id, stamp_bytes, many, text, retention, grace, path, keeps, first, turn == 1)
        if not when or turn == 1 and when > now then
          done = when and false
          break
        end
        if turn == 1 then limit = tightest end
        logs, reset = path < 6 and many + 1 or 1, reset - now   -- numbers have a log each, beside that of the hits with ids
      end
      if turn == 2 and when > latest then
        latest, owner, binds = when, p - 1, limit
      elseif turn == 1 and remaining < left then
        owner, binds = p - 1, limit
      end
      if remaining < left then left = remaining end
      if reset > empty then empty = reset end
      for k = 1, turn == 1 and mode ~= 1 and logs or 0 do
        if news then new, bytes = news[k], false end
        if new then
          writes[last_write + 1], writes[last_write + 2], writes[last_write + 3] = KEYS[first + k], field, new
          writes[last_write + 4], writes[last_write + 5], writes[last_write + 6] = bytes or false, ttl, grace
          last_write = last_write + 6
        end
      end
      all, first = all .. states, first + logs
    end
    if done ~= false or mode == 2 then break end
  end
  if done then
    local kind = latest > now and 0 or 1
    for i = 1, kind * last_write, 6 do
      local key, field, new, bytes, ttl = writes[i], writes[i + 1], writes[i + 2], writes[i + 3], writes[i + 4]
      if bytes then
        call('SETRANGE', key, bytes, new)
        call('PEXPIRE', key, ttl)
      elseif field == '' then
        call('SET', key, new, 'PX', ttl)
      else
        call('HSET', key, field, new)
        if call('PTTL', key) < tonumber(ttl) then call('PEXPIRE', key, ttl + floor(writes[i + 5] / 2)) end
      end
    end
    return pack('>I8BBBI8I8I8', now, kind, owner, binds, left > 0 and left or 0, kind == 1 and 0 or latest - now + 1, empty)
      .. string.rep(pack('>BI8', 0, kind * now), many) .. all
  end
end

local function pack_answer(kind, part, limit, remaining, when, reset, tail)
  return pack('>I8BBBI8I8I8', now, kind, part, limit, remaining, when, reset) .. tail
end
--@include blocks
--@include log
--@include level
--@include limit_reader
--@include reservation
--@include rule
--@include numbers

local function open(part, key)
  if part.field ~= '' then
    local v = redis.pcall('HGET', key, part.field)
    return type(v) ~= 'table' and decode(v) or nil
  end
  local bytes = redis.pcall('STRLEN', key)
  if type(bytes) == 'table' then return nil end
  return open_long(key, bytes) or decode(call('GET', key))
end

local parts, at = {}, 0
for p = 1, many do
  local static, asked, cost, field, id = ARGV[2 + p], ARGV[2 + many + p], 1, '', nil
  local stamp_bytes, limits_in_all, text, retention, grace, least, number = unpack_at('>BI2BI8I8I8B', static)
  local each = (least == 0 and number % 32 > 0 and 32 or 16) + (number % 64 >= 32 and 8 or 0)
  local terms = cmsgpack.unpack(sub(static, 38 + each * limits_in_all + text))
  local width, limits, storage, denied, zone, begins_blocks, judged = unpack(terms, 1, 7)
  next_forms = next_forms or begins_blocks
  if asked then cost, id, field = unpack_at('>I7', asked), sub(asked, 8, 15), sub(asked, 16) end
  local part = {
    field = field, id = id ~= NONE and id or nil, grace = grace, stamp_bytes = stamp_bytes, logs = {}, keys = {},
  }
  for k = 1, width do
    at = at + 1
    local log = open(part, KEYS[at])
    if not log then return pack_answer(3, p - 1, 255, 0, 0, 0, '') end
    part.keys[k] = KEYS[at]
    part.logs[k] = {
      log = log, limits = limits[k], judged = judged and judged[k], cost = cost, retention = retention,
      storage = storage and storage[k] or 0, zone = zone, denied = denied,
    }
  end
  part.logs, part.former = take_former(part.logs)
  part.numbers = take_numbers(part.logs, now, part.keys[1], field)
  if part.numbers == false then return pack_answer(3, p - 1, 255, 0, 0, 0, '') end
  part.record = take_record(part.logs, now, part.keys[1], field)
  match_channels(part.logs)
  if not part.numbers then carry_hits(part.logs, now) end
  parts[#parts + 1] = part
end

-- Known parts were allowed before; the new ones are judged.
local new, owners, first = {}, {}, nil
for p, part in ipairs(parts) do
  part.time = time_and_newest(part.logs, now)
  part.logs[1].named = part.id
  local known = part.id and first_answer(part.logs, part.id, part.time)
  if known and known[1] == CONFLICT then return pack_answer(2, p - 1, 255, known[3], 0, 0, '') end
  if known then
    part.hit, part.known = known[4], true
    if not first or known[3] < first[3] then first = {p - 1, known[2], known[3], known[5]} end
  else
    new[#new + 1] = part
    for _, bound in ipairs(part.logs) do
      for _ = 1, #bound.limits, 2 do owners[#owners + 1] = p - 1 end
    end
  end
end

-- A slot has one instant in all logs. Where its ids are known it is answered again, also where it is so old that some of
-- the logs have forgotten it; nil where they name no one slot.
local function known_slot()
  local slot
  for _, part in ipairs(parts) do
    if slot and part.known and part.hit ~= slot then return nil end
    slot = slot or part.hit
  end
  for _, part in ipairs(new) do
    if slot > part.time - part.logs[1].retention then return nil end
    part.hit, part.forgotten = slot, true
  end
  new = {}
  return slot
end

if mode == 2 and first and not known_slot() then return pack_answer(5, 0, 255, 0, 0, 0, '') end

local function hits()
  local all = {}
  for p, part in ipairs(parts) do
    all[p] = struct.pack('>BI8', part.forgotten and 2 or part.known and 1 or 0, part.hit or 0)
    all[many + p] = part.forgotten and '' or states_of(part.logs)
  end
  return table.concat(all)
end

local function save_part(part)
  if part.forgotten and not part.numbers then return end
  save_numbers(part.numbers, part.logs, now, part.grace, part.stamp_bytes)
  local all = {unpack(part.logs)}
  if part.record and part.logs[1].changed then renew(part.record, part.logs[1].log) end
  for k = #all + 1, #part.keys do all[k] = part.former[k] or part.record end
  for k, bound in ipairs(all) do
    local log, key = bound.log, part.keys[k]
    local ttl = lifetime(math.max(newest(log), log.floor), bound.retention, now, part.grace)
    if part.known and not bound.changed then return touch(key, ttl) end
    if bound.changed then
      if log.key then
        save(log, ttl)
      elseif log.n == 0 then
        remove(key, part.field)
      else
        put_value(key, part.field, nil, encode(log, part.stamp_bytes), ttl, part.grace)
      end
    elseif not part.former[k] then
      prolong(key, math.max(newest(log), log.floor), bound.retention, now, part.grace)
    end
  end
end

if #new == 0 then
  if mode ~= 1 then
    for _, part in ipairs(parts) do save_part(part) end
  end
  return pack_answer(4, first[1], first[2] or 255, first[3], 0, first[4], hits())
end

local judged = {}
for i, part in ipairs(new) do judged[i] = part.logs end
local said, stamps
if mode == 2 then said = place(judged, now, max_wait, not_before) else said, stamps = judge(judged, now) end
local owner, limit = 0, said[2]
if limit then
  -- From the number among all limits to the number within the part.
  owner = owners[limit + 1]
  local before = 0
  while owners[before + 1] ~= owner do before = before + 1 end
  limit = limit - before
end
local allowed = said[1] == ALLOWED
if allowed then
  for i, part in ipairs(new) do part.hit = stamps and stamps[i] or said[4] end
end
if mode ~= 1 then
  for p, part in ipairs(allowed and parts or {}) do
    local room = part.known or can_count(part.logs, part.time, part.hit)
    if not room then return pack_answer(6, p - 1, 255, 0, 0, 0, '') end
  end
  for _, part in ipairs(allowed and new or {}) do put_all(part.logs, part.time, part.hit, part.id) end
  for _, part in ipairs(parts) do
    if allowed or part.numbers or not part.known then save_part(part) end
  end
end
return pack_answer(said[1], owner, limit or 255, said[3], allowed and 0 or said[4], said[5], hits())
