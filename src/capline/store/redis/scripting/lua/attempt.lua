--@head
-- Attempts: decide, peek or place each row, in order, and record what is allowed. One atomic step.
--
-- KEYS   for each group, the key of each look; a group is one subject, or one bucket of subjects. All in one slot.
--        Behind them, with a receipt, the receipt's key.
-- ARGV   1  msgpack: [mode, hash, keep_us, grace_ms, looks, wide, cost, max_wait_us, terms, not_before_us, tell]
--             mode 0 decide, 1 peek, 2 place; hash 1: buckets, hashes of subjects; keep_us how long hits are kept;
--             grace_ms how much longer keys live; wide the bytes of a plain stamp; max_wait_us -1: no bound;
--             terms: for each code [limits of each look [quota, by, ...], least quota, its number, widest window, 1 where the
--             log may be long]; `by` is a window, or for other limits an array, see gauge.lua. A least quota of 0: unit.lua
--             is not for these. Behind them, where anything of it is asked for: [keeps of each look, denied, zone], see
--             rule.lua and gauge.lua;
--             not_before_us how far from now a slot is at least
--             tell 1: the state of each limit is told as well
--        2  now in us; empty: the server's clock
--        3  rows of each group, 2 bytes each; empty: one row a group
--        4  code of each row, 2 bytes each; empty: 0 for all
--        5  buckets: the field of each row, 1 byte each; empty: the fields are ARGV 8, 9, ...
--        6  cost and id of each row, 7 and 8 bytes; empty: the cost of ARGV 1, no id
--        7  empty, or with a receipt a digest, 16 bytes, of what is asked under it
-- Returns one string: now in us, 8 bytes; 2 bytes a row; then 26 bytes for each row whose 2 bytes are 255, kind; then, where
--        it is to be told, the states of each row of kind 0 or 1, as in rule.lua:
--        the 2 bytes: limit and remaining of a row that was allowed now; else 255 and a kind
--        0 refused   limit (255: none), remaining[8], retry_after + 1 (0: never)[8], reset_after[8]
--        1 allowed   limit, remaining[8], hit[8] (peek: 2^60, but for the hit of a known id), reset_after[8]
--        2 the id was recorded with another cost, which stands for remaining
--        3 what is stored is no log
--        4 the receipt was given for another question (then every row says so)
-- Writes nothing for a row that is not allowed, but where refusals count. Cost: O(limits) a row whatever the quota, two
-- calls a bucket.

local call = redis.call
local head = cmsgpack.unpack(ARGV[1])
local mode, hash, keep_us, grace, width, bytes_a_stamp, same_cost, max_wait, terms, not_before, tell = unpack(head)
tell = tell == 1
local now = tonumber(ARGV[2])
if not now then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
local counts, codes, fields, asked, receipt = ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local groups = #KEYS / width

-- An answer that was given before: a write all the same, so that a WAIT behind it waits for what was written then.
local function touch(key)
  call('PEXPIRE', key, call('PTTL', key))
end

