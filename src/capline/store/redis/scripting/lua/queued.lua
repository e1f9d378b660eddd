-- The fast path to a slot after others: one unit on a log whose newest hit is a slot in the future. Such a log is in
-- the general form (see log.lua); this is for logs of single units without ids. Included by one.lua after unit.lua.
-- Invariant: the answers are those of rule.lua. Complexity: O(1) a limit for the slot, O(log hits) for `remaining`.

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

-- As `unit` in unit.lua, for the first free instant after the slots that are taken. False also where the slot is more
-- than max_wait us from now (-1: no bound).
local function queued_unit(v, limits, widest, max_wait)
  local tag = v and byte(v) or 0
  if tag < 65 or tag > 67 then return false end
  local stamp_bytes = tag - 60
  local n = (#v - 15) / stamp_bytes
  if n % 1 ~= 0 or n < 1 or n > 127 then return false end
  local seen, first = unpack_at('>I7I7', v, 2)
  local fmt, before = '>I' .. stamp_bytes, 16 - stamp_bytes   -- hit i stands at before + i * stamp_bytes
  local last, time = first + unpack_at(fmt, v, before + n * stamp_bytes), now > seen and now or seen
  -- A high-water mark that equals the newest stamp is stored as all ones, more than any stamp.
  if last <= time or last >= MOST_UNITS or seen >= last then return false end
  local stamp = last + 1
  for j = 1, #limits, 2 do
    local i = n - limits[j] + 1
    if i >= 1 then
      local at = first + unpack_at(fmt, v, before + i * stamp_bytes) + limits[j + 1]
      if at > stamp then stamp = at end
    end
  end
  if max_wait >= 0 and stamp - now > max_wait or stamp - first >= 256 ^ stamp_bytes or stamp >= MOST_UNITS then
    return false
  end
  local oldest, from, cutoff = first + unpack_at(fmt, v, before + stamp_bytes), 1, time - retention
  while oldest <= cutoff do
    from = from + 1
    oldest = first + unpack_at(fmt, v, before + from * stamp_bytes)
  end
  if stamp > last_stamp then last_stamp = stamp end
  local head = string.char(tag) .. pack('>I7I7', time, first)
  local states, left, tightest = unit_states(function(k)
    return k == 1 and stamp or first + unpack_at(fmt, v, before + (n - k + 2) * stamp_bytes)
  end, n + 1, limits, stamp)
  local new = head .. sub(v, before + from * stamp_bytes) .. pack(fmt, stamp - first)
  return new, 1, tightest, left, stamp, stamp + widest - now, states
end
