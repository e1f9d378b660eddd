-- What one limit reads from a log: capline.window.limit_reader and capline.window.calendar in Lua, function by
-- function. Included by the scripts after log.lua; runs nothing by itself.
--
-- A bound log is a log and how an attempt reads it: {log, limits, cost, retention, storage, zone, denied}.
-- limits: flat, quota, by, quota, by, ...; `by` is the window of a rolling limit in us, or
--   {1, period}              calendar: since the day or the week began
--   {2, from, until}         quiet hours, by the clock alone
--   {3, window, tick, ticks} counter: two weighted windows
--   {4, rise, fall, brim, window}   level of gcra
--   {5, window}              fixed windows, each by itself
-- cost: units of the attempt. retention, storage: see rule.lua.
-- zone: the offsets of the subject's time zone, from, offset, from, offset, ... (capline.model.zone); nil where no
-- limit needs one. denied: how many units of refusals are kept; 0 where refusals do not count. moved: the last stamp,
-- while it is read as that of a sum that a hit joins.
-- Invariant: every number is whole and below 2^53, so floor and ceil of a quotient are exact.
-- Complexity: O(log hits) a limit; O(1) where the newest hits answer.

local ROLLING, CALENDAR, QUIET, COUNTER, LEVEL, FIXED = 0, 1, 2, 3, 4, 5
local DAY = 86400000000
local LARGEST_QUOTA = 9007199254740991
local MOST_SHIFTED = 64   -- us

local function kind_of(by)
  return type(by) == 'number' and ROLLING or by[1]
end

-- --- days, weeks and times of day ---

-- The index of the table's entry that is in force at this instant; its offset is at the next index.
local function zone_place(zone, at)
  local place = #zone - 1
  while place > 1 and zone[place] > at do place = place - 2 end
  return place
end

-- The first instant whose clock shows this local time or later.
local function begins_at(zone, local_us)
  for place = 1, #zone, 2 do
    local at = local_us - zone[place + 1]
    if place > 1 and at < zone[place] then at = zone[place] end
    if place + 2 > #zone or at < zone[place + 2] then return at end
  end
end

-- The local time at which the current day began, or the current week (from Monday on).
local function local_start(zone, period, at)
  local shown = at + zone[zone_place(zone, at) + 1]
  return shown - (shown - (period == DAY and 0 or 4 * DAY)) % period
end

local function period_starts(zone, period, at)
  local start = local_start(zone, period, at)
  -- A clock that was set back over midnight does not end the day that had begun.
  while begins_at(zone, start + period) <= at do start = start + period end
  return begins_at(zone, start)
end

local function period_ends(zone, period, at)
  local start = local_start(zone, period, at)
  while true do
    start = start + period
    local begins = begins_at(zone, start)
    if begins > at then return begins end
  end
end

-- The first instant from this one on at which the clock does not show `from` to `till` (not included).
local function open_at(zone, from, till, at)
  local place, length = zone_place(zone, at), (till - from) % DAY
  while true do
    local since = (at + zone[place + 1] - from) % DAY
    if since >= length then return at end
    local opens = at + length - since
    place = place + 2
    if place > #zone or opens < zone[place] then return opens end
    at = zone[place]
  end
end

-- --- counters and levels ---

-- Units of the window that begins at `start`, and of the window before it.
local function counts(log, start, window)
  local since = units_after(log, start - 1)
  return since - units_after(log, start + window - 1), units_after(log, start - window - 1) - since
end

-- When, in the window that begins at `start`, at most `room` of the previous window's `before` units still count.
local function fades_at(by, start, before, room)
  local window, tick, ticks = by[2], by[3], by[4]
  local steps = before > 0 and math.min(ticks, math.floor(room * ticks / before)) or ticks
  return start + math.max(0, window - steps * tick)
end

-- The level at this instant, or at the newest hit if that is later.
local function level_at(log, at, by)
  local last = newest(log)
  if last == -1 then return 0 end
  return math.max(0, units_after(log, last - 1) - math.max(0, at - last) * by[3])
end

-- --- one limit ---

-- The newest stamp that does not count at this instant.
local function cutoff_at(bound, by, at)
  if kind_of(by) == ROLLING then return at - by end
  return period_starts(bound.zone, by[2], at) - 1
end

-- When a hit with this stamp stops counting.
local function frees_at(bound, by, stamp)
  if kind_of(by) == ROLLING then return stamp + by end
  return period_ends(bound.zone, by[2], stamp)
end

-- When the cost fits: -1 if it fits already, nil if it never does.
local function limit_fits(bound, quota, by)
  local kind, log, cost = kind_of(by), bound.log, bound.cost
  if kind == QUIET then return -1 end
  if cost > quota then return nil end
  if kind <= CALENDAR then
    local oldest = stamp_of_unit(log, quota - cost + 1)
    if oldest == -1 then return -1 end
    return frees_at(bound, by, oldest)
  end
  local last = newest(log)
  if last == -1 then return -1 end
  if kind == LEVEL then
    -- Subtracting in this order keeps every sum below 2^53.
    local over = units_after(log, last - 1) - (by[4] - cost * by[2])
    return over > 0 and last + math.ceil(over / by[3]) or -1
  end
  local window = by[2]
  local start = last - last % window
  if kind == FIXED then return units_after(log, start - 1) + cost <= quota and -1 or start + window end
  local own, before = counts(log, start, window)
  if own + cost <= quota then
    local fits = fades_at(by, start, before, quota - cost - own)
    if fits < start + window then return fits end
  end
  return fades_at(by, start + window, own, quota - cost)
