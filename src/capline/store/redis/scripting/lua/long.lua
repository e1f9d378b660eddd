-- The fast path of the rule on a long log (see log.lua): one unit, reading only a few entries by GETRANGE. Included by
-- one.lua and joint.lua after unit.lua.
-- Invariant: the answers are those of rule.lua. Complexity: two reads, one more for each limit; O(log hits) reads where
-- a window's edge has to be searched.

-- Units of hits later than the cutoff, which is not later than the newest hit; the stamp of the oldest of these hits,
-- and its units. An interpolation search, since traffic is mostly even; it bisects where that does not help.
local function units_behind(hit, n, base, top, total, cutoff)
  local oldest, sum = hit(1)
  if oldest > cutoff then return total - base, oldest, sum - base end
  local lo, hi, low, high, guess, units = 1, n, oldest, top, true, total
  while hi - lo > 1 do
    local gap = hi - lo
    local mid = floor((lo + hi) / 2)
    if guess then mid = math.max(lo + 1, math.min(hi - 1, lo + floor((cutoff - low) / (high - low) * gap))) end
    local side = gap > 16 and math.ceil(math.sqrt(gap)) or 1
    for _ = 1, 2 do
      local s, c = hit(mid)
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
-- bytes, of which `read` are the first, if they were read. With a max_wait in us (-1: no bound) it takes the first free
-- instant, which may be after slots that are taken. `judged` as in unit.lua; nil: as limits.
local function long_unit(key, bytes, limits, widest, max_wait, read, judged)
  if bytes <= LONG_BYTES then return false end
  local head, tag, log = head_of(key, read)
  local seen, first, base = unpack_at('>I7I7I7', head, 2)
  local single = tag > 64 and tag < 68   -- each entry is one unit
  local size, fmt = single and tag - 60 or tag == 75 and 14 or tag == 107 and 22, '>I7'
  local n = size and (bytes - log.start + 8 * log.narrow) / size or 0.5
  log.size = size
  if n % 1 ~= 0 or n <= SHORT or n < log.narrow or first ~= 0 and not single then return false end
  local oldest_at = HEAD
  if single then base, fmt, oldest_at = 0, '>I' .. size, UNITS_HEAD end
  -- Every 64th hit goes to the general rule, which trims the log or begins another form.
  if n % 64 == 0 and (begins_next or not read or first + unpack_at(fmt, read, oldest_at + 1) <= now - retention) then
    return false
  end
  local function entries(i, count) return call('GETRANGE', key, place_of(log, i), place_of(log, i + count) - 1) end
  -- The stamp of hit i, and the units up to it; out of the entries from `from` on, if they are given.
  local function hit(i, many, from)
    local at = many and place_of(log, i) - place_of(log, from) + 1
    if single then return first + unpack_at(fmt, many or entries(i, 1), at), i end
    local stamp, units = unpack_at('>I7I7', many or entries(i, 1), at)
    return stamp, log.ahead and units + ahead_of(log, i) or units
  end
  local two = entries(n - 1, 2)
  local top, total = hit(n, two, n - 1)
  if top >= MOST_UNITS or total + 1 > (log.ahead and MOST_AHEAD or MOST_UNITS) then return false end
  local time, stamp = now, now
  if seen >= MOST_UNITS then
    if top >= now then time, stamp = top, top + 1 end
  else
    -- An explicit high-water mark: the newest hit is a slot in the future, was one when taken, or was refunded.
    if seen > now then time = seen end
    local _, before = hit(n - 1, two, n - 1)
    if not max_wait or top <= time or total == before then return false end
    stamp = top + 1
  end
  judged = judged or limits
  local fits, binding, edges = stamp, nil, {}   -- edges: the unit at a quota's edge, and the next
  for j = 1, #limits, 2 do
    local quota, i = judged[j], n - judged[j] + 1
    if total - quota >= base then
      -- If all hits are one unit, the hit at the quota's edge is at this index; if not, the general rule searches.
      local before, at, here, after = base, nil, nil, nil
      if i > 1 then
        local three = entries(i - 1, 3)
        edges[-j], before = hit(i - 1, three, i - 1)   -- the unit before the edge
        at, here = hit(i, three, i - 1)
        if i < n then
          local own
          after, own = hit(i + 1, three, i - 1)
          if own == here then after = nil end   -- refunded
        end
      elseif i == 1 then
        at, here = hit(1)
      else
        return false
      end
      if before ~= total - quota or here ~= before + 1 then return false end
      edges[j], edges[j + 1] = at, after
      if at + limits[j + 1] > fits then fits, binding = at + limits[j + 1], j end
    end
  end
  if fits >= MOST_UNITS then return false end
  if judged ~= limits then edges = {} end   -- these say nothing of what is left
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
      used, oldest, units = units_behind(hit, n, base, top, total, cutoff)
      if units == 0 then return false end   -- refunded: the general rule skips it
      if used < 0 or used > quota then return false end   -- damaged, or past the quota
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
    return nil, 0, (binding - 1) / 2, judged ~= limits and left or 0, fits - now + 1, math.max(0, top + widest - now), states
  end
  if not tightest or single and stamp - first >= 256 ^ size then return false end
  if stamp > time + 1 then call('SETRANGE', key, 1, pack('>I7', time)) end
  if stamp > last_stamp then last_stamp = stamp end
  local new = single and pack(fmt, stamp - first)
    or pack('>I7I7', stamp, total + 1 - ahead_of(log, n + 1)) .. (size == 22 and '\0\0\0\0\0\0\0\0' or '')
  return new, 1, tightest, left - 1, stamp, stamp + widest - now, states
end
