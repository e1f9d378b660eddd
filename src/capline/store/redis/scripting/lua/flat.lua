-- The fast path of one attempt that is no plain unit: any cost, an id that is new, a peek, a slot that is now, and the
-- algorithms that keep sums or numbers, on logs of at most 127 entries. Included by one.lua and joint.lua after prelude.lua.
--
-- It judges as if now were later than every hit and the attempt allowed; where that is not so, once more as it is. So
-- nearly always each log is read once, and what is known of it are names of one function: neither tables nor closures,
-- which cost more than the reading.
-- Invariant: the answers are those of rule.lua. Complexity: O(log hits) a limit; one read and one write a log.

-- The answer as one.lua replies; nil, and nothing is written, where the general rule has to answer. It takes all that it
-- uses, and captures no name: each name that a function captures costs a call about what a `struct.unpack` does.
-- `behind`: its keys are those behind so many. `joint`: for one part of several, of which nothing is written:
-- true, if all of them are allowed: when it is, the limit that blocks it, units left and the limit that has them, when
-- all are left, the states, and the new values; false, the same as of a refusal.
local function flat(call, unpack_at, pack, byte, sub, floor, now, mode, static, cost, field, id, plain_bytes, many, text,
    retention, grace, kind, keeps, behind, joint)
  local COUNTER, LEVEL, FIXED, SUMS, HITS = 3, 4, 5, 6, 7
  local MOST_READ, END_READ = 22 + 128 * 22, '2837'   -- bytes; no log of 127 entries has as many
  local MOST_COUNTED = 2 ^ 32   -- units of one log: a counter multiplies them by its ticks
  local MOST_UNITS = 2 ^ 53
  if kind == 0 or id ~= '' and kind < HITS then return nil end
  if cost == 0 then return nil end
  local ceil, numbers, news, size = math.ceil, kind < SUMS, {}, kind == HITS and 16 or 32
  local logs = numbers and many + 1 or 1
  -- What must stay free comes behind the numbers of all limits, and then how long a key lives.
  local kept_at = 38 + size * many
  local stamp, time, final, allowed = now, now, now, true
  local latest, newest, binding, left, tightest, empty, states
  local fades_at = kind == COUNTER and function(window, tick, ticks, start, before, room)
    local steps = before > 0 and floor(room * ticks / before) or ticks
    local fades = steps < ticks and window - steps * tick or window - ticks * tick
    return fades > 0 and start + fades or start
  end

  for _ = 1, 2 do
    if stamp >= MOST_UNITS - retention then return nil end
    latest, newest, left, empty, states = -1, -1, MOST_UNITS, -1, ''
    local horizon, units = time - retention, allowed and cost or 0
    for k = 1, logs do
      local key, v, n, total, base, last, oldest = KEYS[behind + k], nil, 0, 0, 0, -1, 0
      if field == '' then v = redis.pcall('GETRANGE', key, '0', END_READ) else v = redis.pcall('HGET', key, field) end
      -- Entry i, from the oldest on, is at `zeroth` + i * `entry`; a plain log has the newest first.
      local plain, first, start, entry, zeroth, width, bytes, ids, fmt, span, sums
      if v == '' then v = false end
      if v then
        -- The longest, and hits with ids beside the numbers, are not read here.
        if type(v) == 'table' or #v < 8 or #v == MOST_READ or numbers and k == 1 then return nil end
        local tag, size = byte(v), #v
        if tag >= 5 and tag <= 7 then
          plain, bytes, width = true, 0, tag
          fmt, span = '>I5', 2 ^ 40
          if tag == 6 then fmt, span = '>I6', 2 ^ 48 elseif tag == 7 then fmt, span = '>I7', 2 ^ 56 end
          n = (size - 8) / tag + 1
          entry, zeroth = -tag, size + 1
          last, total = unpack_at('>I7', v, 2), n
          oldest = n == 1 and last or last - (last - unpack_at(fmt, v, size + 1 - tag)) % span
        else
          local form = tag % 32
          ids, width = tag >= 96 and 8 or 0, form % 4
          bytes = (form - width) / 4
          if size < 16 or bytes == 2 and size < 23 or tag < 64 or tag > 127 or width == 0 or bytes > 2
            or sub(v, 2, 8) ~= '\255\255\255\255\255\255\255' then
            return nil
          end
          width, start = width + 4, 15
          if bytes == 2 then bytes, start, base = 7, 22, unpack_at('>I7', v, 16) end
          entry = width + bytes + ids
          n, zeroth = (size - start) / entry, start + 1 - entry
          if n < 1 or ids > 0 and (kind ~= HITS or id ~= '' and string.find(v, id, start, true)) then return nil end
          fmt, sums = width == 5 and '>I5' or width == 6 and '>I6' or '>I7', bytes == 1 and '>B' or '>I7'
          first = unpack_at('>I7', v, 9)
          last, total = first + unpack_at(fmt, v, size + 1 - entry), n
          local before = n - 1
          if bytes > 0 then
            total = unpack_at(sums, v, size + 1 - entry + width)
            before = n == 1 and base or unpack_at(sums, v, size + 1 - 2 * entry + width)
          end
          if total <= before then return nil end   -- a newest entry that was refunded
          oldest = n == 1 and last or first + unpack_at(fmt, v, start + 1)
        end
        -- More units than capline writes.
        if n < 1 or n > 127 or n % 1 ~= 0 or total + cost > MOST_COUNTED and kind ~= LEVEL then return nil end
        if kind == LEVEL and n > 1 then return nil end
        if last > newest then newest = last end
      end

      local grain, joins
      if kind == SUMS then   -- the sum of hits that this one joins moves behind it
        grain = unpack_at('>I8', static, 54)
        joins = allowed and n > 0 and last < stamp and floor(last / grain) == floor((stamp + 1) / grain)
      end
      local from, to = numbers and 32 * k - 26 or 38, numbers and 32 * k - 26 or kept_at - 1
      for at = from, numbers and k == 1 and 0 or to, size do
        local quota, window, third, fourth = unpack_at(kind == HITS and '>I8I8' or '>I8I8I8I8', static, at)
        local fits, rest, more, whole, gone = -1, 0, -1, -1, -1
        local moved = joins and stamp + 1 or stamp
        local final_last, number, asks = allowed and moved or last, numbers and k - 2 or (at - 38) / size, cost
        if keeps then asks = cost + unpack_at('>I8', static, kept_at + 8 * number) end
        if asks > quota then return nil end
        if not numbers then
          local used, cutoff = 0, stamp - window
          if oldest > cutoff then
            used = total - base
          elseif last > cutoff then
            local low, high = 0, n
            while high - low > 1 do
              local mid = floor((low + high) / 2)
              local raw = unpack_at(fmt, v, zeroth + mid * entry)
              if (plain and last - (last - raw) % span or first + raw) <= cutoff then low = mid else high = mid end
            end
            if bytes > 0 then
              used = total - (low > 0 and unpack_at(sums, v, zeroth + low * entry + width) or base)
            else
              used = total - low
            end
          end
          if used < 0 then return nil end   -- damaged: the general rule says what is wrong
          rest, gone, whole = quota - used - units, (joins and moved or final) + window, final_last + window
          -- The unit that has to leave first, then the oldest that counts: the entry with more units up to it than these.
          local target = total - quota + asks - 1
          for turn = v and 1 or 3, 2 do
            if target >= base then
              local low, high = 0, n
              if bytes == 0 then
                high = target + 1
              elseif unpack_at(sums, v, zeroth + entry + width) > target then
                high = 1
              else
                while high - low > 1 do
                  local mid = floor((low + high) / 2)
                  if unpack_at(sums, v, zeroth + mid * entry + width) <= target then low = mid else high = mid end
                end
              end
              local found = last
              if high == 1 then
                found = oldest
              elseif high < n then
                found = unpack_at(fmt, v, zeroth + high * entry)
                found = plain and last - (last - found) % span or first + found
              end
              if turn == 2 and joins and high == n then found = moved end
              if turn == 1 then fits = found + window else more = found + window end
            end
            target = used > 0 and total - (used < quota and used or quota) or -1
          end
          if used == 0 and allowed then more = stamp + window end
        elseif kind == LEVEL then
          local rise, fall, brim = window, third, fourth
          local stored, level = total - base, 0
          if v then
            local over = stored - (brim - asks * rise)
            if over > 0 then fits = last + ceil(over / fall) end
            level = stored - (stamp - last) * fall
            if level < 0 then level = 0 end
          end
          rest = floor((brim - level) / rise) - units
          if allowed then
            level = level + cost * rise
            total, whole = level, stamp + ceil(level / fall)
            gone = whole
          elseif v then
            whole = last + ceil(stored / fall)
            local then_left = stored - (final - last) * fall
            if then_left > 0 then gone = final + ceil(then_left / fall) end
          end
          if level > 0 then
            local room = level < brim and floor((brim - level) / rise) or 0
            more = stamp + ceil((level - brim + (room + 1) * rise) / fall)
          end
        else
          grain = window
          -- Units in the window of the newest hit, and in the one before it.
          local begins, used, before = last - last % window, total - base, 0
          if oldest < begins then
            local low, cutoff, above = n, begins - 1, total
            for turn = 1, 2 do
              while low > 0 do
                local raw = unpack_at(fmt, v, zeroth + low * entry)
                if (plain and last - (last - raw) % span or first + raw) <= cutoff then break end
                low = low - 1
              end
              local below = low == 0 and base or bytes == 0 and low or unpack_at(sums, v, zeroth + low * entry + width)
              if turn == 1 then used = above - below else before = above - below end
              above, cutoff = below, cutoff - window
            end
            if used < 0 or before < 0 then return nil end   -- damaged
          end
          local tick, ticks = third, fourth
          if v and kind == FIXED then
            if used + asks > quota then fits = begins + window end
          elseif v then
            local late = true
            if used + asks <= quota then
              fits = fades_at(window, tick, ticks, begins, before, quota - asks - used)
              late = fits >= begins + window
            end
            if late then fits = fades_at(window, tick, ticks, begins + window, used, quota - asks) end
          end
          -- The same of the window that this attempt is in.
          local start = stamp - stamp % window
          if start ~= begins then before, used = start == begins + window and used or 0, 0 end
          if kind == FIXED then
            rest, gone = quota - used - units, final - final % window + window
            whole = final_last - final_last % window + window
            if rest < quota then more = start + window end
          else
            rest = quota - used - ceil(before * ceil((start + window - stamp) / tick) / ticks) - units
            gone, whole = final - final % window + 2 * window, final_last - final_last % window + 2 * window
            local counted, own = rest < 0 and quota or quota - rest, used + units
            if counted > 0 then
              if own < counted then more = fades_at(window, tick, ticks, start, before, counted - 1 - own) end
              if own >= counted or more >= start + window then
                more = fades_at(window, tick, ticks, start + window, own, counted - 1)
              end
            end
          end
        end
        if fits > latest then latest, binding = fits, number end
        if more == -1 then whole = -1 end
        if final == -1 then gone = -1 end
        if rest < left then left, tightest = rest, number end
        if gone > empty then empty = gone end
        local state = pack('>i8I8I8', rest, more > now and more - now or 0, whole > now and whole - now or 0)
        states = states == '' and state or states .. state
      end

      if mode == 1 or numbers and k == 1 then
      elseif allowed and joint ~= false and latest <= stamp and newest < stamp then
        if kind == LEVEL or last <= horizon then
          n = 0   -- it becomes a single entry
        elseif oldest <= horizon then
          local raw = unpack_at(fmt, v, zeroth + (floor(n / 2) + 1) * entry)
          if field ~= '' or (plain and last - (last - raw) % span or first + raw) <= horizon then
            return nil   -- the general rule trims it
          end
        end
        local stamp = stamp
        local sum_at = kind == SUMS and stamp + 1 or stamp   -- a sum of hits is no hit's
        local merges = n > 0 and grain and floor(last / grain) == floor(sum_at / grain)
        if merges then stamp = sum_at end
        if n == 0 or merges and n == 1 then
          local sum = kind == LEVEL and total or merges and total - base + cost or cost
          local tag, ones = id ~= '' and 97 or 65, '\255\255\255\255\255\255\255'
          if sum == 1 and id == '' then
            news[k] = pack('>BI7', plain_bytes, stamp)
          elseif sum == 1 then
            news[k] = pack('>Bc7I7I5', tag, ones, stamp, 0) .. id
          elseif sum < 256 then
            news[k] = pack('>Bc7I7I5B', tag + 4, ones, stamp, 0, sum) .. id
          else
            news[k] = pack('>Bc7I7I7I5I7', tag + 8, ones, stamp, 0, 0, sum) .. id
          end
        elseif plain then
          if merges or cost > 1 or id ~= '' or width ~= plain_bytes then return nil end
          news[k] = pack('>BI7', plain_bytes, stamp) .. sub(v, 9 - plain_bytes)
        else
          local sum = total + cost
          if stamp - first >= 256 ^ width or id ~= '' and ids == 0 then return nil end
          if bytes == 0 and (merges or cost > 1) or bytes == 1 and sum > 255 then return nil end
          news[k] = (merges and sub(v, 1, #v - entry) or v) .. pack(fmt, stamp - first)
            .. (bytes > 0 and pack(sums, sum) or '') .. (ids > 0 and (id ~= '' and id or '\0\0\0\0\0\0\0\0') or '')
        end
      elseif v and not allowed then
        -- Let it live as long as this rule keeps hits; see `prolong` in blocks.lua.
        local half = floor(grace / 2)
        local ttl = math.max(1, ceil((last + retention - now) / 1000)) + grace - half
        if call('PTTL', key) < ttl then call('PEXPIRE', key, ttl + half) end
      end
    end

    if latest >= MOST_UNITS then return nil end
    if joint ~= nil and (joint or not allowed) then
      if newest >= now then return nil end
      return latest, binding, left, tightest, empty, states, news
    end
    if newest < now and latest <= now and joint ~= false then break end
    if mode == 2 then return nil end
    if newest >= now then time, stamp = newest, newest + 1 end
    allowed = latest <= stamp and joint ~= false
    final = allowed and stamp or newest
  end

  local ttl
  if stamp == now then
    local text_at = keeps and kept_at + 8 * many or kept_at
    ttl = sub(static, text_at, text_at + text - 1)
  else
    ttl = ceil((stamp + retention - now) / 1000) + grace
  end
  for k = 1, allowed and mode ~= 1 and logs or 0 do
    local key = KEYS[behind + k]
    if not news[k] then   -- no hits beside the numbers
    elseif field == '' then
      call('SET', key, news[k], 'PX', ttl)
    else
      call('HSET', key, field, news[k])
      if call('PTTL', key) < tonumber(ttl) then call('PEXPIRE', key, ttl + floor(grace / 2)) end
    end
  end
  local kind = allowed and 1 or 0
  local when = allowed and (mode == 1 and 2 ^ 60 or stamp) or latest - now + 1
  return pack('>I8BBBBI8I8I8', now, 255, kind, kind, allowed and tightest or binding, left > 0 and left or 0, when,
    empty > now and empty - now or 0) .. states
end