end

-- How many us before `fits` an attempt is already allowed; its hit is stamped `fits`. Refusals that count push the
-- stamps of hits of the same instant apart by a us each; this undoes that shift.
local function limit_shift(bound, by, fits)
  if bound.denied == 0 or kind_of(by) ~= ROLLING or fits == -1 then return 0 end
  local last = fits - by
  local first, stop = last, math.max(last - MOST_SHIFTED, stamp_of_unit(bound.log, bound.denied))
  while first > stop and index_of(bound.log, first - 1) do first = first - 1 end
  return last - first
end

-- Units left at this instant; may be negative.
local function limit_left(bound, quota, by, at)
  local kind, log = kind_of(by), bound.log
  if kind <= CALENDAR then return quota - units_after(log, cutoff_at(bound, by, at)) end
  if kind == QUIET then return open_at(bound.zone, by[2], by[3], at) == at and LARGEST_QUOTA or 0 end
  if kind == LEVEL then
    local level = level_at(log, at, by)
    local ahead = math.min(math.max(0, newest(log) - at), math.floor((LARGEST_QUOTA - level) / by[3]))
    return math.floor((by[4] - level - ahead * by[3]) / by[2])
  end
  local window, tick, ticks = by[2], by[3], by[4]
  local start = at - at % window
  if kind == FIXED then return quota - units_after(log, start - 1) end
  local own, before = counts(log, start, window)
  return quota - own - math.ceil(before * math.ceil((start + window - at) / tick) / ticks)
end

-- Units that were left when the hit with this stamp was recorded, from what the log still holds.
local function limit_left_then(bound, quota, by, stamp, horizon, time)
  local kind, log = kind_of(by), bound.log
  if kind == QUIET then return LARGEST_QUOTA end
  if kind > CALENDAR then return limit_left(bound, quota, by, math.max(time, newest(log))) end
  local since = math.max(cutoff_at(bound, by, stamp), horizon)
  return quota - units_after(log, since) + units_after(log, stamp)
end

-- When more units are left than at this instant, right after a hit of this cost; -1 if nothing is used.
local function limit_more(bound, quota, by, at, cost)
  local kind, log = kind_of(by), bound.log
  if kind == QUIET then
    local opens = open_at(bound.zone, by[2], by[3], at)
    return opens == at and -1 or opens
  end
  if kind == LEVEL then
    local level = level_at(log, at, by) + cost * by[2]
    if level == 0 then return -1 end
    local over = level - (by[4] - (math.floor(math.max(0, by[4] - level) / by[2]) + 1) * by[2])
    return math.max(at, newest(log)) + math.ceil(over / by[3])
  end
  local left = limit_left(bound, quota, by, at)
  if kind <= CALENDAR then
    left = math.max(0, left)
    if left >= quota then return cost > 0 and frees_at(bound, by, bound.moved and at + 1 or at) or -1 end
    return frees_at(bound, by, stamp_of_unit(log, quota - left))
  end
  local window = by[2]
  local start = at - at % window
  if kind == FIXED then return left - cost >= quota and -1 or start + window end
  local own, before = counts(log, start, window)
  local used = math.min(quota, quota - left + cost)
  if used <= 0 then return -1 end
  own = own + cost
  if own < used then
    local more = fades_at(by, start, before, used - 1 - own)
    if more < start + window then return more end
  end
  return fades_at(by, start + window, own, used - 1)
end

-- How long after the instant of limit_left_then more units were left.
local function limit_more_then(bound, quota, by, stamp, horizon, time)
  local kind, log = kind_of(by), bound.log
  if kind == QUIET then return 0 end
  if kind > CALENDAR then
    local at = math.max(time, newest(log))
    return math.max(0, limit_more(bound, quota, by, at, 0) - at)
  end
  local later = units_after(log, stamp)
  local oldest = math.min(units_after(log, math.max(cutoff_at(bound, by, stamp), horizon)) - later, quota)
  return oldest > 0 and frees_at(bound, by, stamp_of_unit(log, later + oldest)) - stamp or 0
end

-- When nothing counts any more, if the newest hit is stamped `last`; `cost` is its units if it is not recorded yet,
-- else 0.
local function limit_empty(bound, by, last, cost)
  local kind = kind_of(by)
  if kind <= CALENDAR then return frees_at(bound, by, last) end
  if kind == QUIET then return -1 end
  if kind == COUNTER then return last - last % by[2] + 2 * by[2] end
  if kind == FIXED then return last - last % by[2] + by[2] end
  local level = level_at(bound.log, last, by) + cost * by[2]
  return level > 0 and last + math.ceil(level / by[3]) or -1
end
