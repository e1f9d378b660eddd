-- The terms of one.lua and the stored value of one log. A block, not a function, as a call of a script makes its functions
-- anew: included by one.lua and joint.lua where `static`, `key`, `field` and `slot` are set. Complexity: one or two
-- commands, whatever the length of the log.

local stamp_bytes, retention, grace, least, number, widest = unpack_at('>BI8I8I8BI8', static)
local limits
if #static == 50 then
  local quota, window = unpack_at('>I8I8', static, 35)
  limits = {quota, window}
else
  limits = {unpack_at('>' .. string.rep('I8', (#static - 34) / 8), static, 35)}
  limits[#limits] = nil   -- struct.unpack's last value is a position
end
local long, begins_next = number >= 128, number % 128 >= 64
number = number % 64
local stamped, fmt, span = pack('>BI7', stamp_bytes, now), '>I' .. stamp_bytes, 256 ^ stamp_bytes

-- The value (false: none). Of a long log only its first bytes, and its length in `bytes`. An error table: a key of another
-- kind. Slots in the future can make any log long.
local v, bytes
if field ~= '' then
  v = redis.pcall('HGET', key, field)
elseif long or slot then
  v = redis.pcall('GETRANGE', key, 0, LONG_BYTES - 1)
  if v == '' then v = false elseif v and #v == LONG_BYTES then bytes = call('STRLEN', key) end
else
  v = redis.pcall('GET', key)
end
