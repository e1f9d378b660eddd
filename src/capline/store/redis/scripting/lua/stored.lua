-- The limits in the terms of one.lua, and the stored value of one log. A block, not a function, as a call of a script makes
-- its functions anew: included by one.lua and joint.lua, which have unpacked the first terms and declared limits, judged,
-- facts, begins_next, v and bytes. Complexity: one or two commands, whatever the length of the log.

local keeps = number % 64 >= 32
facts = 2 * many
if facts == 2 then
  limits = {quota, window}
else
  limits = {unpack_at('>' .. string.rep('I8', facts), static, 38)}
  limits[facts + 1] = nil   -- struct.unpack's last value is a position
end
judged = limits
if keeps then
  judged = {}
  for j = 1, facts, 2 do
    judged[j], judged[j + 1] = limits[j] - unpack_at('>I8', static, 34 + 8 * facts + 4 * j), limits[j + 1]
  end
  facts = facts * 1.5
end
begins_next = number >= 64
number = number % 32
local stamped, fmt, span = pack('>BI7', stamp_bytes, now), '>I5', 2 ^ 40
if stamp_bytes == 6 then fmt, span = '>I6', 2 ^ 48 elseif stamp_bytes == 7 then fmt, span = '>I7', 2 ^ 56 end

-- The value (false: none). Of a long log only the first bytes, and its length in `bytes`. An error table: a key of another
-- kind. Slots in the future and charges can make any log long. Lua hashes each byte of a string, so no more are read at
-- first than a plain log has, and one.
if field ~= '' then
  v = redis.pcall('HGET', key, field)
else
  v = redis.pcall('GETRANGE', key, '0', stamp_bytes == 5 and '638' or stamp_bytes == 6 and '764' or '890')
  if v == '' then
    v = false
  elseif type(v) == 'string' and #v > 8 + 126 * stamp_bytes then
    bytes = call('STRLEN', key)
    if bytes <= LONG_BYTES then v, bytes = call('GETRANGE', key, '0', LONG_END), nil end
  end
end
