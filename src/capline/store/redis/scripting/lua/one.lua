--@head
-- One attempt of one unit without an id on one log: decide, or take a slot. The script of nearly every online request,
-- so it takes the fast path first and loads the general rule only if that does not apply.
--
-- KEYS   1  the subject's key, or its bucket's
-- ARGV   1  the terms: bytes of a stamp[1] retention_us[8] grace_ms[8] least quota[8] its number[1]
--           widest window in us[8], then quota[8] and window in us[8] of each limit, then the ms that a key lives
--           after a hit of now, as text. A least quota of 0: the fast path does not apply. The number's bit 64: the
--           log may begin a next form; 32: before the text come the units of each limit that must stay free[8].
--        2  the field in the bucket; empty: a key of its own
--        3  now in us; empty: the server's clock
--        4  absent: decide; else take a slot: max_wait_us[8] not_before_us[8], signed
-- Reply: that of attempt.lua for one row, with the state of each limit.
-- Invariant: the answer is the one that attempt.lua would give. Complexity: O(limits), two to four commands.

local static, field, now, slot = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
--@include prelude
local max_wait, not_before = -1, 0
if slot then max_wait, not_before = unpack_at('>i8i8', slot) end
local key, last_stamp, with_states = KEYS[1], now, true
--@include stored
local new, kind, limit, remaining, when, reset, states = false, 3, 255, 0, 0, 0, ''
local plain = least > 0 and not_before == 0
if type(v) == 'table' then
  new, plain = nil, false   -- an error: a key of another kind
elseif plain then
  --@include unit
end
if kind == 1 and when == now and field == '' then
  local ttl = sub(static, 35 + 8 * facts)
  if bytes then
    call('SETRANGE', key, bytes, new)
    call('PEXPIRE', key, ttl)
  else
    call('SET', key, new, 'PX', ttl)
  end
  return pack('>I8BB', now, limit, remaining < 255 and remaining or 255) .. states
end

if slot and bytes and plain and facts == 2 and quota > 1 and quota <= SHORT and byte(v) == 75 then
  -- A slot behind a crowd on a long log, under one limit: the unit at the quota's edge says when. Else long.lua.
  local tail = call('GETRANGE', key, -14 * (quota + 1), '-1')
  local seen, first, _, oldest = unpack_at('>I7I7I7I7', v, 2)
  local _, before, at, here, after, own = unpack_at('>I7I7I7I7I7I7', tail)
  local below, top, total = unpack_at('>I7I7I7', tail, #tail - 20)
  local time, n = seen > now and seen or now, (bytes - 22) / 14
  when = at + window
  if n % 1 == 0 and (n % 64 > 0 or not begins_next and oldest > now - retention) and seen < MOST_UNITS and first == 0
    and before == total - quota and here == before + 1 and own > here and total > below and total < MOST_UNITS
    and top > time and when > top and when < MOST_UNITS and (max_wait < 0 or when - now <= max_wait) then
    if time > seen then call('SETRANGE', key, '1', pack('>I7', time)) end
    call('SETRANGE', key, bytes, pack('>I7I7', when, total + 1))
    call('PEXPIRE', key, floor((when + retention - now + 999) / 1000) + grace)
    return pack('>I8BBBBI8I8I8I8I8I8', now, 255, 1, 1, 0, 0, when, when + widest - now, 0, after + window - now, when + window - now)
  end
end

--@include blocks
if plain and bytes then
  --@include long
  new, kind, limit, remaining, when, reset, states = long_unit(key, bytes, limits, widest, slot and max_wait, v, judged)
elseif plain and slot and (kind ~= 1 or max_wait >= 0 and when - now > max_wait) then
  --@include queued
  -- A slot that is free now is the same as a decision.
  new, kind, limit, remaining, when, reset, states = queued_unit(v, limits, widest, max_wait)
end

local function ttl_ms()
  return lifetime(last_stamp, retention, now, grace)
end

if new == nil and kind == 0 then prolong(key, now + reset - widest, retention, now, grace) end
if new == false then
  --@include log
  --@include level
  --@include limit_reader
  --@include reservation
  --@include rule
  --@include numbers
  next_forms = begins_next
  local log
  if bytes then log = open_long(key, bytes) or decode(call('GET', key)) else log = decode(v) end
  kind, limit, remaining, when, reset, states = 3, 255, 0, 0, 0, ''
  if log then
    local bound = {log = log, limits = limits, judged = judged, cost = 1, retention = retention, storage = 0, denied = 0}
    local numbers = take_numbers({bound}, now, key, field)
    local said = {3, 255, 0, 0, 0}
    if numbers ~= false then
      take_record({bound}, now, key, field)
      said = attempt({bound}, slot and 2 or 0, nil, now, max_wait, not_before)
      if said[1] < 2 then save_numbers(numbers, {bound}, now, grace, stamp_bytes) end
      states, log = bound.states, bound.log
    end
    kind, limit, remaining, when, reset = unpack(said)
    if not bound.changed then
      prolong(key, math.max(newest(log), log.floor), retention, now, grace)
    else
      last_stamp = math.max(newest(log), log.floor)
      bytes = nil
      if log.key then save(log, ttl_ms()) else new = encode(log, stamp_bytes) end
    end
  end
end
if new then put_value(key, field, bytes, new, ttl_ms(), grace) end
if kind == 1 and when == now then return pack('>I8BB', now, limit, remaining < 255 and remaining or 255) .. states end
return pack('>I8BBBBI8I8I8', now, 255, kind, kind, limit or 255, remaining, when, reset) .. states
