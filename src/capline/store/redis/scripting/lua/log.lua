-- A log as one stored value, and as tables that the rule reads. Included by the scripts; runs nothing by itself.
--
-- Four forms of value; the first byte says which:
--
--   plain     w  newest[7]  (stamp mod 256^w)[w] ...          w is 5, 6 or 7
--             every hit is one unit, has no id and is not in the future: the time of the log is its newest stamp. The
--             other stamps follow, newest first, by their last w bytes: enough, as hits are kept for less than 256^w
--             us. So a new hit is added in front, and the k-th newest is at the same offset however long the log is.
--   general   64 + 32 F + 4 C + S   floor[7]  first[7]  (C = 2: base[7])   entries of
--             (stamp - first)[S + 4]   (units up to here)[0, 1 or 7 for C = 0, 1, 2]   (F: id[8])
--             floor: the high-water mark, the latest instant that the log has seen; all ones: the newest stamp. base:
--             units before the first hit. C = 0: each hit is one unit. A refunded hit stays, with 0 units; in place of
--             an id it had stands REFUNDED. In place of a refusal's id stands DENIED.
--             A log with pending reservations never has a floor of all ones, nor C = 0: so no fast path takes it, and a
--             policy that gave up its reservations looks for them (`former_record`).
--             A long log (more than 128 hits) is appended to in place by SETRANGE, and single entries are read by
--             GETRANGE. It has first = 0, S = 3 and C = 2; with `forms=next` also C = 0 and no ids, up to some
--             thousands of hits (log.first): the release before reads that whole at each attempt.
--   blocks    128 + tag   floor[7]  first[7]  base[7]  narrow[4]  skipped[2]  ahead[8] * 256   entries
--             a long log in which a hit far back was changed, or that had thousands of hits before its first id. It begins
--             with `forms=next` only. `ahead`, signed, is added to the units of each entry in a block of 1,024; the first
--             block has `skipped` entries less, the last has no end. So a change of a hit rewrites its block, and `ahead`
--             of the later ones. The first `narrow` entries have no bytes for an id, though F is set.
--   numbers   128  last[7]  rows of  algorithm[1] window[7] quota[7] carried[7] at[7] floor[7] n[3] (stamp[7] units[7]) * n
--             all numbers of a policy, see numbers.lua. algorithm: COUNTER, LEVEL or FIXED of limit_reader.lua. carried:
--             units that were taken over and not given back since; at: when, and a us (0: never). last: the latest
--             instant of the rows, and of the log of hits, which lies beside them under `/+ids`.
--
-- All numbers are big-endian; stamps are in us. In tables: s[i] the stamps, c[i] the units up to and with hit i (c[0]
-- those before the first), f[i] the ids (no f: none), n how many hits, floor the high-water mark.
-- Invariants: stamps strictly increase; a value that capline could not have written decodes to nil.
-- Complexity: a short value is read and written whole, O(hits); of a long one a question reads O(log hits) blocks.

local NONE = '\0\0\0\0\0\0\0\0'
local NONE_7 = '\0\0\0\0\0\0\0'
local AT_NEWEST = '\255\255\255\255\255\255\255'
local DENIED = '\255\255\255\255\255\255\255\255'
local REFUNDED = '\255\255\255\255\255\255\255\254'
local CARRIED = '\255\255\255\255\255\255\255\192'   -- from here on below REFUNDED: units taken over from numbers
local NUMBERS = 128
local LONGEST = 3660 * 86400000000   -- no window is longer
local BLOCK = 32    -- hits fetched at a time from a longer value
local SEARCHED = 4096   -- the same, where an id is looked for
local MOVED = 32768     -- bytes that move at a time
local SPARE = 128       -- entries that a long log gets in front of its hits
local FEW_UNITS, MOST_SINGLE = 2048, 3072   -- hits with which a long log becomes one of units, and up to which it stays
local FIRST_BASE = 2 ^ 40   -- of a long log, so that a hit in front of slots can take its units off those before it
local next_forms = false   -- whether a long log may begin to be one by blocks, or of units