if receipt ~= '' then
  local key = KEYS[#KEYS]
  groups = (#KEYS - 1) / width
  local kept = call('GET', key)
  if kept and struct.unpack('>I7', kept) > now then
    if string.sub(kept, 8, 23) ~= receipt then return struct.pack('>I8', now) .. '\255\4' end
    touch(key)
    return string.sub(kept, 24)
  end
end

--@include unit
keep_as(bytes_a_stamp, keep_us)

local simple, special, states = {}, {}, {}
local rows = 0

local plain_hit = mode == 1 and 2 ^ 60 or now
local function say(kind, limit, remaining, a, reset, widest)
  if kind == 1 and a == plain_hit and remaining < 255 and (not widest or reset == widest) then
    simple[rows] = char(limit, remaining)
  else
    simple[rows] = '\255' .. char(kind)
    special[#special + 1] = pack('>BBI8I8I8', kind, limit or 255, remaining, a, reset)
  end
end

local function tell_row(of_row)
  if tell then states[#states + 1] = of_row end
end

-- What `unit` has answered.
local function tell_unit(v, limits, kind, stamp)
  if tell and kind < 2 then tell_row(plain_states(v, limits, kind == 1 and stamp)) end
end

-- Everything that is not one unit on a plain log.
local library
local function load_library()
  --@include log
  --@include gauge
  --@include rule
  library = {decode = decode, encode = encode, attempt = attempt, save = save, open_long = open_long, newest = newest,
    told = told}
end

local function ttl_ms()
  return math.max(1, math.ceil((last_stamp + keep - now) / 1000)) + grace
end

-- A slot that is free now is what `decide` would take; only one that is not needs all of the rule.
local plain = (mode == 0 or mode == 2 and not_before == 0) and width == 1 and asked == '' and same_cost == 1
local function in_time(kind, stamp) return kind == 1 and (max_wait < 0 or stamp - now <= max_wait) end
local uniform = codes == '' and asked == ''   -- the rows differ in nothing but their subject
local cost, id = same_cost, nil

local function row_terms()
  rows = rows + 1
  if asked ~= '' then
    cost = unpack_at('>I7', asked, rows * 15 - 14)
    id = sub(asked, rows * 15 - 7, rows * 15)
    if id == '\0\0\0\0\0\0\0\0' then id = nil end
  end
  if codes == '' then return terms[1] end
  local high, low = byte(codes, rows * 2 - 1, rows * 2)
  return terms[high * 256 + low + 1]
end

local function group_rows(g)
  if counts == '' then return 1 end
  local high, low = byte(counts, g * 2 - 1, g * 2)
  return high * 256 + low
end

-- One row, the long way: the new value of each look, '' where it was written in place, false where nothing changed; nil
-- where nothing did in any.
local function general(values, key, keys, term)
  if not library then load_library() end
  local sites, new, changed = {}, {}, false
  for k = 1, width do
    if type(values[k]) == 'table' then return say(3, 255, 0, 0, 0) end   -- an error: a key of another kind
    local log
    if keys then
      local bytes = redis.pcall('STRLEN', keys[k])
      if type(bytes) == 'table' then return say(3, 255, 0, 0, 0) end
      log = library.open_long(keys[k], bytes)
    end
    if not log then log = library.decode(keys and call('GET', keys[k]) or values[k]) end
    if not log then return say(3, 255, 0, 0, 0) end
    sites[k] = {
      log = log, limits = term[1][k], cost = cost, keep = keep, keeps = term[6] and term[6][k] or 0, zone = term[8],
      denied = term[7] or 0,
    }
  end
  local said, again = library.attempt(sites, mode, id, now, max_wait, not_before)
  if again and mode ~= 1 then touch(key) end
  say(said[1], said[2], said[3], said[4], said[5], term[4])
  if said[1] < 2 then tell_row(library.told(sites)) end
  for k = 1, width do
    local log = sites[k].log
    new[k] = false
    if sites[k].changed then
      changed = true
      last_stamp = math.max(last_stamp, library.newest(log), log.floor)
      if log.key then
        library.save(log, ttl_ms())
        new[k] = ''
      else
        new[k] = library.encode(log, wide)
      end
    end
  end
  if changed then return new end
end

-- Subjects with one row each: read in one call. A key of another kind reads as none; it is found out when it is not
-- written over.
local function distinct_subjects()
  local values = call('MGET', unpack(KEYS, 1, groups))
  local ttl_now = string.format('%d', ttl_ms())
  for g = 1, groups do
    local term, v = row_terms(), values[g]
    local new, kind, limit, remaining, a, reset = false, nil, nil, nil, nil, nil
    if term[2] > 0 then
      new, kind, limit, remaining, a, reset = unit(v, term[1][1], term[2], term[3], term[4])
      if mode == 2 and not in_time(kind, a) then new = false end
    end
    if new == false then
      new = general({v or redis.pcall('GET', KEYS[g])}, KEYS[g], nil, term)
      if new then call('SET', KEYS[g], new[1], 'PX', ttl_ms()) end
    elseif new and not v then
      if not call('SET', KEYS[g], new, 'PX', ttl_now, 'NX') then kind, limit, remaining, a, reset = 3, 255, 0, 0, 0 end
      say(kind, limit, remaining, a, reset)
      tell_unit(new, term[1][1], kind, a)
    else
      if new then call('SET', KEYS[g], new, 'PX', a == now and ttl_now or ttl_ms()) end
      say(kind, limit, remaining, a, reset)
      tell_unit(new or v, term[1][1], kind, a)
    end
  end
end

-- What a key holds; of a long log, which is read where it is looked at, only that it is one.
local SHORT_BYTES = 1813
local function begins(key)
  local v = redis.pcall('GETRANGE', key, 0, SHORT_BYTES)
  if v == '' then return false end
  return v
end

local function subjects()
  for g = 1, groups do
    local keys, values = {}, {}
    for k = 1, width do keys[k] = KEYS[(g - 1) * width + k] end
    for r = 1, group_rows(g) do
      local term = row_terms()
      local new, kind, limit, remaining, a, reset = false, nil, nil, nil, nil, nil
      local long = false
      for k = 1, width do
        if r == 1 then values[k] = begins(keys[k]) end
        if type(values[k]) == 'string' and #values[k] > SHORT_BYTES then long = true end
      end
      if plain and not long and term[2] > 0 and type(values[1]) ~= 'table' then
        new, kind, limit, remaining, a, reset = unit(values[1], term[1][1], term[2], term[3], term[4])
        if mode == 2 and not in_time(kind, a) then new = false end
      end
      if new == false then
        new = general(values, keys[1], long and keys, term)
        for k = 1, new and width or 0 do
          if new[k] and new[k] ~= '' then
            call('SET', keys[k], new[k], 'PX', ttl_ms())
            values[k] = new[k]
          end
        end
      else
        say(kind, limit, remaining, a, reset)
        tell_unit(new or values[1], term[1][1], kind, a)
        if new then
          call('SET', keys[1], new, 'PX', ttl_ms())
          values[1] = new
        end
      end
    end
  end
end

local function write(key, list)
  if #list == 0 then return end
  call('HSET', key, unpack(list))
  local ttl = ttl_ms()
  if call('PTTL', key) < ttl then call('PEXPIRE', key, ttl + floor(grace / 2)) end
end

-- The values of these fields. Where a bucket of bytes is asked for many of them, it is faster read whole.
local function read(key, names, many)
  if fields == '' or many < 9 then return redis.pcall('HMGET', key, unpack(names)) end
  local all, at, values = redis.pcall('HGETALL', key), {}, {}
  if all.err then return all end
  for i = 1, #all, 2 do at[all[i]] = all[i + 1] end
  for r = 1, many do values[r] = at[names[r]] or false end
  return values
end

-- Buckets: one read and one write for all of a bucket's rows, which are distinct subjects.
local function buckets()
  local at = 0
  for g = 1, groups do
    local many = group_rows(g)
    local names, values, lists = {}, {}, {}
    if fields ~= '' then
      for r = 1, many do names[r] = sub(fields, at + r, at + r) end
    else
      for r = 1, many do names[r] = ARGV[7 + at + r] end
    end
    at = at + many
    for k = 1, width do
      values[k], lists[k] = read(KEYS[(g - 1) * width + k], names, many), {}
    end
    local own_values, own_list, size = values[1], lists[1], 0
    local short = plain and not own_values.err
    local term, own_limits, least, number, widest = terms[1], terms[1][1][1], terms[1][2], terms[1][3], terms[1][4]
    for r = 1, many do
      if uniform then
        rows = rows + 1
      else
        term = row_terms()
        own_limits, least, number, widest = term[1][1], term[2], term[3], term[4]
      end
      local new, kind, limit, remaining, a, reset = false, nil, nil, nil, nil, nil
      if short and least > 0 then
        new, kind, limit, remaining, a, reset = unit(own_values[r], own_limits, least, number, widest)
        if mode == 2 and not in_time(kind, a) then new = false end
      end
      if new == false then
        local own = {}
        for k = 1, width do own[k] = values[k].err and values[k] or values[k][r] end
        new = general(own, KEYS[(g - 1) * width + 1], nil, term)
        for k = 1, new and width or 0 do
          local list = lists[k]
          if new[k] then
            list[#list + 1] = names[r]
            list[#list + 1] = new[k]
          end
        end
        size = #own_list
      else
        if kind == 1 and a == now and remaining < 255 then
          simple[rows] = char(limit, remaining)
        else
          say(kind, limit, remaining, a, reset)
        end
        if tell then tell_unit(new or own_values[r], own_limits, kind, a) end
        if new then
          own_list[size + 1], own_list[size + 2] = names[r], new
          size = size + 2
        end
      end
    end
    for k = 1, width do write(KEYS[(g - 1) * width + k], lists[k]) end
  end
end

local long = false
for _, term in ipairs(terms) do long = long or term[5] == 1 end
if hash == 1 then
  buckets()
elseif plain and counts == '' and not long then
  distinct_subjects()
else
  subjects()
end

local reply = pack('>I8', now) .. table.concat(simple) .. table.concat(special) .. table.concat(states)
if receipt ~= '' then
  call('SET', KEYS[#KEYS], pack('>I7', now + keep) .. receipt .. reply, 'PX', math.ceil(keep / 1000) + grace)
end
return reply
