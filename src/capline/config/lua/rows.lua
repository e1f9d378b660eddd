-- The rows of one hash whose names begin with a text. KEYS: the hash. ARGV: the text. O(rows of the hash).
local rows = redis.call('HGETALL', KEYS[1])
local found = {}
for i = 1, #rows, 2 do
  if string.sub(rows[i], 1, #ARGV[1]) == ARGV[1] then
    found[#found + 1] = rows[i]
    found[#found + 1] = rows[i + 1]
  end
end
return found