-- How many of a[1..n], which never decrease, are at most `key`. An interpolation search, since traffic is mostly even;
-- it bisects where that does not help. So few blocks of a long log are read.
local function upto(a, n, key)
  if n == 0 or a[1] > key then return 0 end
  if a[n] <= key then return n end
  local lo, hi = 1, n
  local guess = true
  while hi - lo > 1 do
    local gap = hi - lo
    if guess and gap > 8 then
      local low, high = a[lo], a[hi]
      local mid = lo + math.floor((key - low) / (high - low) * gap)
      local side = math.ceil(math.sqrt(gap))
      if mid <= lo then mid = lo + 1 elseif mid >= hi then mid = hi - 1 end
      if a[mid] <= key then
        lo = mid
        if mid + side < hi then
          if a[mid + side] <= key then lo = mid + side else hi = mid + side end
        end
      else
        hi = mid
        if mid - side > lo then
          if a[mid - side] <= key then lo = mid - side else hi = mid - side end
        end
      end
    else
      local mid = math.floor((lo + hi) / 2)
      if a[mid] <= key then lo = mid else hi = mid end
    end
    guess = not guess or hi - lo < gap / 4
  end
  return lo
end

local function shape(tag)
  local plain, rest = tag < 64, tag % 32
  if plain then return nil end
  local stamp_bytes, ids = rest % 4, tag >= 96 and 8 or 0
  local sums = ((rest - stamp_bytes) / 4) == 2 and 7 or (rest - stamp_bytes) / 4
  if tag >= 128 or stamp_bytes == 0 or rest > 11 then return nil end
  return stamp_bytes + 4, sums, ids, sums == 7 and 22 or 15
end

-- Whether what stands in place of an id is the mark of units that were taken over from numbers.
local function is_carried(id)
  return id and string.sub(id, 1, 7) == AT_NEWEST and string.byte(id, 8) >= 192 and id ~= REFUNDED and id ~= DENIED
end

