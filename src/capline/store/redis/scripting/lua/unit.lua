-- The fast path of the rule: one unit on a plain log (see log.lua) or on none, under limits whose quotas are not 0.
-- Included by the scripts, which set `now` (us) before it.
-- Invariant: the answers are those of rule.lua. Complexity: O(1) a limit for the verdict, O(log quota) for `remaining`.

local unpack_at, pack, byte, char, sub, floor = struct.unpack, struct.pack, string.byte, string.char, string.sub, math.floor
local last_stamp = now   -- the latest stamp that was written
local stamp_bytes, retention, stamped, fmt, span

-- The state of each limit at this instant, in the form of rule.lua, for a log of n hits of one unit; nth(k) is the k-th
-- newest stamp. Then the fewest units that a limit has left, and that limit's number.
local function unit_states(nth, n, limits, at)
  local all, newest, oldest = {}, n > 0 and nth(1), n > 0 and nth(n)
  local left, tightest = MOST_UNITS, nil
  for j = 1, #limits, 2 do
    local quota, window = limits[j], limits[j + 1]
    -- Bisect for how many are in the window: the first `inside` are, number `out` is not.
    local cutoff, inside, out = at - window, 0, n + 1
    if n > 0 and oldest > cutoff then inside, out = n, n + 1 end
    while out - inside > 1 do
      local mid = floor((inside + out) / 2)
      if nth(mid) > cutoff then inside = mid else out = mid end
    end
    if quota - inside < left then left, tightest = quota - inside, (j - 1) / 2 end
    if inside == 0 then
      all[#all + 1] = pack('>I8I8I8', quota, 0, 0)
    else
      local more = nth(inside < quota and inside or quota) + window - now
      all[#all + 1] = pack('>i8I8I8', quota - inside, more, newest + window - now)
    end
  end
  return table.concat(all), left, tightest
end

-- Set how the next units are kept: bytes of a plain stamp, and how long hits are kept in us. `stamped` is the log of one
-- hit now.
local function keep_as(bytes, us)
  retention = us
  if bytes == stamp_bytes then return end
  stamp_bytes = bytes
  stamped, fmt, span = char(stamp_bytes) .. pack('>I7', now), '>I' .. stamp_bytes, 256 ^ stamp_bytes
end

-- The state of each limit after `unit` has answered, for the value as it is now, at the stamp that was or would be
-- given.
local function plain_states(v, limits, stamp)
  if not v then return (unit_states(nil, 0, limits, stamp or now)) end
  local size, top = #v, unpack_at('>I7', v, 2)
  return (unit_states(function(k)
    if k == 1 then return top end
    return top - (top - unpack_at(fmt, v, 9 + (k - 2) * stamp_bytes)) % span
  end, (size - 8) / stamp_bytes + 1, limits, stamp or math.max(now, top + 1)))
end

-- Returns the new value (nil: unchanged; false: the fast path does not apply, and no answer follows), then the answer:
-- kind (0 refused, 1 allowed), the limit's number, remaining, the hit's stamp or retry_after in us + 1, reset_after in
-- us.
local function unit(v, limits, least, number, widest)
  if not v then return stamped, 1, number, least - 1, now, widest end
  local size = #v
  local n = (size - 8) / stamp_bytes + 1   -- the k-th newest stamp, from the second on, is at 9 + (k - 2) * stamp_bytes
  if byte(v) ~= stamp_bytes or n % 1 ~= 0 or n > 127 or n < 1 then return false end
  local top = unpack_at('>I7', v, 2)
  local stamp, time = now, now
  if top >= now then
    if top >= MOST_UNITS then return false end   -- not a stamp that capline writes
    stamp, time = top + 1, top
  end
  local oldest = n == 1 and top or top - (top - unpack_at(fmt, v, size - stamp_bytes + 1)) % span
  local fits, binding, left, tightest = stamp, nil, MOST_UNITS, nil
  for j = 1, #limits, 2 do
    local quota, window = limits[j], limits[j + 1]
    if n >= quota then
      local at = window + (quota == 1 and top or top - (top - unpack_at(fmt, v, 9 + (quota - 2) * stamp_bytes)) % span)
      if at > fits then fits, binding = at, j end
    end
    if not binding and quota - n < left then
      -- Bisect for how many are in the window: the first `inside` are, number `out` is not.
      local cutoff, inside, out = stamp - window, 0, n >= quota and quota or n + 1
      if oldest > cutoff then inside, out = n, n + 1 elseif top > cutoff then inside = 1 else out = 1 end
      while out - inside > 1 do
        local mid = floor((inside + out) / 2)
        if top - (top - unpack_at(fmt, v, 9 + (mid - 2) * stamp_bytes)) % span > cutoff then inside = mid else out = mid end
      end
      if quota - inside < left then left, tightest = quota - inside, (j - 1) / 2 end
    end
  end
  if fits >= MOST_UNITS then return false end   -- never fits
  if binding then return nil, 0, (binding - 1) / 2, 0, fits - now + 1, top + widest - now end
  local start, keep_to = stamped, size
  if stamp ~= now then
    start = char(stamp_bytes) .. pack('>I7', stamp)
    if stamp > last_stamp then last_stamp = stamp end
  end
  local cutoff = time - retention
  if top <= cutoff then return start, 1, tightest, left - 1, stamp, stamp + widest - now end
  while oldest <= cutoff do
    keep_to = keep_to - stamp_bytes
    oldest = keep_to > 8 and top - (top - unpack_at(fmt, v, keep_to - stamp_bytes + 1)) % span or top
  end
  -- The last bytes of the stamp that was the newest, and those behind it, stay as they are.
  return start .. sub(v, 9 - stamp_bytes, keep_to), 1, tightest, left - 1, stamp, stamp + widest - now
end
