-- The fast path of the rule on a long log (see log.lua): one unit, reading only a few entries by GETRANGE. Included by
-- one.lua and joint.lua after unit.lua.
-- Invariant: the answers are those of rule.lua. Complexity: two reads, one more for each limit; O(log hits) reads where
-- a window's edge has to be searched.

-- Units of hits later than the cutoff, which is not later than the newest hit; the stamp of the oldest of these hits,
-- and its units. An interpolation search, since traffic is mostly even; it bisects where that does not help.
local function units_behind(entry, n, base, top, total, cutoff)
  local oldest, sum = unpack_at('>I7I7', entry(1, 1))
  if oldest > cutoff then return total - base, oldest, sum - base end
  local lo, hi, low, high, guess, units = 1, n, oldest, top, true, total
  while hi - lo > 1 do
    local gap = hi - lo
    local mid = floor((lo + hi) / 2)
    if guess then mid = math.max(lo + 1, math.min(hi - 1, lo + floor((cutoff - low) / (high - low) * gap))) end
    local side = gap > 16 and math.ceil(math.sqrt(gap)) or 1
    for _ = 1, 2 do
      local s, c = unpack_at('>I7I7', entry(mid, 1))
      if s <= cutoff then lo, low, sum = mid, s, c else hi, high, units = mid, s, c end
      if not guess or gap <= 16 then break end
      mid = s <= cutoff and mid + side or mid - side
      if mid <= lo or mid >= hi then break end
    end
    guess = not guess or hi - lo < gap / 4
  end
  return total - sum, high, units - sum
end

-- As `unit` in unit.lua, and then the state of each limit. The first result is what to append to the value of this many
-- bytes. With a max_wait in us (-1: no bound) it takes the first free instant, which may be after slots that are taken.
local function long_unit(key, bytes, limits, widest, max_wait)
  if bytes <= LONG_BYTES then return false end
  local tag, seen, first, base = unpack_at('>BI7I7I7', call('GETRANGE', key, 0, 21))
  local size = tag == 75 and 14 or tag == 107 and 22
  local n = size and (bytes - 22) / size or 0.5
  -- Every 64th hit goes to the general rule, which trims the log.
  if n % 1 ~= 0 or n % 64 == 0 or n <= SHORT or first ~= 0 then return false end
  local function entry(i, count)
    local from = 22 + (i - 1) * size
    return call('GETRANGE', key, from, from + count * size - 1)
  end
  local two = entry(n - 1, 2)
  local top, total = unpack_at('>I7I7', two, size + 1)
  if top >= MOST_UNITS or total + 1 > MOST_UNITS then return false end
  local time, stamp = now, now
  if seen >= MOST_UNITS then
    if top >= now then time, stamp = top, top + 1 end
  else
    -- An explicit high-water mark: the newest hit is a slot in the future, was one when taken, or was refunded.
    if seen > now then time = seen end
    if not max_wait or top <= time or total == unpack_at('>I7', two, 8) then return false end
    stamp = top + 1
  end
  local fits, binding, edges = stamp, nil, {}   -- edges: the unit at a quota's edge, and the next
  for j = 1, #limits, 2 do
    local quota, i = limits[j], n - limits[j] + 1
    if total - quota >= base then
      -- If all hits are one unit, the hit at the quota's edge is at this index; if not, the general rule searches.
      local before, at, here, after = base, nil, nil, nil
      if i > 1 then
        local three = entry(i - 1, 3)
        edges[-j], before = unpack_at('>I7I7', three)   -- the unit before the edge
        at, here = unpack_at('>I7I7', three, size + 1)
        if i < n then
          local own
          after, own = unpack_at('>I7I7', three, 2 * size + 1)
          if own == here then after = nil end   -- refunded
        end
      elseif i == 1 then
        at, here = unpack_at('>I7I7', entry(1, 1))
      else
        return false
      end
      if before ~= total - quota or here ~= before + 1 then return false end
      edges[j], edges[j + 1] = at, after
      if at + limits[j + 1] > fits then fits, binding = at + limits[j + 1], j end
    end
  end
  if fits >= MOST_UNITS then return false end
  if max_wait then
    if max_wait >= 0 and fits - now > max_wait then return false end
    stamp = fits
  end
  local allowed = max_wait or not binding
  local left, tightest, states = MOST_UNITS, nil, {}
  for j = 1, #limits, 2 do
    local quota, window = limits[j], limits[j + 1]
    local cutoff, used, oldest = stamp - window, 0, nil   -- units in the window, and where the oldest of them stands
    if edges[j] and edges[j] > cutoff then
      if edges[-j] and edges[-j] > cutoff then return false end   -- past the quota: the general rule counts
      used, oldest = quota, edges[j]
    elseif edges[j + 1] and edges[j + 1] > cutoff then
      -- The unit at the quota's edge has left the window and the next one is in it: no search is needed.
      used, oldest = quota - 1, edges[j + 1]
    elseif top > cutoff then
      local units
      used, oldest, units = units_behind(entry, n, base, top, total, cutoff)
      if units == 0 then return false end   -- refunded: the general rule skips it
    end
    if quota - used < left then left, tightest = quota - used, (j - 1) / 2 end
    if allowed then
      states[#states + 1] = pack('>I8I8I8', quota - used - 1, (oldest or stamp) + window - now, stamp + window - now)
    else
      local more, whole = 0, 0
      if oldest then more, whole = oldest + window - now, top + window - now end
      states[#states + 1] = pack('>I8I8I8', quota - used, more, whole)
    end
  end
  states = table.concat(states)
  if not allowed then
    return nil, 0, (binding - 1) / 2, 0, fits - now + 1, math.max(0, top + widest - now), states
  end
  if not tightest then return false end
  if stamp > time + 1 then call('SETRANGE', key, 1, pack('>I7', time)) end
  if stamp > last_stamp then last_stamp = stamp end
  local new = pack('>I7I7', stamp, total + 1) .. (size == 22 and '\0\0\0\0\0\0\0\0' or '')
  return new, 1, tightest, left - 1, stamp, stamp + widest - now, states
end