-- The rows of numbers: {algorithm, window, quota, log}, the log with `carried` and `carried_at` (-1: never).
local function decode_rows(v)
  local rows, pos, unpack_at = {}, 9, struct.unpack
  while pos <= #v do
    if #v < pos + 38 then return nil end
    local kind, window, quota, carried, at, floor, n = unpack_at('>BI7I7I7I7I7I3', v, pos)
    local log = {s = {}, c = {[0] = 0}, n = n, floor = floor, carried = carried, carried_at = at - 1}
    pos = pos + 39
    if kind < 3 or kind > 5 or window == 0 or window > LONGEST or quota >= MOST_UNITS then return nil end
    if #v < pos + 14 * n - 1 then return nil end
    for i = 1, n do
      local stamp, units = unpack_at('>I7I7', v, pos)
      if i > 1 and stamp <= log.s[i - 1] or stamp >= MOST_UNITS then return nil end
      log.s[i], log.c[i], pos = stamp, log.c[i - 1] + units, pos + 14
    end
    if floor >= MOST_UNITS or log.c[n] > MOST_UNITS then return nil end
    rows[#rows + 1] = {kind, window, quota, log}
  end
  local last = unpack_at('>I7', v, 2)
  return last < MOST_UNITS and {s = {}, c = {[0] = 0}, n = 0, floor = last, rows = rows} or nil
end

-- These rows as a value.
local function encode_rows(rows, last)
  local parts, pack = {string.char(NUMBERS), struct.pack('>I7', last)}, struct.pack
  for _, row in ipairs(rows) do
    local log = row[4]
    parts[#parts + 1] = pack('>BI7I7I7I7I7I3', row[1], row[2], row[3], log.carried or 0, (log.carried_at or -1) + 1,
      log.floor, log.n)
    for i = 1, log.n do parts[#parts + 1] = pack('>I7I7', log.s[i], log.c[i] - log.c[i - 1]) end
  end
  return table.concat(parts)
end

-- A value as tables; nil if capline cannot have written it.
local function decode(v)
  if not v or v == '' then return {s = {}, c = {[0] = 0}, n = 0, floor = 0} end
  local unpack_at, tag = struct.unpack, string.byte(v)
  local s, c, n = {}, {[0] = 0}, 0
  if tag >= 5 and tag <= 7 then
    local many = (#v - 8) / tag
    if #v < 8 or many % 1 ~= 0 then return nil end
    local top, fmt, span = unpack_at('>I7', v, 2), '>I' .. tag, 256 ^ tag
    local last = top
    if top >= MOST_UNITS then return nil end
    n = many + 1
    s[n], c[n] = top, n
    for i = many, 1, -1 do
      local at = top - (top - unpack_at(fmt, v, 9 + (many - i) * tag)) % span
      if at >= last or at < 0 then return nil end
      s[i], c[i], last = at, i, at
    end
    return {s = s, c = c, n = n, floor = top}
  end
  if tag == NUMBERS and #v >= 8 then return decode_rows(v) end
  local log = {start = HEAD, narrow = 0}
  if tag >= 192 and #v > BLOCKS_HEAD then
    log = {start = BLOCKS_HEAD, ahead = string.sub(v, 29, BLOCKS_HEAD)}
    log.narrow, log.skipped = unpack_at('>I4I2', v, 23)
    tag = tag - 128
  end
  local stamp_bytes, sums, ids, start = shape(tag)
  if log.ahead then start = stamp_bytes == 7 and sums == 7 and BLOCKS_HEAD or #v + 1 end
  if not stamp_bytes or #v < start then return nil end
  local size = stamp_bytes + sums + ids
  n = (#v - start + 8 * log.narrow) / size
  if n < 1 or n % 1 ~= 0 or log.narrow > 0 and (ids == 0 or n < log.narrow) then return nil end
  local floor, first = unpack_at('>I7I7', v, 2)
  local base = sums == 7 and unpack_at('>I7', v, 16) or 0
  local f = ids > 0 and {} or nil
  local fmt_s, fmt_c = '>I' .. stamp_bytes, '>I' .. sums
  local last, sum, pos = -1, base, start + 1
  c[0] = base
  for i = 1, n do
    local at = first + unpack_at(fmt_s, v, pos)
    local to = sums == 0 and i or unpack_at(fmt_c, v, pos + stamp_bytes) + ahead_of(log, i)
    if at <= last or to < sum then return nil end
    s[i], c[i], last, sum = at, to, at, to
    if f and i > log.narrow then
      local id = string.sub(v, pos + stamp_bytes + sums, pos + size - 1)
      if id ~= NONE then f[i] = id end
    end
    pos = pos + size - (i <= log.narrow and 8 or 0)
  end
  local explicit = string.sub(v, 2, 8) ~= AT_NEWEST
  if not explicit then floor = last end
  if last >= MOST_UNITS or floor >= MOST_UNITS or sum > MOST_UNITS then return nil end
  return {s = s, c = c, f = f, n = n, floor = floor, explicit = explicit}
end

-- A long log in a string key of this many bytes; a block is read when one of its entries is. Nil if the value is short
-- or in another form.
local function open_long(key, bytes)
  if bytes <= LONG_BYTES then return nil end
  local head, tag, stored = head_of(key)
  local stamp_bytes, sums, ids = shape(tag)
  local single = sums == 0 and ids == 0
  if not single and (stamp_bytes ~= 7 or sums ~= 7) then return nil end
  local floor, first, base = struct.unpack('>I7I7I7', head, 2)
  local size, start, narrow = stamp_bytes + sums + ids, stored.start, stored.narrow
  if single then base = 0 end
  local n = (bytes - start + 8 * narrow) / size
  if not single and first ~= 0 or n % 1 ~= 0 or n <= SHORT or narrow > 0 and (ids == 0 or n < narrow) then return nil end
  stored.size = size
  local implied = string.sub(head, 2, 8) == AT_NEWEST
  if floor >= MOST_UNITS and not implied then return nil end
  local blocks = {}
  local function at(i, offset)
    local b = math.floor((i - 1) / BLOCK)
    local block = blocks[b]
    if not block then
      block = redis.call('GETRANGE', key, place_of(stored, b * BLOCK + 1), place_of(stored, (b + 1) * BLOCK + 1) - 1)
      blocks[b] = block
    end
    return block, place_of(stored, i) - place_of(stored, b * BLOCK + 1) + offset + 1
  end
  local f
  if ids > 0 then
    f = setmetatable({}, {__index = function(_, i)
      if i > n or i <= narrow then return nil end
      local block, from = at(i, 14)
      local id = string.sub(block, from, from + 7)
      if id ~= NONE then return id end
    end})
  end
  local fmt = '>I' .. stamp_bytes
  local s = setmetatable({}, {__index = function(_, i) return first + struct.unpack(fmt, at(i, 0)) end})
  local function sum(i) return single and i or struct.unpack('>I7', at(i, 7)) + ahead_of(stored, i) end
  local total = sum(n)
  if s[n] >= MOST_UNITS or total > MOST_UNITS or total < base then return nil end
  -- Few entries are read, so not all are checked: a damaged one counts no less than nothing and no more than all.
  local c = setmetatable({[0] = base}, {__index = function(_, i) return math.max(base, math.min(total, sum(i))) end})
  return {
    s = s, c = c, f = f, n = n, floor = implied and s[n] or floor,
    key = key, size = size, start = start, implied = implied, explicit = not implied,
    narrow = narrow, skipped = stored.skipped, ahead = stored.ahead, first = single and first,
  }
end

-- The hits of `log` from number i on, as entries with fields of these widths; `base` is subtracted from the units. Those
-- of a long log lie as it has them.
local function entries(log, i, first, base, stamp_bytes, sums, ids)
  local parts, pack, fmt_s, fmt_c = {}, struct.pack, '>I' .. stamp_bytes, '>I' .. sums
  local s, c, f, blocks, narrow = log.s, log.c, log.f, log.key and log.ahead, log.key and log.narrow or 0
  for k = i, log.n do
    local part = pack(fmt_s, s[k] - first)
    if sums > 0 then part = part .. pack(fmt_c, c[k] - base - (blocks and ahead_of(log, k) or 0)) end
    if ids > 0 and k > narrow then part = part .. (f and f[k] or NONE) end
    parts[#parts + 1] = part
  end
  return table.concat(parts)
end

local function floor_bytes(log)
  return log.floor == log.s[log.n] and not log.reserved and AT_NEWEST or struct.pack('>I7', log.floor)
end

-- The whole log as a value, in the shortest form that holds it; a plain stamp has so many bytes (5, 6 or 7).
local function encode(log, stamp_bytes)
  if log.rows then return encode_rows(log.rows, log.floor) end
  local s, c, f, n = log.s, log.c, log.f, log.n
  local units, ids = true, false
  for i = 1, n do
    if c[i] - c[i - 1] ~= 1 then units = false end
    if f and f[i] then ids = true end
  end
  if units and not ids and n > 0 and n <= SHORT and log.floor == s[n] and not log.reserved then
    local parts = {string.char(stamp_bytes) .. struct.pack('>I7', s[n])}
    local fmt, span = '>I' .. stamp_bytes, 256 ^ stamp_bytes
    for i = n - 1, 1, -1 do parts[n - i + 1] = struct.pack(fmt, s[i] % span) end
    return table.concat(parts)
  end
  local first, base, sums, span = s[1], c[0], 7, s[n] - s[1]
  stamp_bytes = span < 256 ^ 5 and 5 or span < 256 ^ 6 and 6 or 7
  local width = span * 1.5 < 256 ^ 5 and 5 or span * 1.5 < 256 ^ 6 and 6 or 7   -- with room for later hits
  if next_forms and n > SHORT and units and not ids and log.floor == s[n] and not log.reserved and n <= MOST_SINGLE
    and UNITS_HEAD + n * width > LONG_BYTES then
    sums, stamp_bytes = 0, width
  elseif n > SHORT then
    first, stamp_bytes, base = 0, 7, base - (c[n] - base < MOST_AHEAD and FIRST_BASE or 0)
  elseif units and not log.reserved then
    sums = 0
  elseif c[n] - base < 256 then
    sums = 1
  end
  local tag = 64 + (ids and 32 or 0) + (sums == 7 and 8 or sums * 4) + stamp_bytes - 4
  local head = string.char(tag) .. floor_bytes(log) .. struct.pack('>I7', first)
  if sums == 7 then head = head .. struct.pack('>I7', c[0] - base) end
  return head .. entries(log, 1, first, base, stamp_bytes, sums, ids and 8 or 0)
end

-- The record of reservations beside the policy's own log, of a policy that has none now; nil where none is pending. The
-- log stays marked as one that has them.
local function former_record(log, key, field)
  if not log.explicit then return nil end
  local beside = string.gsub(key, ':{', '/+reserved:{', 1)
  local v = field == '' and redis.pcall('GET', beside) or field ~= '' and redis.pcall('HGET', beside, field)
  log.reserved = type(v) == 'string'
  return log.reserved and decode(v) or nil
end

-- The latest stamp of a hit with units; -1 where there is none.
local function newest(log)
  local c, i = log.c, log.n
  while i > 0 and c[i] == c[i - 1] do i = i - 1 end
  return i > 0 and log.s[i] or -1
end

-- Units of hits later than the cutoff.
local function units_after(log, cutoff)
  return log.c[log.n] - log.c[upto(log.s, log.n, cutoff)]
end

-- The stamp of the hit that holds the k-th newest unit; -1 where the log has fewer.
local function stamp_of_unit(log, k)
  local target = log.c[log.n] - k
  if target < log.c[0] then return -1 end
  return log.s[upto(log.c, log.n, target) + 1]
end

-- The number of the hit with exactly this stamp; nil where there is none.
local function index_of(log, stamp)
  local i = upto(log.s, log.n, stamp)
  if i > 0 and log.s[i] == stamp then return i end
end

-- `find` in a long log as it is stored: bytes are compared, not entries. Whole pieces of it are read once for all rows of
-- a call: `save` forgets them where more than the end changes.
local pieces = {}
local function find_stored(log, id, first)
  local size, narrow, read, last = log.size, log.narrow, pieces[log.key] or {}, nil
  pieces[log.key] = read
  first = math.max(first, narrow + 1)
  for piece = math.floor((log.n - 1) / SEARCHED), math.floor((first - 1) / SEARCHED), -1 do
    local from = math.max(narrow, piece * SEARCHED)
    local bytes = read[piece]
      or redis.call('GETRANGE', log.key, place_of(log, from + 1), place_of(log, (piece + 1) * SEARCHED + 1) - 1)
    if #bytes == SEARCHED * size then read[piece] = bytes end
    local at = string.find(bytes, id, 1, true)
    while at do
      if (at - 15) % size == 0 then last = from + (at - 15) / size + 1 end
      at = string.find(bytes, id, at + 1, true)
    end
    if last then return last >= first and last or nil end
  end
end

-- The number of the newest hit later than the horizon that was recorded under this id; nil where there is none.
local function find(log, id, horizon)
  local f, s = log.f, log.s
  if not f then return nil end
  local first = upto(s, log.n, horizon) + 1
  if log.key and not log.moved and not log.dirty then return find_stored(log, id, first) end
  for i = log.n, first, -1 do
    if f[i] == id then return i end
  end
end

-- Forget the first m hits.
local function drop(log, m)
  local s, c, f, n = log.s, log.c, log.f, log.n
  local s2, c2, f2 = {}, {[0] = c[m]}, f and {} or nil
  for i = m + 1, n do
    s2[i - m], c2[i - m] = s[i], c[i]
    if f then f2[i - m] = f[i] end
  end
  log.s, log.c, log.f, log.n = s2, c2, f2, n - m
end

-- Forget the first m hits. If the log stays long, its bytes are copied and not decoded.
local function forget(log, m)
  if not log.key or log.n - m <= SHORT or log.start + (log.n - m) * log.size <= LONG_BYTES then
    drop(log, m)
    log.key = nil
    return
  end
  local from = place_of(log, m + 1)
  local tail = log.moved and string.sub(log.moved.tail, from - log.start + 1) or redis.call('GETRANGE', log.key, from, -1)
  log.moved = {base = log.c[m], tail = tail}
  log.narrow = math.max(0, log.narrow - m)
  if log.ahead then
    local gone = math.min(BLOCKS - 1, math.floor((log.skipped + m) / IN_BLOCK))
    log.skipped = (log.skipped + m) % IN_BLOCK
    log.ahead = string.sub(log.ahead, 8 * gone + 1) .. string.rep(string.sub(log.ahead, -8), gone)
  end
  local s, c, f = log.s, log.c, log.f
  local function behind(a) return setmetatable({}, {__index = function(_, i) return a[i + m] end}) end
  log.s, log.c, log.f, log.n = behind(s), behind(c), f and behind(f), log.n - m
  log.c[0] = log.moved.base
  if log.dirty then log.dirty = math.max(1, log.dirty - m) end
  if log.new then log.dirty = log.new.at - m end
end

-- Forget the hits that are as old as the cutoff or older; in a long log only if they are at least half of it, in one of
-- units an eighth: it is there to be small.
local function trim(log, cutoff)
  if log.key and log.s[math.floor(log.n / (log.first and 8 or 2))] > cutoff then return end
  local m = upto(log.s, log.n, cutoff)
  if m > 0 then forget(log, m) end
end

-- Forget the refusals as old as the cutoff or older. Behind a hit that was allowed, those of a log of thousands go only if
-- half of it can, and that is looked for once in some eighth of its hits, as it reads them all.
local function trim_denied(log, cutoff)
  local m, first, kept = log.f and upto(log.s, log.n, cutoff) or 0, 0, {}
  while first < m and log.f[first + 1] == DENIED do first = first + 1 end
  if first > 0 then forget(log, first) end
  m = m - first
  local _, bits = math.frexp(log.n)
  local lazy = log.n > 2048 and cutoff < log.floor  -- from there on their stamps may be taken again
  if lazy and (m * 2 < log.n or log.n % 2 ^ (bits - 4) > 0) then return end
  for i = 1, m do
    if log.f[i] ~= DENIED then kept[#kept + 1] = i end
  end
  local many = #kept
  if many == m or lazy and (m - many) * 2 < log.n then return end
  local s, c, f, n = log.s, log.c, log.f, log.n
  local s2, c2, f2, units = {}, {}, {}, 0
  for _, i in ipairs(kept) do units = units + c[i] - c[i - 1] end
  c2[0] = c[m] - units
  for k, i in ipairs(kept) do s2[k], c2[k], f2[k] = s[i], c2[k - 1] + c[i] - c[i - 1], f[i] end
  for i = m + 1, n do
    local k = many + i - m
    s2[k], c2[k], f2[k] = s[i], c[i], f[i]
  end
  log.s, log.c, log.f, log.n, log.key = s2, c2, f2, many + n - m, nil
end

-- Make sure that so many more units can be counted: units stay below 2^53.
local function make_room(log, units)
  if log.ahead and log.c[log.n] + units > MOST_AHEAD then
    drop(log, 0)
    log.key, log.ahead = nil, nil
  end
  if log.c[log.n] + units <= MOST_UNITS then return end
  local base = log.c[0]
  drop(log, 0)
  for i = 0, log.n do log.c[i] = log.c[i] - base end
  log.key = nil
  if log.c[log.n] + units > MOST_UNITS then error('capline: more than 2^53 units in one log') end
end

-- Let a long log be written anew, in another form.
local function rewrite(log)
  drop(log, 0)
  log.key = nil
end

-- The same for one by blocks in which hit number i, with so many units more, would have less than what is added in its block.
local function keep_above(log, i, more)
  if log.key and log.ahead and log.c[i] + more < ahead_of(log, i) then rewrite(log) end
end

-- Let a long log be one by blocks once it is saved.
local function begin_blocks(log)
  log.moved = log.moved or {base = log.c[0], tail = redis.call('GETRANGE', log.key, log.start, -1)}
  log.start, log.skipped, log.ahead = BLOCKS_HEAD, 0, string.rep(NONE, BLOCKS)
end

-- Insert one hit by its stamp; log.dirty is the first hit that must be written again.
local function record(log, stamp, units, floor, id)
  make_room(log, units)
  local n = log.n
  local p = upto(log.s, n, stamp) + 1
  -- Before hits without bytes for an id, or entries that have none.
  if log.key and (p <= log.narrow or log.ahead and p <= n or log.first and (id or p <= n)) then rewrite(log) end
  local s, c = log.s, log.c
  if id and not log.f then
    log.f = {}
    if log.key and (log.ahead or next_forms) and n > IN_BLOCK and p > n and log.c[n] < MOST_AHEAD then
      if not log.ahead then begin_blocks(log) end
      log.narrow, log.size, log.begun = n, 22, true   -- these hits have no bytes for an id
    elseif log.key then   -- each entry of a long log gets wider
      local tail = log.moved and log.moved.tail or redis.call('GETRANGE', log.key, log.start, -1)
      tail = string.gsub(tail, string.rep('.', log.size), '%0' .. NONE)
      log.moved, log.size = {base = log.c[0], tail = tail}, log.size + 8
    end
  end
  local f = log.f
  for i = n, p, -1 do
    s[i + 1], c[i + 1] = s[i], c[i] + units
    if f then f[i + 1] = f[i] or false end
  end
  s[p], c[p] = stamp, c[p - 1] + units
  if f then f[p] = id or false end
  log.n = n + 1
  log.dirty = math.min(log.dirty or p, p)
  if floor > log.floor then log.floor = floor end
end

-- Insert one hit in front of others of a long log as it is stored; `save` moves their bytes, or those of the hits before
-- it, onto the first, where that is as old as the horizon. False if it has to be written anew (`record`).
local function insert(log, stamp, units, floor, id, horizon)
  local at, n, ahead = upto(log.s, log.n, stamp) + 1, log.n, log.ahead
  if not log.key or log.first or at > n or at <= log.narrow or id and not log.f or log.dirty or log.moved then return false end
  local s, c, f, edges, gone = log.s, log.c, log.f, {}, 0
  if c[n] + units > (ahead and MOST_AHEAD - math.abs(ahead_of(log, math.huge)) - units or MOST_UNITS) then return false end
  if s[1] <= horizon and at < n / 2 and log.narrow == 0 and id ~= DENIED then gone = 1 end
  local least = c[at - 1] + units - ahead_of(log, at)
  at = at - gone
  -- The last hit of each block behind it becomes the first of the next; or the first of each in front the last of the one
  -- before.
  local in_block = ahead and block_of(log, at)
  for block = ahead and (gone == 1 and 1 or in_block + 1) or 1, ahead and (gone == 1 and in_block or block_of(log, n + 1)) or 0 do
    local i = block * IN_BLOCK - log.skipped
    local from, to = i + gone, i + 1 - gone
    if to ~= at then
      edges[to] = c[from] - ahead_of(log, to)
      least = math.min(least, edges[to])
    end
  end
  if least < 0 then
    rewrite(log)
    return false
  end
  local function place(i) return i < at and i + gone or i - 1 + gone end
  local function before(a, more)
    return setmetatable({}, {__index = function(_, i) return a[place(i)] + (i < at and 0 or more) end})
  end
  log.s, log.c, log.n = before(s, 0), before(c, units), n + 1 - gone
  log.s[at], log.c[at], log.c[0] = stamp, c[place(at)] + units, c[gone]
  if f then
    log.f = setmetatable({[at] = id or false}, {__index = function(_, i) return f[place(i)] end})
  end
  log.new = {at = at, units = units, edges = edges, gone = gone, horizon = horizon}
  if floor > log.floor then log.floor = floor end
  return true
end

-- Move the last hit to this stamp, not before its own, and add so many units (may be negative).
local function extend(log, stamp, units, floor)
  make_room(log, units)
  local n = log.n
  log.s[n], log.c[n] = stamp, log.c[n] + units
  log.dirty = math.min(log.dirty or n, n)
  if floor > log.floor then log.floor = floor end
end

-- The units of hit number i.
local function units_of(log, i)
  return log.c[i] - log.c[i - 1]
end

-- Take so many units off hit number i; false if it has fewer. The hit stays; its id may be used again. It stays marked:
-- else where sums are kept a later hit would be added to it.
local function give_back(log, i, units)
  local c, f
  if units == 0 or units_of(log, i) < units then return false end
  keep_above(log, i, -units)
  c, f = log.c, log.f
  for k = i, log.n do c[k] = c[k] - units end
  if f then f[i] = f[i] and REFUNDED end
  log.dirty = math.min(log.dirty or i, i)
  return true
end

-- Give hit number i so many units, above 0; its id stays.
local function amend(log, i, units)
  local more, c = units - units_of(log, i), nil
  if more > 0 then make_room(log, more) else keep_above(log, i, more) end
  c = log.c
  for k = i, log.n do c[k] = c[k] + more end
  log.dirty = math.min(log.dirty or i, i)
end

-- Whether so many units more than those later than the horizon can be counted, up to `most`.
local function has_room(log, horizon, units, most)
  return units <= most - units_after(log, horizon)
end

-- Entries i to `last` of a long log, each of this size, with so many units more; a thousand at a time: some six times as
-- fast as `entries`. `mark`: what stands in place of the first one's id.
local function shifted(log, i, last, size, more, mark)
  local bytes, parts, at = call('GETRANGE', log.key, place_of(log, i), place_of(log, last + 1) - 1), {}, 1
  local each, fields = size == 14 and 'I7I7' or 'I7I7c8', size == 14 and 2 or 3
  while at < #bytes do
    local many = math.min(1000, (#bytes - at + 1) / size)
    local format = '>' .. string.rep(each, many)
    local values = {struct.unpack(format, bytes, at)}
    for k = 2, fields * many, fields do values[k] = values[k] + more end
    if at == 1 and mark then values[3] = mark end
    parts[#parts + 1] = struct.pack(format, unpack(values, 1, fields * many))
    at = at + many * size
  end
  return table.concat(parts)
end

-- Add so many units to the later blocks than that of entry i. Returns the last entry of its own.
local function shift_blocks(log, i, more)
  local block = log.ahead and block_of(log, i) or BLOCKS - 1
  if block == BLOCKS - 1 then return log.n end
  local last = (block + 1) * IN_BLOCK - log.skipped
  if last >= log.n then return log.n end
  local from = 8 * (block + 1)
  local format = '>' .. string.rep('i8', BLOCKS - block - 1)
  local later = {struct.unpack(format, log.ahead, from + 1)}
  for k = 1, #later - 1 do later[k] = later[k] + more end
  call('SETRANGE', log.key, HEAD + 6 + from, struct.pack(format, unpack(later)))
  return last
end

-- Write the hit that was inserted into a long log: those behind it move by one entry, or those in front of it. Where
-- many move, SPARE entries of no units come before the first, as old as the horizon: the next hits have room by them.
local function save_new(log, new)
  local key, size, at, n, units, c = log.key, log.size, new.at, log.n, new.units, log.c
  local sum, id = c[at] - ahead_of(log, at), size > 14 and (log.f[at] or NONE) or ''
  local first, stop, base = place_of(log, at), place_of(log, n), c[0]
  if new.gone > 0 then
    call('SETRANGE', key, log.start, call('GETRANGE', key, log.start + size, first + size - 1))
  elseif n - at > SEARCHED and new.horizon > SPARE and log.narrow == 0 and base >= ahead_of(log, 1)
    and (not log.ahead or block_of(log, n) < BLOCKS - 1)
  then
    local parts, each = {call('GETRANGE', key, 0, HEAD - 1)}, base - ahead_of(log, 1)
    if log.ahead then
      if log.skipped < SPARE then log.ahead = string.sub(log.ahead, 1, 8) .. string.sub(log.ahead, 1, -9) end
      log.skipped = (log.skipped - SPARE) % IN_BLOCK
      parts[2] = struct.pack('>I4I2', 0, log.skipped) .. log.ahead
    end
    for k = 1, SPARE do
      parts[#parts + 1] = struct.pack('>I7I7', new.horizon - SPARE + k, each) .. (size > 14 and NONE or '')
    end
    parts[#parts + 1] = call('GETRANGE', key, log.start, first + size - 1)
    parts[#parts + 1] = call('GETRANGE', key, first, -1)
    call('SET', key, table.concat(parts), 'KEEPTTL')
    at, n, first = at + SPARE, n + SPARE, first + SPARE * size
    log.n = n
  else
    while stop > first do
      local from = math.max(first, stop - MOVED)
      call('SETRANGE', key, from + size, call('GETRANGE', key, from, stop - 1))
      stop = from
    end
  end
  for i, edge in pairs(new.edges) do
    call('SETRANGE', key, place_of(log, i + at - new.at) + 7, struct.pack('>I7', edge))
  end
  if not log.ahead and base >= units and at < n - at then   -- fewer hits are before it
    sum = sum - units
    call('SETRANGE', key, 15, struct.pack('>I7', base - units) .. shifted(log, 1, at - 1, size, -units))
  else
    local last = shift_blocks(log, at, units)
    call('SETRANGE', key, place_of(log, at + 1), shifted(log, at + 1, last, size, units))
    if new.gone > 0 then call('SETRANGE', key, 15, struct.pack('>I7', base)) end
  end
  call('SETRANGE', key, first, struct.pack('>I7I7', log.s[new.at], sum) .. id)
end

-- Whether a long log is to be written anew: it becomes one of units, or can be that no more.
local function changes_form(log)
  local n, c, first = log.n, log.c, log.first
  if not first then
    return next_forms and log.size == 14 and not log.ahead and n <= FEW_UNITS and UNITS_HEAD + 5 * n > LONG_BYTES
      and (log.moved or n < 512) and c[n] - c[0] == n and log.floor == log.s[n]
  end
  for i = log.dirty, n do
    if c[i] - c[i - 1] ~= 1 then return true end
  end
  return n > MOST_SINGLE or log.s[n] - first >= 256 ^ log.size or log.reserved
end

-- Write the changed part of a long log, to expire in `ttl` ms.
local function save(log, ttl)
  local ids, n, new, first = log.size - 14, log.n, log.new, log.first
  if changes_form(log) then
    pieces[log.key] = nil
    drop(log, 0)
    call('SET', log.key, encode(log), 'PX', ttl)
    return
  end
  -- Early, as all of it is copied; or where it is copied anyway.
  if next_forms and not (first or log.ahead) and n > IN_BLOCK and (log.moved or n < 4 * IN_BLOCK) and log.c[n] < MOST_AHEAD then
    begin_blocks(log)
  end
  if new and log.dirty then log.dirty, new = math.min(log.dirty, new.at), nil end   -- more was changed
  if log.moved or log.begun or new or log.dirty < log.n then pieces[log.key] = nil end
  if log.moved or log.begun then
    local tag = first and 60 + log.size or 64 + (ids > 0 and 32 or 0) + 11 + (log.ahead and 128 or 0)
    local head = string.char(tag) .. floor_bytes(log) .. struct.pack('>I7', first or 0)
    if not first then head = head .. struct.pack('>I7', log.c[0]) end
    if log.ahead then head = head .. struct.pack('>I4I2', log.narrow, log.skipped) .. log.ahead end
    if log.moved then
      redis.call('SET', log.key, head .. log.moved.tail)
    else
      redis.call('SETRANGE', log.key, 0, head)
    end
  elseif not log.implied or log.floor ~= log.s[log.n] or log.reserved then
    redis.call('SETRANGE', log.key, 1, floor_bytes(log))
  end
  if new then
    save_new(log, new)
  else
    local widths = first and {log.size, 0, 0} or {7, 7, ids}
    redis.call('SETRANGE', log.key, place_of(log, log.dirty), entries(log, log.dirty, first or 0, 0, unpack(widths)))
  end
  redis.call('PEXPIRE', log.key, ttl)
end
