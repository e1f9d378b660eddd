--@head
-- One decision of one unit without an id on one log, in as few steps as a script can take. What attempt.lua says holds.
--
-- KEYS   1  the subject's key, or its bucket's
-- ARGV   1  the terms: wide[1] keep_us[8] grace_ms[8] least quota[8] its number[1] widest window[8], then quota[8] and
--           window[8] of each limit; a least quota of 0: the short way is not for these;
--           the number's highest bit: the log may be a long one
--        2  the field in the bucket; empty: a key of its own
--        3  now in us; empty: the server's clock
-- Returns what attempt.lua returns for one row.

local call = redis.call
local static, field, now = ARGV[1], ARGV[2], tonumber(ARGV[3])
if not now then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
local wide, keep, grace, least, number, widest = struct.unpack('>BI8I8I8BI8', static)
local limits = {struct.unpack('>' .. string.rep('I8', (#static - 34) / 8), static, 35)}
limits[#limits] = nil   -- struct.unpack's last value is a position
local key, v = KEYS[1], nil
--@include unit

local function ttl_ms()
  return math.max(1, math.ceil((last_stamp + keep - now) / 1000)) + grace
end

local long = number >= 128
if long then number = number - 128 end
local new, kind, limit, remaining, a, reset = false, 3, 255, 0, 0, 0
local bytes
if field ~= '' then
  v = redis.pcall('HGET', key, field)
elseif long then
  v = redis.pcall('GETRANGE', key, 0, 1813)   -- more than any short log has
  if v == '' then v = false elseif #v == 1814 then bytes = call('STRLEN', key) end
else
  v = redis.pcall('GET', key)
end
if type(v) == 'table' then
  new = nil   -- an error: a key of another kind
elseif bytes and least > 0 then
  --@include long
  new, kind, limit, remaining, a, reset = long_unit(key, bytes, limits, widest)
  if new then new = nil end
elseif least > 0 then
  new, kind, limit, remaining, a, reset = unit(v, limits, least, number, widest)
end
if new == false then
  --@include log
  --@include gauge
  --@include rule
  local log
  if bytes then log = open_long(key, bytes) or decode(call('GET', key)) else log = decode(v) end
  kind, limit, remaining, a, reset = 3, 255, 0, 0, 0
  if log then
    local site = {log = log, limits = limits, cost = 1, keep = keep, keeps = 0, denied = 0}
    local said = attempt({site}, 0, nil, now, -1, 0)
    kind, limit, remaining, a, reset = unpack(said)
    if site.changed then
      last_stamp = math.max(newest(log), log.floor)
      if log.key then save(log, ttl_ms()) else new = encode(log, wide) end
    end
  end
end
if new then
  local ttl = ttl_ms()
  if field == '' then
    call('SET', key, new, 'PX', ttl)
  else
    call('HSET', key, field, new)
    if call('PTTL', key) < ttl then call('PEXPIRE', key, ttl + math.floor(grace / 2)) end
  end
end
if kind == 1 and a == now and remaining < 255 then return pack('>I8BB', now, limit, remaining) end
return pack('>I8BBBBI8I8I8', now, 255, kind, kind, limit or 255, remaining, a, reset)
