-- The fast path of one attempt that is no plain unit: any cost, an id that is new, a peek, and the algorithms that keep
-- sums or numbers, on logs of at most 127 entries. Included by joint.lua after prelude.lua.
-- Invariant: the answers are those of rule.lua. Complexity: O(log hits) a limit; one read and one write a log.

local COUNTER, LEVEL, FIXED, SUMS, HITS = 3, 4, 5, 6, 7
local MOST_READ = 22 + SHORT * 22   -- bytes; no log of 127 entries has as many
local MOST_COUNTED = 2 ^ 32   -- units of one log: a counter multiplies them by its ticks

-- The answer as joint.lua packs it; nil, and nothing is written, where the general rule has to answer.
local function flat(static, cost, field, id)
  local unpack_at, pack, byte, char, sub = struct.unpack, struct.pack, string.byte, string.char, string.sub
  local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min
  local plain_bytes, retention, grace, least, kind = unpack_at('>BI8I8I8B', static)
  if least > 0 then kind = HITS elseif kind == 0 or id ~= '' then return nil end
  if cost == 0 then return nil end
  local numbers, apart = kind < SUMS, kind == HITS and 2 or 4
  local limits = {unpack_at('>' .. string.rep('I8', (#static - 34) / 8), static, 35)}
  local many = #limits - 1   -- struct.unpack's last value is a position

  local logs, time, newest = {}, now, -1
  for k = 1, #KEYS do
    local v
    if field == '' then v = redis.pcall('GETRANGE', KEYS[k], 0, MOST_READ - 1) else v = redis.pcall('HGET', KEYS[k], field) end
    if v == '' then v = false end
    local log   -- whole at once: a field more makes Lua lay out a table anew
    if v then
      -- The longest, and hits with ids beside the numbers, are not read here.
      if type(v) == 'table' or #v < 8 or #v == MOST_READ or numbers and k == 1 then return nil end
      local tag, size = byte(v), #v
      if tag >= 5 and tag <= 7 then
        local n = (size - 8) / tag + 1
        local top = unpack_at('>I7', v, 2)
        log = {
          v = v, n = n, total = n, base = 0, last = top, oldest = 0, plain = tag, fmt = '>I' .. tag, span = 256 ^ tag,
        }
      else
        local ids = tag >= 96 and 8 or 0
        local rest = tag - 64 - 4 * ids
        local width, c = rest % 4, floor(rest / 4)
        if size < 16 or tag > 127 or width == 0 or c < 0 or c > 2 or sub(v, 2, 8) ~= '\255\255\255\255\255\255\255' then
          return nil
        end
        width = width + 4
        local units = c == 2 and 7 or c
        local start, entry = c == 2 and 22 or 15, width + units + ids
        local n = (size - start) / entry
        if ids > 0 and (kind ~= HITS or id ~= '' and string.find(v, id, start, true)) then return nil end
        log = {
          v = v, n = n, total = 0, base = c == 2 and unpack_at('>I7', v, 16) or 0, last = -1, oldest = 0, level = 0,
          first = unpack_at('>I7', v, 9), start = start, entry = entry, width = width, units = units, ids = ids,
          fmt = '>I' .. width, fmt_units = '>I' .. units,
        }
      end
    end
    logs[k] = log or {n = 0, total = 0, base = 0, last = -1}
  end

  -- Stamp of entry i, from the oldest on; units up to it.
  local function stamp_of(log, i)
    if not log.plain then return log.first + unpack_at(log.fmt, log.v, log.start + (i - 1) * log.entry + 1) end
    if i == log.n then return log.last end
    return log.last - (log.last - unpack_at(log.fmt, log.v, 9 + (log.n - 1 - i) * log.plain)) % log.span
  end
  local function units_to(log, i)
    if i == 0 then return log.base end
    if log.plain or log.units == 0 then return i end
    return (unpack_at(log.fmt_units, log.v, log.start + (i - 1) * log.entry + log.width + 1))
  end
  for k = 1, #logs do
    local log = logs[k]
    local n = log.n
    if log.v then
      if n < 1 or n > 127 or n % 1 ~= 0 then return nil end
      if not log.plain then log.last, log.total = stamp_of(log, n), units_to(log, n) end
      -- A newest entry that was refunded, and more units or a later stamp than capline writes.
      if log.total <= units_to(log, n - 1) or log.total + cost > MOST_COUNTED and kind ~= LEVEL then return nil end
      if kind == LEVEL and n > 1 then return nil end
      log.oldest = stamp_of(log, 1)
      if log.last > newest then newest = log.last end
    end
  end
  if newest > time then time = newest end
  local stamp = max(time, newest + 1)
  if stamp >= MOST_UNITS - retention then return nil end

  local damaged = false   -- more units before an entry than up to the newest: the general rule says what is wrong
  local function units_after(log, cutoff)
    if log.last <= cutoff then return 0 end
    local low, high = 0, log.n
    if log.oldest > cutoff then high = 0 end
    while high - low > 1 do
      local mid = floor((low + high) / 2)
      if stamp_of(log, mid) <= cutoff then low = mid else high = mid end
    end
    local units = log.total - units_to(log, low)
    damaged = damaged or units < 0
    return units
  end
  -- Of the k-th newest unit; -1 where there are fewer.
  local function stamp_of_unit(log, k)
    local target = log.total - k
    if target < log.base then return -1 end
    if log.plain or log.units == 0 then return stamp_of(log, target + 1) end
    local low, high = 0, log.n
    while high - low > 1 do
      local mid = floor((low + high) / 2)
      if units_to(log, mid) <= target then low = mid else high = mid end
    end
    return stamp_of(log, high)
  end
  local function fades_at(window, tick, ticks, start, before, room)
    local steps = before > 0 and min(ticks, floor(room * ticks / before)) or ticks
    return start + max(0, window - steps * tick)
  end

  local latest, binding = -1, nil
  for j = 1, many, apart do
    local log, quota, window, fits = numbers and logs[(j + 7) / 4] or logs[1], limits[j], limits[j + 1], -1
    if cost > quota then return nil end
    if not numbers then
      local oldest = stamp_of_unit(log, quota - cost + 1)
      if oldest ~= -1 then fits = oldest + window end
    elseif log.v and kind == LEVEL then
      local over = log.total - log.base - (limits[j + 3] - cost * window)
      if over > 0 then fits = log.last + ceil(over / limits[j + 2]) end
    elseif log.v then
      local start = log.last - log.last % window
      local used = units_after(log, start - 1)
      if kind == FIXED then
        if used + cost > quota then fits = start + window end
      else
        local tick, ticks, late = limits[j + 2], limits[j + 3], true
        if used + cost <= quota then
          local before = units_after(log, start - window - 1) - used
          fits = fades_at(window, tick, ticks, start, before, quota - cost - used)
          late = fits >= start + window
        end
        if late then fits = fades_at(window, tick, ticks, start + window, used, quota - cost) end
      end
    end
    if fits > latest then latest, binding = fits, (j - 1) / apart end
  end
  if latest >= MOST_UNITS then return nil end
  local allowed = latest <= stamp
  local units, final = allowed and cost or 0, allowed and stamp or newest

  local left, tightest, empty, states = MOST_UNITS, nil, -1, ''
  for j = 1, many, apart do
    local log, quota, window = numbers and logs[(j + 7) / 4] or logs[1], limits[j], limits[j + 1]
    local last = allowed and stamp or log.last
    local rest, more, whole, gone = 0, -1, -1, -1
    if not numbers then
      local used = units_after(log, stamp - window)
      rest, gone, whole = quota - used - units, final + window, last + window
      if used > 0 then more = stamp_of_unit(log, min(used, quota)) + window elseif allowed then more = stamp + window end
    elseif kind == LEVEL then
      local rise, fall, brim = window, limits[j + 2], limits[j + 3]
      local stored = log.total - log.base
      local level = max(0, stored - (stamp - log.last) * fall)
      rest = floor((brim - level) / rise) - units
      if allowed then
        level = level + cost * rise
        log.level, whole = level, stamp + ceil(level / fall)
        gone = whole
      elseif log.v then
        whole = log.last + ceil(stored / fall)
        local then_left = stored - (final - log.last) * fall
        if then_left > 0 then gone = final + ceil(then_left / fall) end
      end
      if level > 0 then more = stamp + ceil((level - brim + (floor(max(0, brim - level) / rise) + 1) * rise) / fall) end
    else
      local start = stamp - stamp % window
      local used = units_after(log, start - 1)
      if kind == FIXED then
        rest, gone, whole = quota - used - units, final - final % window + window, last - last % window + window
        if rest < quota then more = start + window end
      else
        local tick, ticks = limits[j + 2], limits[j + 3]
        local before = units_after(log, start - window - 1) - used
        rest = quota - used - ceil(before * ceil((start + window - stamp) / tick) / ticks) - units
        gone, whole = final - final % window + 2 * window, last - last % window + 2 * window
        local counted, own = min(quota, quota - rest), used + units
        if counted > 0 then
          if own < counted then more = fades_at(window, tick, ticks, start, before, counted - 1 - own) end
          if own >= counted or more >= start + window then
            more = fades_at(window, tick, ticks, start + window, own, counted - 1)
          end
        end
      end
    end
    if more == -1 then whole = -1 end
    if rest < left then left, tightest = rest, (j - 1) / apart end
    if final ~= -1 and gone > empty then empty = gone end
    states = states .. pack('>i8I8I8', rest, max(0, more - now), max(0, whole - now))
  end

  if damaged then return nil end
  local news = {}
  for k = numbers and 2 or 1, allowed and mode == 0 and #KEYS or 0 do
    local log = logs[k]
    local n, last, cutoff, new = log.n, log.last, time - retention, nil
    if kind == LEVEL or last <= cutoff then
      n = 0   -- it becomes a single entry
    elseif log.oldest <= cutoff and (field ~= '' or stamp_of(log, floor(n / 2) + 1) <= cutoff) then
      return nil   -- the general rule trims it
    end
    local grain = kind == SUMS and limits[3] or numbers and limits[4 * k - 6]
    local merges = n > 0 and grain and floor(last / grain) == floor(stamp / grain)
    if n == 0 or merges and n == 1 then
      local sum = kind == LEVEL and log.level or merges and log.total - log.base + cost or cost
      if sum == 1 and id == '' then
        new = char(plain_bytes) .. pack('>I7', stamp)
      else
        local form = sum == 1 and 0 or sum < 256 and 1 or 2
        new = char(65 + 4 * form + (id ~= '' and 32 or 0)) .. '\255\255\255\255\255\255\255' .. pack('>I7', stamp)
          .. (form == 2 and '\0\0\0\0\0\0\0\0\0\0\0\0' .. pack('>I7', sum) or '\0\0\0\0\0' .. (form == 1 and char(sum) or '')) .. id
      end
    elseif log.plain then
      if merges or cost > 1 or id ~= '' or log.plain ~= plain_bytes then return nil end
      new = char(plain_bytes) .. pack('>I7', stamp) .. sub(log.v, 9 - plain_bytes)
    else
      local sum = log.total + cost
      if stamp - log.first >= 256 ^ log.width or id ~= '' and log.ids == 0 then return nil end
      if log.units == 0 and (merges or cost > 1) or log.units == 1 and sum > 255 then return nil end
      new = sub(log.v, 1, log.start + (merges and n - 1 or n) * log.entry) .. pack(log.fmt, stamp - log.first)
      if log.units > 0 then new = new .. pack(log.fmt_units, sum) end
      if log.ids > 0 then new = new .. (id ~= '' and id or '\0\0\0\0\0\0\0\0') end
    end
    news[k] = new
  end

  for k = 1, mode == 0 and #KEYS or 0 do
    if news[k] then
      local ttl = lifetime(stamp, retention, now, grace)
      if field == '' then
        call('SET', KEYS[k], news[k], 'PX', ttl)
      else
        call('HSET', KEYS[k], field, news[k])
        keep_bucket(KEYS[k], ttl, grace)
      end
    elseif logs[k].v then
      prolong(KEYS[k], logs[k].last, retention, now, grace)
    end
  end
  return pack('>I8BBBI8I8I8BI8', now, allowed and 1 or 0, 0, not allowed and binding or tightest, max(0, left),
    allowed and 0 or latest - now + 1, empty == -1 and 0 or max(0, empty - now), 0, allowed and stamp or 0) .. states
end
