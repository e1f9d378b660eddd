-- One log as it is stored: in a key of its own, or in a field of a bucket. Included by the scripts, behind unit.lua and
-- long.lua; `call` is redis.call.

-- The terms of the fast path, as one.lua takes them: wide, keep, grace, least quota (0: it is not for these), its number,
-- widest window, whether the log may be a long one, and the limits, flat.
local function terms_of(static)
  local bytes, keep_us, grace, least, number, widest = unpack_at('>BI8I8I8BI8', static)
  local limits = {unpack_at('>' .. string.rep('I8', (#static - 34) / 8), static, 35)}
  limits[#limits] = nil   -- struct.unpack's last value is a position
  local long = number >= 128
  return bytes, keep_us, grace, least, long and number - 128 or number, widest, long, limits
end

-- What is stored (false: nothing), and of a long log only how it begins, and how many bytes it has. A table: no value of ours.
local function look(key, field, long)
  if field ~= '' then return redis.pcall('HGET', key, field) end
  if not long then return redis.pcall('GET', key) end
  local v = redis.pcall('GETRANGE', key, 0, 1813)   -- more than any short log has
  if v == '' then return false end
  if type(v) == 'string' and #v == 1814 then return v, call('STRLEN', key) end
  return v
end

-- `unit` or `long_unit`, whichever is for what `look` has found, and the state of each limit.
local function unit_of(key, v, bytes, limits, least, number, widest, max_wait)
  if bytes then return long_unit(key, bytes, limits, widest, max_wait) end
  local new, kind, limit, remaining, a, reset = unit(v, limits, least, number, widest)
  if new == false then return false end
  return new, kind, limit, remaining, a, reset, plain_states(new or v, limits, kind == 1 and a)
end

-- Put this into its place, to live for so many milliseconds; of a long log what is new goes behind its bytes.
local function put_value(key, field, bytes, new, ttl, grace)
  if bytes then
    call('SETRANGE', key, bytes, new)
    call('PEXPIRE', key, ttl)
  elseif field == '' then
    call('SET', key, new, 'PX', ttl)
  else
    call('HSET', key, field, new)
    if call('PTTL', key) < ttl then call('PEXPIRE', key, ttl + floor(grace / 2)) end
  end
end
