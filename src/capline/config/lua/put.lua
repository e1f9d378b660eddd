-- Rows of one hash: none is replaced by one of a lower version, which is its first five bytes. ARGV: name, row, …
local function version_of(row)
  local n = 0
  for i = 1, 5 do
    n = n * 256 + string.byte(row, i)
  end
  return n
end
for i = 1, #ARGV, 2 do
  local old = redis.call('HGET', KEYS[1], ARGV[i])
  if not old or version_of(old) < version_of(ARGV[i + 1]) then
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
  end
end
return 1
