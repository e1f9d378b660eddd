-- The rule of the sliding log over the tables of log.lua: what capline.window.sliding_log says, word for word. Included
-- by the scripts; runs nothing by itself.
--
-- looks[k] = {log, limits}: limits flat, quota, window, quota, window, ... Limits are numbered from 0 through all looks.
-- An answer is {kind, limit, remaining, retry_after + 1 (0: never) or the hit's stamp, reset_after}.

local REFUSED, ALLOWED, CONFLICT = 0, 1, 2

local function time_and_newest(looks, now)
  local time, last = now, -1
  for _, look in ipairs(looks) do
    local log = look[1]
    if log.floor > time then time = log.floor end
    local own = newest(log)
    if own > last then last = own end
  end
  return time, last
end

-- The first stamp from here on that is later than every live hit and names no other hit in any log.
local function free_stamp(looks, time, last)
  local stamp = math.max(time, last + 1)
  local again = true
  while again do
    again = false
    for _, look in ipairs(looks) do
      if index_of(look[1], stamp) then stamp, again = stamp + 1, true end
    end
  end
  return stamp
end

-- From when on this cost fits every limit (nil: never), and the limit that holds longest.
local function fits_at(looks, cost)
  local fits, binding, number = -1, nil, 0
  for _, look in ipairs(looks) do
    local limits = look[2]
    for j = 1, #limits, 2 do
      if cost > limits[j] then return nil, number end
      local oldest = stamp_of_unit(look[1], limits[j] - cost + 1)
      if oldest ~= -1 and oldest + limits[j + 1] > fits then fits, binding = oldest + limits[j + 1], number end
      number = number + 1
    end
  end
  return fits, binding
end

local function answer(looks, stamp, cost, now, last, binding, retry_at)
  local left, tightest, widest, number = math.huge, nil, 0, 0
  if cost > 0 then last = math.max(last, stamp) end
  for _, look in ipairs(looks) do
    local limits = look[2]
    for j = 1, #limits, 2 do
      local units = limits[j] - units_after(look[1], stamp - limits[j + 1]) - cost
      if units < left then left, tightest = units, number end
      widest = math.max(widest, limits[j + 1])
      number = number + 1
    end
  end
  local reset = last == -1 and 0 or math.max(0, last + widest - now)
  if cost > 0 then return {ALLOWED, tightest, math.max(0, left), stamp, reset} end
  return {REFUSED, binding or tightest, math.max(0, left), retry_at and retry_at - now + 1 or 0, reset}
end

local function judge(looks, cost, now)
  local time, last = time_and_newest(looks, now)
  local queued = last > time
  local stamp = free_stamp(looks, time, last)
  local fits, binding = fits_at(looks, cost)
  if not fits then return answer(looks, stamp, 0, now, last, binding, nil), time end
  if fits <= stamp and not queued then return answer(looks, stamp, cost, now, last), time end
  -- At the instant of the last slot itself, the next stamp is already one later.
  local retry_at = fits
  if queued and fits <= last + 1 then retry_at = last end
  return answer(looks, stamp, 0, now, last, binding, retry_at), time
end

local function place(looks, cost, now, max_wait, not_before)
  local time, last = time_and_newest(looks, now)
  local fits, binding = fits_at(looks, cost)
  if not fits then return answer(looks, free_stamp(looks, time, last), 0, now, last, binding, nil), time end
  local stamp = free_stamp(looks, math.max(time, fits, now + not_before), last)
  if max_wait >= 0 and stamp - now > max_wait then return answer(looks, stamp, 0, now, last, binding, stamp), time end
  return answer(looks, stamp, cost, now, last), time
end

-- The answer that hit number i of the first look was recorded with; a conflict where that had another cost.
local function first_answer(looks, i, cost, horizon)
  local log = looks[1][1]
  local stamp, units = log.s[i], log.c[i] - log.c[i - 1]
  if units ~= cost then return {CONFLICT, 0, units, 0, 0} end
  local left, binding, widest, number = math.huge, nil, 0, 0
  for _, look in ipairs(looks) do
    local limits = look[2]
    local later = units_after(look[1], stamp)
    for j = 1, #limits, 2 do
      local since = math.max(stamp - limits[j + 1], horizon)
      local rest = limits[j] - (units_after(look[1], since) - later)
      if rest < left then left, binding = rest, number end
      widest = math.max(widest, limits[j + 1])
      number = number + 1
    end
  end
  return {ALLOWED, binding, math.max(0, left), stamp, widest}
end

-- One attempt on the logs of its looks, each kept for `keep`: the answer, whether the logs were changed, and whether it is
-- the first answer of a known id.
-- mode: 0 decide, 1 peek, 2 place: at most max_wait from now (-1: no bound), and at least not_before.
local function attempt(looks, keep, mode, cost, id, now, max_wait, not_before)
  if id then
    local time = time_and_newest(looks, now)
    local known = find(looks[1][1], id, time - keep)
    if known then return first_answer(looks, known, cost, time - keep), false, true end
  end
  local said, time
  if mode == 2 then said, time = place(looks, cost, now, max_wait, not_before) else said, time = judge(looks, cost, now) end
  if said[1] == ALLOWED and mode == 1 then said[4] = 2 ^ 60 end
  if said[1] ~= ALLOWED or mode == 1 then return said, false end
  local stamp = said[4]
  local floor = stamp <= time + 1 and stamp or time
  for k, look in ipairs(looks) do
    trim(look[1], time - keep)
    record(look[1], stamp, cost, floor, k == 1 and id or nil)
  end
  return said, true
end
