-- Read and write one stored log: in a key of its own, or in a field of a bucket. Included by one.lua and joint.lua
-- after unit.lua and long.lua; `call` is redis.call. Complexity: one or two commands, whatever the length of the log.

-- The packed terms of the fast path (ARGV 1 of one.lua) as values: bytes of a stamp, retention in us, grace in ms, least
-- quota (0: the fast path does not apply), that limit's number, widest window in us, whether the log may be long, the
-- limits, flat, and whether a log may begin a next form.
local function terms_of(static)
  local bytes, retention_us, grace, least, number, widest = unpack_at('>BI8I8I8BI8', static)
  local limits = {unpack_at('>' .. string.rep('I8', (#static - 34) / 8), static, 35)}
  limits[#limits] = nil   -- struct.unpack's last value is a position
  return bytes, retention_us, grace, least, number % 64, widest, number >= 128, limits, number % 128 >= 64
end

-- The stored value (false: none). Of a long log only its first bytes, and its length in bytes. An error table: a key of
-- another kind.
local function read_stored(key, field, long)
  if field ~= '' then return redis.pcall('HGET', key, field) end
  if not long then return redis.pcall('GET', key) end
  local v = redis.pcall('GETRANGE', key, 0, LONG_BYTES - 1)
  if v == '' then return false end
  if type(v) == 'string' and #v == LONG_BYTES then return v, call('STRLEN', key) end
  return v
end

-- Write the value, to expire in `ttl` ms. Of a long log `new` is appended after its `bytes`.
local function put_value(key, field, bytes, new, ttl, grace)
  if bytes then
    call('SETRANGE', key, bytes, new)
    call('PEXPIRE', key, ttl)
  elseif field == '' then
    call('SET', key, new, 'PX', ttl)
  else
    call('HSET', key, field, new)
    keep_bucket(key, ttl, grace)
  end
end
