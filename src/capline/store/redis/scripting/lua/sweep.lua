--@head
-- Remove logs that are out of every window: the key of a subject, or fields of a bucket. Keys expire by themselves;
-- this is for a caller's own clock, and for stale fields in a bucket whose other subjects keep it alive.
--
-- KEYS   1  a subject's key, or a bucket
-- ARGV   1 hash: 1 for a bucket   2 now in us (empty: the server's clock)   3 retention_us
-- Reply: how many logs were removed.
-- Invariant: no log with a hit that still counts is removed; a value that is not a log is left alone.
-- Complexity: O(subjects in the bucket).

local now, retention = ARGV[2], tonumber(ARGV[3])
--@include prelude
--@include blocks
--@include log

local function stale(log)
  return log and math.max(log.floor, log.n > 0 and log.s[log.n] or 0) + retention <= now
end

if ARGV[1] ~= '1' then
  local bytes = redis.pcall('STRLEN', KEYS[1])
  if type(bytes) ~= 'number' or bytes == 0 then return 0 end
  if stale(open_long(KEYS[1], bytes) or decode(call('GET', KEYS[1]))) then return call('DEL', KEYS[1]) end
  return 0
end
local all = redis.pcall('HGETALL', KEYS[1])
local removed = 0
if all.err then return 0 end
for i = 1, #all, 2 do
  if stale(decode(all[i + 1])) then removed = removed + call('HDEL', KEYS[1], all[i]) end
end
return removed
