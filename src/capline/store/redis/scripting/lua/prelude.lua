-- What every script begins with: the commands, the clock and the sizes. Included where `now` is the argument: the caller's
-- clock in us, or empty for the server's, which is read once. It makes no functions, as each call would make them anew.

local call, unpack_at, pack, byte, sub, floor = redis.call, struct.unpack, struct.pack, string.byte, string.sub, math.floor
local SHORT = 128                       -- a value of at most so many hits is read and written whole
local LONG_BYTES = 22 + SHORT * 14      -- no short value has more bytes than these
local LONG_END = '1813'                 -- the last of them, from 0 on, as text: Redis is slow to take numbers from Lua
local MOST_UNITS = 2 ^ 53               -- the largest whole number that Lua counts to; stamps are below it
now = tonumber(now)
if not now then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
