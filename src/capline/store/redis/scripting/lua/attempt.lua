--@head
-- Batches of attempts: decide or peek for each row, in order, and record what is allowed. One atomic step.
--
-- KEYS   for each group, the key of each of its logs; a group is one subject, or one bucket of subjects. All in
--        one slot. After them, with a receipt, the receipt's key.
-- ARGV   1  msgpack: [mode, hash, retention, grace_ms, logs, bytes of a stamp, cost, terms, states, next]
--             mode: 0 decide, 1 peek. hash: 1 for buckets, hashes of subjects. retention: how long hits are kept.
--             grace_ms: how much longer keys live. logs: how many each attempt reads. states: 1 to return the state
--             of each limit. next: 1 if a log may begin a next form.
--             terms: for each code [limits of each log [quota, by, ...], least quota, its number, widest window in us,
--             1 if the log may be long]; `by` is a window in us, or an array, see limit_reader.lua. A least quota of 0:
--             the fast path does not apply. Where they are needed, then [storage of each log, denied, zone, judged of
--             each log, number of the policy of each log, where there are several; least quota, its number and widest
--             window of each log, where all of several are plain], see rule.lua and limit_reader.lua.
--        2  now in us; empty: the server's clock
--        3  rows of each group, 2 bytes each; empty: one row a group
--        4  code of each row, 2 bytes each; empty: 0 for all
--        5  buckets: the field of each row, 1 byte each; empty: the fields are ARGV 8, 9, ...
--        6  cost and id of each row, 7 and 8 bytes; empty: the cost of ARGV 1, no id
--        7  with a receipt: a digest of the batch, 16 bytes; else empty
-- Reply: one string: now in us[8]; 2 bytes for each row; then 26 bytes for each row whose 2 bytes are 255 and a kind;
--        then, if asked for, the states of each row of kind 0 or 1, as in rule.lua.
--        The 2 bytes: limit and remaining of a row that is allowed now; else 255 and the kind. The 26 bytes by kind:
--        0 refused   kind, limit (255: none), remaining[8], retry_after in us + 1 (0: never)[8], reset_after in us[8]
--        1 allowed   kind, limit, remaining[8], hit[8] (peek: 2^60, except for a known id's hit), reset_after in us[8]
--        2 the id was recorded with another cost, which is in the place of remaining
--        3 the stored value is not a log
--        4 the receipt was given for another batch (then every row says so)
-- Invariant: nothing is written for a row that is not allowed, unless refusals count. Complexity: O(limits) a row,
-- whatever the quota; two commands a bucket.

local now = ARGV[2]
--@include prelude
--@include blocks
local head = cmsgpack.unpack(ARGV[1])
local mode, hash, retention, grace, width, stamp_bytes, same_cost = unpack(head, 1, 7)
local terms, with_states, begins_next = unpack(head, 8, 10)
with_states, begins_next = with_states == 1, begins_next == 1
local counts, codes, fields, asked, receipt = ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local groups = #KEYS / width

-- The reply to rows of which none is decided: their receipt was given for another batch.
local function conflict_of_all()
  local many = counts == '' and groups or 0
  for i = 1, #counts, 2 do many = many + struct.unpack('>I2', counts, i) end
  local each = struct.pack('>BBI8I8I8', 4, 255, 0, 0, 0)
  return struct.pack('>I8', now) .. string.rep('\255\4', many) .. string.rep(each, many)
end

if receipt ~= '' then
  local key = KEYS[#KEYS]
  groups = (#KEYS - 1) / width
  local kept = call('GET', key)
  if kept and struct.unpack('>I7', kept) > now then
    if string.sub(kept, 8, 23) ~= receipt then return conflict_of_all() end
    touch(key, math.ceil(retention / 1000) + grace)
    return string.sub(kept, 24)
  end
end

local last_stamp = now   -- the latest stamp that was written
local stamped, fmt, span = pack('>BI7', stamp_bytes, now), '>I' .. stamp_bytes, 256 ^ stamp_bytes
local function unit(v, limits, least, number, widest, judged)
  judged = judged and judged[1] or limits
  local new, kind, limit, remaining, when, reset, states, bytes = false, nil, nil, nil, nil, nil, '', nil
  --@include unit
  return new, kind, limit, remaining, when, reset, states
end
--@include long

local simple, special, states = {}, {}, {}
local rows = 0

local plain_hit = mode == 1 and 2 ^ 60 or now
local function say(kind, limit, remaining, when, reset, widest)
  if kind == 1 and when == plain_hit and remaining < 255 and (not widest or reset == widest) then
    simple[rows] = string.char(limit, remaining)
  else
    simple[rows] = '\255' .. string.char(kind)
    special[#special + 1] = pack('>BBI8I8I8', kind, limit or 255, remaining, when, reset)
  end
end

local function add_states(of_row)
  if with_states then states[#states + 1] = of_row end
end

local function ttl_ms()
  return lifetime(last_stamp, retention, now, grace)
end

local plain = mode == 0 and width == 1 and asked == '' and same_cost == 1
local several = mode == 0 and width > 1 and asked == '' and same_cost == 1
local uniform = codes == '' and asked == ''   -- the rows differ in nothing but their subject
local cost, id, max_wait, not_before = same_cost, nil, -1, 0   -- the times are those of slots

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

--@include general

-- One unit on several plain logs with no hit at this instant or later: the new value of each, and the row is answered. Refused,
-- it has none, and `late` keeps the newest stamp of each log for its expiry. Else nil, and nothing is changed.
local late = {}
local function all_units(values, term)
  local new, left, tightest, empty, all, before = {}, MOST_UNITS, nil, 0, '', 0
  local tops, latest, widest, wait, binding = {}, -1, 0, 0, nil
  for k = 1, width do
    local v, limits, own = values[k], term[1][k], term[11][k]
    if type(v) == 'table' or v and #v >= LONG_BYTES then return nil end
    local value, kind, limit, remaining, when, reset, own_states =
      unit(v, limits, own[1], own[2], own[3], term[9] and {term[9][k]})
    local top = v and value ~= false and unpack_at('>I7', v, 2) or -1
    if value == false or top >= now or kind == 0 and (with_states or term[9]) then return nil end
    if kind == 0 and when > wait then wait, binding = when, before + limit end
    if kind == 1 and remaining < left then left, tightest = remaining, before + limit end
    if reset > empty then empty = reset end
    if own[3] > widest then widest = own[3] end
    if top > latest then latest = top end
    new[k], tops[k], all, before = value, top, all .. own_states, before + #limits / 2
  end
  if binding then
    for k, top in ipairs(tops) do late[k] = math.max(late[k] or -1, top) end
    say(0, binding, 0, wait, latest + widest - now)
    return {}
  end
  say(1, tightest, left, now, empty, term[4])
  add_states(all)
  return new
end

local function prolong_late(first)
  for k, top in pairs(late) do prolong(KEYS[first + k - 1], top, retention, now, grace) end
  late = {}
end

-- Subjects with one row each, read by one MGET. A key of another kind reads as missing; SET with NX then fails on it.
local function distinct_subjects()
  local values = call('MGET', unpack(KEYS, 1, groups))
  local ttl_now = string.format('%d', ttl_ms())
  for g = 1, groups do
    local term, v = row_terms(), values[g]
    local new, kind, limit, remaining, when, reset, own_states = false, nil, nil, nil, nil, nil, nil
    if term[2] > 0 then
      new, kind, limit, remaining, when, reset, own_states = unit(v, term[1][1], term[2], term[3], term[4], term[9])
    end
    if new == false then
      new = general({v or redis.pcall('GET', KEYS[g])}, g, v and #v > LONG_BYTES, term)
      if new and new[1] ~= '' then call('SET', KEYS[g], new[1], 'PX', ttl_ms()) end
    elseif new and not v then
      if not call('SET', KEYS[g], new, 'PX', ttl_now, 'NX') then kind, limit, remaining, when, reset = 3, 255, 0, 0, 0 end
      say(kind, limit, remaining, when, reset)
      if kind < 2 then add_states(own_states) end
    else
      if new then
        call('SET', KEYS[g], new, 'PX', when == now and ttl_now or ttl_ms())
      else
        prolong(KEYS[g], now + reset - term[4], retention, now, grace)
      end
      say(kind, limit, remaining, when, reset)
      add_states(own_states)
    end
  end
end

-- The value of a key, cut after LONG_BYTES: a longer one is a long log, of which only single entries are read.
local function begins(key)
  local v = redis.pcall('GETRANGE', key, '0', LONG_END)
  if v == '' then return false end
  return v
end

local function subjects()
  for g = 1, groups do
    local keys, values = {}, {}
    for k = 1, width do keys[k] = KEYS[(g - 1) * width + k] end
    for r = 1, group_rows(g) do
      local term = row_terms()
      local new, kind, limit, remaining, when, reset, own_states = false, nil, nil, nil, nil, nil, nil
      local long, bytes = false, nil
      for k = 1, width do
        if r == 1 then values[k] = begins(keys[k]) end
        if type(values[k]) == 'string' and #values[k] >= LONG_BYTES then long = true end
      end
      if plain and long and term[2] > 0 then
        bytes = call('STRLEN', keys[1])
        new, kind, limit, remaining, when, reset, own_states =
          long_unit(keys[1], bytes, term[1][1], term[4], nil, nil, term[9] and term[9][1])
      elseif plain and term[2] > 0 and type(values[1]) ~= 'table' then
        new, kind, limit, remaining, when, reset, own_states =
          unit(values[1], term[1][1], term[2], term[3], term[4], term[9])
      end
      if new == false then
        new = several and term[11] and all_units(values, term) or general(values, (g - 1) * width + 1, long, term)
        for k = 1, new and width or 0 do
          if new[k] == 0 then
            remove(keys[k], '')
            values[k] = false
          elseif new[k] and new[k] ~= '' then
            call('SET', keys[k], new[k], 'PX', ttl_ms())
            values[k] = new[k]
          end
        end
      else
        say(kind, limit, remaining, when, reset)
        add_states(own_states)
        if new and long then
          call('SETRANGE', keys[1], bytes, new)
          call('PEXPIRE', keys[1], ttl_ms())
        elseif new then
          call('SET', keys[1], new, 'PX', ttl_ms())
          values[1] = new
        else
          prolong(keys[1], now + reset - term[4], retention, now, grace)
        end
      end
    end
    prolong_late((g - 1) * width + 1)
  end
end

local function write(key, list)
  if #list == 0 then return end
  call('HSET', key, unpack(list))
  keep_bucket(key, ttl_ms(), grace)
end

-- The values of these fields. For nine or more one-byte fields of a bucket, HGETALL is faster than HMGET.
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
    local own_values, own_list, size, refused = values[1], lists[1], 0, -1
    local short = plain and not own_values.err
    local term, own_limits, least, number, widest = terms[1], terms[1][1][1], terms[1][2], terms[1][3], terms[1][4]
    for r = 1, many do
      if uniform then
        rows = rows + 1
      else
        term = row_terms()
        own_limits, least, number, widest = term[1][1], term[2], term[3], term[4]
      end
      local new, kind, limit, remaining, when, reset, own_states = false, nil, nil, nil, nil, nil, nil
      if short and least > 0 then
        new, kind, limit, remaining, when, reset, own_states =
          unit(own_values[r], own_limits, least, number, widest, term[9])
      end
      if new == false then
        local own = {}
        for k = 1, width do own[k] = values[k].err and values[k] or values[k][r] end
        new = several and term[11] and all_units(own, term) or general(own, (g - 1) * width + 1, false, term, names[r])
        for k = 1, new and width or 0 do
          local list = lists[k]
          if new[k] == 0 then
            remove(KEYS[(g - 1) * width + k], names[r])
          elseif new[k] then
            list[#list + 1] = names[r]
            list[#list + 1] = new[k]
          end
        end
        size = #own_list
      else
        if kind == 1 and when == now and remaining < 255 then
          simple[rows] = string.char(limit, remaining)
        else
          say(kind, limit, remaining, when, reset)
        end
        if kind == 0 then refused = math.max(refused, now + reset - widest) end
        add_states(own_states)
        if new then
          own_list[size + 1], own_list[size + 2] = names[r], new
          size = size + 2
        end
      end
    end
    for k = 1, width do write(KEYS[(g - 1) * width + k], lists[k]) end
    if refused > -1 and mode ~= 1 then prolong(KEYS[(g - 1) * width + 1], refused, retention, now, grace) end
    prolong_late((g - 1) * width + 1)
  end
end

local long = false
for _, term in ipairs(terms) do long = long or term[5] == 1 end
if hash == 1 then
  buckets()
elseif plain and counts == '' and groups > 1 and not long then
  distinct_subjects()
else
  subjects()
end

local reply = pack('>I8', now) .. table.concat(simple) .. table.concat(special) .. table.concat(states)
if receipt ~= '' then
  call('SET', KEYS[#KEYS], pack('>I7', now + retention) .. receipt .. reply, 'PX', math.ceil(retention / 1000) + grace)
end
return reply
