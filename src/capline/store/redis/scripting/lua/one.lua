--@head
-- One decision or one slot of one unit without an id on one log, in as few steps as a script can take. What attempt.lua
-- says holds.
--
-- KEYS   1  the subject's key, or its bucket's
-- ARGV   1  the terms: wide[1] keep_us[8] grace_ms[8] least quota[8] its number[1] widest window[8], then quota[8] and
--           window[8] of each limit; a least quota of 0: the fast path is not for these;
--           the number's highest bit: the log may be a long one
--        2  the field in the bucket; empty: a key of its own
--        3  now in us; empty: the server's clock
--        4  absent: decide; else place: max_wait_us[8] not_before_us[8], signed
-- Returns what attempt.lua returns for one row, with the state of each limit.

local call = redis.call
local static, field, now, slot = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
if not now then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
local max_wait, not_before = -1, 0
if slot then max_wait, not_before = struct.unpack('>i8i8', slot) end
local key = KEYS[1]
--@include unit
--@include long
--@include stored
--@include queued
local bytes_a_stamp, keep_us, grace, least, number, widest, long, limits = terms_of(static)
keep_as(bytes_a_stamp, keep_us)

local new, kind, limit, remaining, a, reset, states = false, 3, 255, 0, 0, 0, ''
local v, bytes = look(key, field, long or slot)   -- behind many slots any log is a long one
if type(v) == 'table' then
  new = nil   -- an error: a key of another kind
elseif least > 0 and not_before == 0 then
  new, kind, limit, remaining, a, reset, states = unit_of(key, v, bytes, limits, least, number, widest, slot and max_wait)
  -- A slot that is free now is what would be decided.
  if slot and not bytes and (kind ~= 1 or max_wait >= 0 and a - now > max_wait) then
    new, kind, limit, remaining, a, reset, states = queued_unit(v, limits, widest, max_wait)
  end
end

local function ttl_ms()
  return math.max(1, math.ceil((last_stamp + keep - now) / 1000)) + grace
end

if new == false then
  local tell = true
  --@include log
  --@include gauge
  --@include rule
  local log
  if bytes then log = open_long(key, bytes) or decode(call('GET', key)) else log = decode(v) end
  kind, limit, remaining, a, reset, states = 3, 255, 0, 0, 0, ''
  if log then
    local site = {log = log, limits = limits, cost = 1, keep = keep, keeps = 0, denied = 0}
    local said = attempt({site}, slot and 2 or 0, nil, now, max_wait, not_before)
    kind, limit, remaining, a, reset = unpack(said)
    states = site.told
    if site.changed then
      last_stamp = math.max(newest(log), log.floor)
      bytes = nil
      if log.key then save(log, ttl_ms()) else new = encode(log, wide) end
    end
  end
end
if new then put_value(key, field, bytes, new, ttl_ms(), grace) end
if kind == 1 and a == now and remaining < 255 then return pack('>I8BB', now, limit, remaining) .. states end
return pack('>I8BBBBI8I8I8', now, 255, kind, kind, limit or 255, remaining, a, reset) .. states
