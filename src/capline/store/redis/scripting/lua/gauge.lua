-- What one limit reads from a log: what capline.window.limit_reader and capline.window.calendar say, word for word. Included by the
-- scripts, behind log.lua; runs nothing by itself.
--
-- A site is a log and how an attempt reads it: {log, limits, cost, keep, keeps, zone, denied}. limits is flat, quota, by,
-- quota, by, ...; `by` is the window of a rolling limit, or
--   {1, period}              calendar: since the day or the week began
--   {2, from, until}         quiet hours, by the clock alone
--   {3, window, tick, ticks} counter: two weighted windows
--   {4, rise, fall, brim}    level of gcra
--   {5, window}              fixed windows, each by itself
-- zone: the offsets of the subject's time zone, from, offset, from, offset, ... (capline.model.zone); nil where no limit
-- asks for one. denied: how many units of refusals can matter, 0 where they do not count. Every number is whole and below 2^53, so each division is rounded the right way.

local ROLLING, CALENDAR, QUIET, COUNTER, LEVEL, FIXED = 0, 1, 2, 3, 4, 5
local DAY = 86400000000
local LARGEST_QUOTA = 9007199254740991
local MOST_SMEARED = 64   -- us

local function kind_of(by)
  return type(by) == 'number' and ROLLING or by[1]
end

-- --- days, weeks and times of day ---

-- Where in the table the offset stands that is in force at this instant; the offset itself is one further.
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

-- The local time at which the day, or the week from Monday on, began that the clock shows.
local function local_start(zone, period, at)
  local shown = at + zone[zone_place(zone, at) + 1]
  return shown - (shown - (period == DAY and 0 or 4 * DAY)) % period
end

local function period_starts(zone, period, at)
  local start = local_start(zone, period, at)
  -- Behind a clock that was set back over midnight, the day that had begun goes on.
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

-- Units of the window that begins here, and of the one before.
local function counts(log, start, window)
  local since = units_after(log, start - 1)
  return since - units_after(log, start + window - 1), units_after(log, start - window - 1) - since
end

-- From when on, in the window that begins here, at most so many of the units before it count.
local function fades_at(by, start, before, room)
  local window, tick, ticks = by[2], by[3], by[4]
  local steps = before > 0 and math.min(ticks, math.floor(room * ticks / before)) or ticks
  return start + math.max(0, window - steps * tick)
end

-- The level at this instant, or at the newest hit's where that is later.
local function level_at(log, at, by)
  local last = newest(log)
  if last == -1 then return 0 end
  return math.max(0, units_after(log, last - 1) - math.max(0, at - last) * by[3])
end

-- --- the gauge ---

-- Hits as old as this do not count at that instant.
local function cutoff_at(site, by, at)
  if kind_of(by) == ROLLING then return at - by end
  return period_starts(site.zone, by[2], at) - 1
end

-- From when on a hit of this stamp does not count.
local function frees_at(site, by, stamp)
  if kind_of(by) == ROLLING then return stamp + by end
  return period_ends(site.zone, by[2], stamp)
end

-- From when on the site's cost fits, -1 where it always does; nil: never.
local function limit_fits(site, quota, by)
  local kind, log, cost = kind_of(by), site.log, site.cost
  if kind == QUIET then return -1 end
  if cost > quota then return nil end
  if kind <= CALENDAR then
    local oldest = stamp_of_unit(log, quota - cost + 1)
    if oldest == -1 then return -1 end
    return frees_at(site, by, oldest)
  end
  local last = newest(log)
  if last == -1 then return -1 end
  if kind == LEVEL then
    -- In this order no sum is above 2^53.
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

-- How much earlier than this answer of limit_fits an attempt is let in, to be stamped with it.
local function limit_smear(site, by, fits)
  if site.denied == 0 or kind_of(by) ~= ROLLING or fits == -1 then return 0 end
  local last = fits - by
  local first = last
  while last - first < MOST_SMEARED and index_of(site.log, first - 1) do first = first - 1 end
  return last - first
end

-- Units that are left at this instant; may be negative.
local function limit_left(site, quota, by, at)
  local kind, log = kind_of(by), site.log
  if kind <= CALENDAR then return quota - units_after(log, cutoff_at(site, by, at)) end
  if kind == QUIET then return open_at(site.zone, by[2], by[3], at) == at and LARGEST_QUOTA or 0 end
  if kind == LEVEL then return math.floor((by[4] - level_at(log, at, by)) / by[2]) end
  local window, tick, ticks = by[2], by[3], by[4]
  local start = at - at % window
  if kind == FIXED then return quota - units_after(log, start - 1) end
  local own, before = counts(log, start, window)
  return quota - own - math.ceil(before * math.ceil((start + window - at) / tick) / ticks)
end

-- Units that were left when the hit of this stamp was recorded, as far as the log tells.
local function limit_left_then(site, quota, by, stamp, horizon, time)
  local kind, log = kind_of(by), site.log
  if kind == QUIET then return LARGEST_QUOTA end
  if kind > CALENDAR then return limit_left(site, quota, by, math.max(time, newest(log))) end
  local since = math.max(cutoff_at(site, by, stamp), horizon)
  return quota - units_after(log, since) + units_after(log, stamp)
end

-- From when on more is left than at this instant, right after a hit of this cost there; -1 where all is left.
local function limit_more(site, quota, by, at, cost)
  local kind, log = kind_of(by), site.log
  if kind == QUIET then
    local opens = open_at(site.zone, by[2], by[3], at)
    return opens == at and -1 or opens
  end
  if kind == LEVEL then
    local level = level_at(log, at, by) + cost * by[2]
    if level == 0 then return -1 end
    local over = level - (by[4] - (math.floor(math.max(0, by[4] - level) / by[2]) + 1) * by[2])
    return at + math.ceil(over / by[3])
  end
  local left = limit_left(site, quota, by, at)
  if kind <= CALENDAR then
    left = math.max(0, left)
    if left >= quota then return cost > 0 and frees_at(site, by, at) or -1 end
    return frees_at(site, by, stamp_of_unit(log, quota - left))
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

-- How long after the instant that limit_left_then tells of there was more left than then.
local function limit_more_then(site, quota, by, stamp, horizon, time)
  local kind, log = kind_of(by), site.log
  if kind == QUIET then return 0 end
  if kind > CALENDAR then
    local at = math.max(time, newest(log))
    return math.max(0, limit_more(site, quota, by, at, 0) - at)
  end
  local later = units_after(log, stamp)
  local oldest = math.min(units_after(log, math.max(cutoff_at(site, by, stamp), horizon)) - later, quota)
  return oldest > 0 and frees_at(site, by, stamp_of_unit(log, later + oldest)) - stamp or 0
end

-- From when on nothing counts, where the newest hit, this one of `cost` (0: none), is stamped `last`.
local function limit_empty(site, by, last, cost)
  local kind = kind_of(by)
  if kind <= CALENDAR then return frees_at(site, by, last) end
  if kind == QUIET then return -1 end
  if kind == COUNTER then return last - last % by[2] + 2 * by[2] end
  if kind == FIXED then return last - last % by[2] + by[2] end
  local level = level_at(site.log, last, by) + cost * by[2]
  return level > 0 and last + math.ceil(level / by[3]) or -1
end
