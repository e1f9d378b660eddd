-- The short way of the rule on a long log (see log.lua): one unit, with a few entries read where they stand. Included by
-- the scripts, after unit.lua.

-- As `unit` in unit.lua, but that the first result is what is to be written behind the value's so many bytes.
local function long_unit(key, bytes, limits, widest)
  if bytes <= 22 + 128 * 14 then return false end
  local tag, floor_us, first, base = unpack_at('>BI7I7I7', call('GETRANGE', key, 0, 21))
  local size = tag == 75 and 14 or tag == 107 and 22
  local n = size and (bytes - 22) / size or 0.5
  -- Now and then the long way, which trims.
  if n % 1 ~= 0 or n % 64 == 0 or n <= 128 or first ~= 0 then return false end
  local function entry(i, count)
    local from = 22 + (i - 1) * size
    return call('GETRANGE', key, from, from + count * size - 1)
  end
  local top, total = unpack_at('>I7I7', entry(n, 1))
  -- Where the floor is written out, the newest is a slot in the future, or was when it was taken.
  if floor_us < 9007199254740992 or top >= 9007199254740992 then return false end
  local stamp = now > top and now or top + 1
  local fits, binding, left, tightest = stamp, nil, 9007199254740992, nil
  local oldest = unpack_at('>I7', entry(1, 1))
  for j = 1, #limits, 2 do
    local quota, window = limits[j], limits[j + 1]
    local i, known = n - quota + 1, nil
    if total - quota >= base then
      -- Hits of one unit stand where they are looked for; where they do not, the long way searches.
      local before, at, here = base, nil, nil
      if i > 1 then
        local three = entry(i - 1, 3)
        before = unpack_at('>I7', three, 8)
        at, here = unpack_at('>I7I7', three, size + 1)
        -- Where it has just left the window, the next one is in it, and nothing has to be searched.
        if i < n and unpack_at('>I7', three, 2 * size + 1) > stamp - window then known = total - here end
      elseif i == 1 then
        at, here = unpack_at('>I7I7', entry(1, 1))
      else
        return false
      end
      if before ~= total - quota or here ~= before + 1 then return false end
      if at + window > fits then fits, binding = at + window, j end
    end
    if not binding then
      local cutoff, used = stamp - window, total - base
      if quota - used < left then
        if known and fits == stamp then
          used = known
        elseif oldest <= cutoff then
          if top <= cutoff then
            used = 0
          else
            -- By proportion, since traffic is mostly even, with a bracket around the guess; then by halving.
            local lo, hi, low, high, guess, sum = 1, n, oldest, top, true, nil
            sum = unpack_at('>I7', entry(1, 1), 8)
            while hi - lo > 1 do
              local gap = hi - lo
              local mid = floor((lo + hi) / 2)
              if guess then mid = math.max(lo + 1, math.min(hi - 1, lo + floor((cutoff - low) / (high - low) * gap))) end
              local side = gap > 16 and math.ceil(math.sqrt(gap)) or 1
              for _ = 1, 2 do
                local s, c = unpack_at('>I7I7', entry(mid, 1))
                if s <= cutoff then lo, low, sum = mid, s, c else hi, high = mid, s end
                if not guess or gap <= 16 then break end
                mid = s <= cutoff and mid + side or mid - side
                if mid <= lo or mid >= hi then break end
              end
              guess = not guess or hi - lo < gap / 4
            end
            used = total - sum
          end
        end
        if quota - used < left then left, tightest = quota - used, (j - 1) / 2 end
      end
    end
  end
  if binding then return nil, 0, (binding - 1) / 2, 0, fits - now + 1, math.max(0, top + widest - now) end
  if not tightest or total + 1 > 9007199254740992 then return false end
  if stamp > last_stamp then last_stamp = stamp end
  local entry_bytes = pack('>I7I7', stamp, total + 1) .. (size == 22 and '\0\0\0\0\0\0\0\0' or '')
  return entry_bytes, 1, tightest, left - 1, stamp, stamp + widest - now
end
