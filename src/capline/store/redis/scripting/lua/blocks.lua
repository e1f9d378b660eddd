-- Where the entries of a long log lie, how long a key lives, and how a value is written. Included by every script after
-- prelude.lua, by those of one decision only where they need it: each call of a script makes its functions anew.

-- A long log by blocks (see log.lua): entries in a block, and blocks that a value has numbers of.
local IN_BLOCK, BLOCKS = 1024, 256
local MOST_AHEAD = 2 ^ 52   -- units in such a log, and those that are added in a block; so an entry has less than 2^53
-- Bytes before the first entry of a long log, of one of units, and of one by blocks.
local HEAD, UNITS_HEAD, BLOCKS_HEAD = 22, 15, 28 + 8 * BLOCKS

-- The head of the long log in this key, its tag as without blocks, and how its entries lie. `read`: its first bytes, where
-- they were read.
local function head_of(key, read)
  local head = read and byte(read) < 192 and read or call('GETRANGE', key, 0, BLOCKS_HEAD - 1)
  local tag = byte(head)
  if tag < 192 then return head, tag, {start = tag < 68 and UNITS_HEAD or HEAD, narrow = 0} end
  if #head < BLOCKS_HEAD then return head, 0, {} end
  local narrow, skipped = struct.unpack('>I4I2', head, HEAD + 1)
  return head, tag - 128, {start = BLOCKS_HEAD, narrow = narrow, skipped = skipped, ahead = string.sub(head, HEAD + 7)}
end

-- Where entry i of a long log begins.
local function place_of(log, i)
  return log.start + (i - 1) * log.size - 8 * math.min(log.narrow, i - 1)
end

-- The block of entry i, from 0 on, and what its entries are to be added to.
local function block_of(log, i)
  local block = math.min(BLOCKS - 1, math.floor((log.skipped + i - 1) / IN_BLOCK))
  return block, (struct.unpack('>i8', log.ahead, 8 * block + 1))
end

-- What is added to the units that entry i of a long log has.
local function ahead_of(log, i)
  if not log.ahead then return 0 end
  local _, ahead = block_of(log, i)
  return ahead
end

-- Remove a log: its key, or its field of a bucket.
local function remove(key, field)
  if field == '' then return call('DEL', key) end
  return call('HDEL', key, field)
end

-- Write a key again, unchanged, so that a WAIT after this script covers its first write. It lives at least so many ms, also
-- where its end was taken away (PERSIST, RESTORE).
local function touch(key, ttl)
  local left = call('PTTL', key)
  call('PEXPIRE', key, math.max(left, ttl))
end

-- In how many ms a key expires whose last stamp is this one.
local function lifetime(last, retention, now, grace)
  return math.max(1, math.ceil((last + retention - now) / 1000)) + grace
end

-- Let a bucket live so many ms, or longer; ahead by half the grace, so that not every write has to say so.
local function keep_bucket(key, ttl, grace)
  if call('PTTL', key) < tonumber(ttl) then call('PEXPIRE', key, ttl + math.floor(grace / 2)) end
end

-- Let a key whose last stamp is this one live as long as this rule keeps hits: it may have been written under a rule that
-- keeps them for less, and a refusal writes nothing. A write only where more than half the grace is missing.
local function prolong(key, last, retention, now, grace)
  keep_bucket(key, lifetime(last, retention, now, grace - math.floor(grace / 2)), grace)
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
