-- The fast path of the rule: one unit on a plain log (see log.lua) or on none, under limits whose quotas are not 0; and on
-- a long log (`bytes`: its length) where that is as simple. A block, not a function, as a call of a script makes its
-- functions anew: it sets the answer's names, which the includer has declared, from the value v (false: none), limits
-- (quota and window in turns), judged (the same less what must stay free, or limits), least, number and widest (terms of
-- one.lua), and how the next units are kept:
-- stamp_bytes, retention, and `stamped`, the log of one hit now.
-- new: the new value; nil: unchanged; false, as it was before: the fast path does not apply, and there is no answer
-- kind 0 refused, 1 allowed   limit: its number   remaining   when: the hit's stamp, or retry_after in us + 1
-- reset: in us   states: of each limit, in the form of rule.lua, if with_states
-- Invariant: the answers are those of rule.lua. Complexity: O(1) a limit for the verdict, O(log quota) for `remaining`.

if bytes then
  -- A long log, of which v is the first bytes: where no quota binds, and each hit counts under each limit. Else long.lua.
  local size, from = byte(v) - 60, unpack_at('>I7', v, 9)
  local single = size > 4 and size < 8   -- each entry is one unit
  local n = single and (bytes - 15) / size or (bytes - 22) / 14
  if (single or size == 15 and from == 0) and n % 1 == 0 and sub(v, 2, 8) == '\255\255\255\255\255\255\255'
    and not (begins_next and n % 64 == 0) then
    local base, oldest, units, top, total, fmt
    if single then
      fmt = size == 5 and '>I5' or size == 6 and '>I6' or '>I7'
      base, oldest, units, total = 0, from + unpack_at(fmt, v, 16), 1, n
      top = from + unpack_at(fmt, call('GETRANGE', key, size == 5 and '-5' or size == 6 and '-6' or '-7', '-1'))
    else
      base, oldest, units = unpack_at('>I7I7I7', v, 16)
      top, total = unpack_at('>I7I7', call('GETRANGE', key, '-14', '-1'))
    end
    local used, left, fits = total - base, MOST_UNITS, top < now and units > base and total >= units and total < MOST_UNITS
    fits = fits and not (single and now - from >= 256 ^ size)
    for j = 1, fits and #limits or 0, 2 do
      local quota, window = limits[j], limits[j + 1]
      fits = fits and used < judged[j] and oldest > now - window
      if quota - used < left then left, limit = quota - used, (j - 1) / 2 end
      states = states .. pack('>i8I8I8', quota - used - 1, math.max(0, oldest + window - now), window)
    end
    if fits then
      new = single and pack(fmt, now - from) or pack('>I7I7', now, total + 1)
      kind, remaining, when, reset = 1, left - 1, now, widest
    end
  end
elseif not v then
  new, kind, limit, remaining, when, reset = stamped, 1, number, least - 1, now, widest
  for j = 1, with_states and #limits or 0, 2 do
    states = states .. pack('>I8I8I8', limits[j] - 1, limits[j + 1], limits[j + 1])
  end
else repeat
  local size = #v
  local n = (size - 8) / stamp_bytes + 1   -- the k-th newest stamp, from the second on, is at second + k * stamp_bytes
  if byte(v) ~= stamp_bytes or n % 1 ~= 0 or n > 127 or n < 1 then break end
  local top, second = unpack_at('>I7', v, 2), 9 - 2 * stamp_bytes
  local stamp, time = now, now
  if top >= now then
    if top >= MOST_UNITS then break end   -- not a stamp that capline writes
    stamp, time = top + 1, top
  end
  local oldest = n == 1 and top or top - (top - unpack_at(fmt, v, second + n * stamp_bytes)) % span
  local fits, binding = stamp, nil
  for j = 1, #limits, 2 do
    local quota = judged[j]
    if n >= quota then
      local at = limits[j + 1]
        + (quota == 1 and top or top - (top - unpack_at(fmt, v, second + quota * stamp_bytes)) % span)
      if at > fits then fits, binding = at, j end
    end
  end
  if fits >= MOST_UNITS then break end   -- never fits
  local left, tightest, last, own = MOST_UNITS, nil, stamp, 1
  if binding then last, own = top, 0 end
  for j = 1, #limits, 2 do
    local quota, window = limits[j], limits[j + 1]
    if with_states or quota - n < left then
      -- Bisect for how many are in the window: the first `inside` are, number `out` is not.
      local cutoff, inside, out = stamp - window, 0, n + 1
      if oldest > cutoff then inside = n elseif top > cutoff then inside = 1 else out = 1 end
      while out - inside > 1 do
        local mid = floor((inside + out) / 2)
        if top - (top - unpack_at(fmt, v, second + mid * stamp_bytes)) % span > cutoff then inside = mid else out = mid end
      end
      if quota - inside < left then left, tightest = quota - inside, (j - 1) / 2 end
      if with_states and inside == 0 and binding then
        states = states .. pack('>I8I8I8', quota, 0, 0)
      elseif with_states then
        local k, edge = inside < quota and inside or quota, last
        if k == n then
          edge = oldest
        elseif k == 1 then
          edge = top
        elseif k > 0 then
          edge = top - (top - unpack_at(fmt, v, second + k * stamp_bytes)) % span
        end
        states = states .. pack('>i8I8I8', quota - inside - own, edge + window - now, last + window - now)
      end
    end
  end
  if binding then
    new, kind, limit, remaining, when, reset = nil, 0, (binding - 1) / 2, 0, fits - now + 1, top + widest - now
    if judged ~= limits and left > 0 then remaining = left end
    break
  end
  kind, limit, remaining, when, reset = 1, tightest, left - 1, stamp, stamp + widest - now
  new = stamped
  if stamp ~= now then
    new = pack('>BI7', stamp_bytes, stamp)
    if stamp > last_stamp then last_stamp = stamp end
  end
  local cutoff = time - retention
  if top > cutoff then
    while oldest <= cutoff do
      size = size - stamp_bytes
      oldest = size > 8 and top - (top - unpack_at(fmt, v, size - stamp_bytes + 1)) % span or top
    end
    -- The last bytes of the stamp that was the newest, and those behind it, stay as they are.
    new = new .. sub(v, 9 - stamp_bytes, size)
  end
until true end
