-- The terms of one.lua and the stored value of one log. A block, not a function, as a call of a script makes its functions
-- anew: included by one.lua and joint.lua where `static`, `key`, `field` and `slot` are set. Complexity: one or two
-- commands, whatever the length of the log.

local stamp_bytes, retention, grace, least, number, widest, quota, window = unpack_at('>BI8I8I8BI8I8I8', static)
local keeps = number % 64 >= 32
local facts, limits = floor((#static - 34) / (keeps and 24 or 16)) * 2, nil
if facts == 2 then
  limits = {quota, window}
else
  limits = {unpack_at('>' .. string.rep('I8', facts), static, 35)}
  limits[facts + 1] = nil   -- struct.unpack's last value is a position
end
local judged = limits
if keeps then
  judged = {}
  for j = 1, facts, 2 do
    judged[j], judged[j + 1] = limits[j] - unpack_at('>I8', static, 31 + 8 * facts + 4 * j), limits[j + 1]
  end
  facts = facts * 1.5
end
local begins_next = number >= 64
number = number % 32
local stamped, fmt, span = pack('>BI7', stamp_bytes, now), '>I5', 2 ^ 40
if stamp_bytes == 6 then fmt, span = '>I6', 2 ^ 48 elseif stamp_bytes == 7 then fmt, span = '>I7', 2 ^ 56 end

-- The value (false: none). Of a long log only the first bytes, and its length in `bytes`. An error table: a key of another
-- kind. Slots in the future and charges can make any log long.
local v, bytes = false, nil
if field ~= '' then
  v = redis.pcall('HGET', key, field)
else
  v = redis.pcall('GETRANGE', key, '0', '1814')   -- a byte more than LONG_BYTES: one command for a short log
  if v == '' then v = false elseif type(v) == 'string' and #v > LONG_BYTES then bytes = call('STRLEN', key) end
end
