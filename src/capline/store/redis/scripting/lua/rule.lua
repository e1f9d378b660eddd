-- The rule over the tables of log.lua: what capline.window.rule says, word for word. Included by the scripts, behind log.lua
-- and gauge.lua, where a site is drawn; runs nothing by itself.
--
-- A site's `keep` is how long its hits are kept, `keeps` what a hit leaves: 0 itself; -1 only one with an id is recorded;
-- above, hits of a span of so many us are kept as one. Limits are numbered from 0 through all sites.
-- An answer is {kind, limit, remaining, retry_after + 1 (0: never) or the hit's stamp, reset_after}. Where `tell` was set
-- before, a site's `told` is then the state of each of its limits, 24 bytes: units left, us until there are more, us until
-- there are all.

local REFUSED, ALLOWED, CONFLICT = 0, 1, 2
local MOST_TURNS = 64

local function time_and_newest(sites, now)
  local time, last = now, -1
  for _, site in ipairs(sites) do
    local log = site.log
    if log.floor > time then time = log.floor end
    local own = newest(log)
    if own > last then last = own end
  end
  return time, last
end

-- The first stamp from here on that is later than every live hit and names no other hit in any log.
local function free_stamp(sites, time, last)
  local stamp = math.max(time, last + 1)
  local again = true
  while again do
    again = false
    for _, site in ipairs(sites) do
      if index_of(site.log, stamp) then stamp, again = stamp + 1, true end
    end
  end
  return stamp
end

-- From when on this fits every limit (nil: never), and the limit that holds longest, if one still does; and from when on
-- it is let in, to be stamped when it fits.
local function fits_at(sites, time)
  local latest, binding, early, number = -1, nil, -1, 0
  for _, site in ipairs(sites) do
    local limits = site.limits
    for j = 1, #limits, 2 do
      local fits = limit_fits(site, limits[j], limits[j + 1])
      if not fits then return nil, number end
      if fits > latest then latest, binding = fits, fits > time and number or nil end
      early = math.max(early, fits - limit_smear(site, limits[j + 1], fits))
      number = number + 1
    end
  end
  return latest, binding, early
end

-- Below, `stamped` is a list of parts, {sites, stamp}: the logs of one subject, and the stamp that it would have. The limits
-- are numbered through all of them.

-- From when on, not before `at`, no quiet hours forbid any part's stamp (nil: they leave none), and the last that did. `at`
-- itself (-1: now) where none forbid it.
local function opens_at(stamped, at)
  local quiet, number, binding = nil, 0, nil
  for _, part in ipairs(stamped) do
    for _, site in ipairs(part[1]) do
      local limits = site.limits
      for j = 2, #limits, 2 do
        if kind_of(limits[j]) == QUIET then
          quiet = quiet or {}
          quiet[#quiet + 1] = {site.zone, limits[j][2], limits[j][3], number, part[2]}
        end
        number = number + 1
      end
    end
  end
  if not quiet then return at end
  for _ = 1, MOST_TURNS do
    local before = at
    for _, one in ipairs(quiet) do
      local asked = math.max(at, one[5])
      local opens = open_at(one[1], one[2], one[3], asked)
      if opens > asked then at, binding = opens, one[4] end
    end
    if at == before then return at, binding end
  end
  return nil, binding
end

local function tell_limit(site, left, more, whole)
  site.told = site.told .. pack('>I8I8I8', math.max(0, left), math.max(0, more), math.max(0, whole))
end

local function told(sites)
  local all = {}
  for k, site in ipairs(sites) do all[k] = site.told end
  return table.concat(all)
end

-- The limit of this part that has the least left.
local function tightest_of(sites, stamp)
  local left, tightest, number = math.huge, nil, 0
  for _, site in ipairs(sites) do
    local limits = site.limits
    for j = 1, #limits, 2 do
      local units = limit_left(site, limits[j], limits[j + 1], stamp)
      if units < left then left, tightest = units, number end
      number = number + 1
    end
  end
  return tightest
end

-- What would be stamped with no instant never fits: stamps are below MOST_UNITS as well.
local function answer(stamped, now, allowed, binding, retry_at)
  for _, part in ipairs(stamped) do
    if allowed and part[2] >= MOST_UNITS then allowed, retry_at = false, nil end
  end
  if retry_at and retry_at >= MOST_UNITS then retry_at = nil end
  local left, tightest, empty, number = math.huge, nil, -1, 0
  for _, part in ipairs(stamped) do
    local sites, stamp = part[1], part[2]
    local _, last = time_and_newest(sites, now)
    if allowed then last = math.max(last, stamp) end
    for _, site in ipairs(sites) do
      local limits, cost = site.limits, allowed and site.cost or 0
      site.told = ''
      for j = 1, #limits, 2 do
        local by = limits[j + 1]
        local units = limit_left(site, limits[j], by, stamp) - cost
        if units < left then left, tightest = units, number end
        if last ~= -1 then empty = math.max(empty, limit_empty(site, by, last, cost)) end
        if tell then
          local more = limit_more(site, limits[j], by, stamp, cost)
          local whole = more
          if more ~= -1 and kind_of(by) ~= QUIET then
            whole = limit_empty(site, by, allowed and stamp or newest(site.log), cost)
          end
          tell_limit(site, units, more - now, whole - now)
        end
        number = number + 1
      end
    end
  end
  local reset = empty == -1 and 0 or math.max(0, empty - now)
  if allowed then return {ALLOWED, tightest, math.max(0, left), stamped[1][2], reset} end
  return {REFUSED, binding or tightest, math.max(0, left), retry_at and retry_at - now + 1 or 0, reset}
end

-- Refused until it fits, and until the last slot that is taken (-1: none).
local function held_until(fits, last)
  -- At the instant of the last slot itself, the next stamp is already one later.
  if fits <= last + 1 then return last end
  return fits
end

-- What one part's logs say, before quiet hours are asked: the stamp that it would have now, until when it is held up (nil:
-- for ever, -1: not at all), the limit that holds it, and the stamp to record it under.
local function verdict(sites, now)
  local time, last = time_and_newest(sites, now)
  local stamp = free_stamp(sites, time, last)
  local fits, binding, early = fits_at(sites, time)
  if not fits then return stamp, nil, binding end
  if early > stamp or last > time then return stamp, held_until(early, last > time and last or -1), binding end
  return stamp, -1, nil, fits > stamp and free_stamp(sites, fits, last) or stamp
end

-- Would all of these parts, each a list of sites, be allowed now? The answer, and the stamp to record each part under.
local function judge(parts, now)
  local stamped, hits, never, holds, binding, longest, before, number = {}, {}, nil, -1, nil, nil, 0, 0
  for p, sites in ipairs(parts) do
    local stamp, held, own, hit = verdict(sites, now)
    stamped[p], hits[p] = {sites, stamp}, hit
    if not held then
      never = never or number + own
    elseif held > holds then
      holds, binding, longest, before = held, own and number + own, p, number
    end
    for _, site in ipairs(sites) do number = number + #site.limits / 2 end
  end
  if never then return answer(stamped, now, false, never, nil) end
  local opens, quiet = opens_at(stamped, holds)
  if opens == -1 then
    for p, part in ipairs(stamped) do part[2] = hits[p] end
    return answer(stamped, now, true), hits
  end
  binding = binding or quiet
  if longest and not binding then
    local own = tightest_of(parts[longest], stamped[longest][2])
    binding = own and before + own
  end
  return answer(stamped, now, false, binding, opens)
end

-- The next free instant, at most max_wait from now (-1: no bound), and at least not_before.
local function place(sites, now, max_wait, not_before)
  local time, last = time_and_newest(sites, now)
  local fits, binding = fits_at(sites, time)
  if not fits then return answer({{sites, free_stamp(sites, time, last)}}, now, false, binding, nil) end
  local stamp = free_stamp(sites, math.max(time, fits, now + not_before), last)
  while true do
    local opens, quiet = opens_at({{sites, stamp}}, -1)
    if not opens then return answer({{sites, stamp}}, now, false, quiet, nil) end
    if opens == -1 then break end
    stamp = free_stamp(sites, opens, last)
  end
  if max_wait >= 0 and stamp - now > max_wait then return answer({{sites, stamp}}, now, false, binding, stamp) end
  return answer({{sites, stamp}}, now, true)
end

-- The answer that this id was recorded with, or a conflict where that had another cost; nil where it is new.
local function first_answer(sites, id, time)
  local log, cost, horizon = sites[1].log, sites[1].cost, time - sites[1].keep
  local i = find(log, id, horizon)
  if not i then return nil end
  local stamp = log.s[i]
  if units_of(log, i) ~= cost then return {CONFLICT, 0, units_of(log, i), 0, 0} end
  local left, binding, reset, number = math.huge, nil, 0, 0
  for _, site in ipairs(sites) do
    local limits = site.limits
    site.told = ''
    for j = 1, #limits, 2 do
      local rest = limit_left_then(site, limits[j], limits[j + 1], stamp, horizon, time)
      if rest < left then left, binding = rest, number end
      local whole = limit_empty(site, limits[j + 1], stamp, 0) - stamp
      reset = math.max(reset, whole)
      if tell then
        local more = limit_more_then(site, limits[j], limits[j + 1], stamp, horizon, time)
        tell_limit(site, rest, more, more > 0 and whole or 0)
      end
      number = number + 1
    end
  end
  return {ALLOWED, binding, math.max(0, left), stamp, reset}
end

-- Put a hit into the log, as its algorithm keeps it.
local function put(site, time, stamp, id, units)
  local log, keeps, by = site.log, site.keeps, site.limits[2]
  if keeps == -1 and not id then return end
  -- The floor that a hit leaves is its own stamp, so that time goes on from there; a slot in the future, only now.
  local floor = stamp <= time + 1 and stamp or time
  trim(log, time - site.keep)
  local n = log.n
  if by and kind_of(by) == LEVEL then
    local level = level_at(log, stamp, by) + units * by[2]
    if n == 0 then record(log, stamp, level, floor) else extend(log, stamp, level - units_of(log, n), floor) end
  elseif keeps > 0 and not id and n > 0 and log.s[n] < stamp and not (log.f and log.f[n])
    and math.floor(log.s[n] / keeps) == math.floor(stamp / keeps) then
    extend(log, stamp, units, floor)
  else
    record(log, stamp, units, floor, id)
  end
  site.changed = true
end

-- Record what was allowed; the id goes into the first log.
local function put_all(sites, time, stamp, id)
  for k, site in ipairs(sites) do put(site, time, stamp, k == 1 and id or nil, site.cost) end
end

-- Record a refusal, and answer with it: a cost fits when this one too is out. More units than `denied` cannot matter. Nil,
-- and nothing recorded, where there is no instant left to stamp it with.
local function deny(sites, now)
  local time = time_and_newest(sites, now)
  local stamp = free_stamp(sites, time, -1)
  if stamp >= MOST_UNITS then return nil end
  for _, site in ipairs(sites) do
    put(site, time, stamp, nil, math.min(site.cost, site.denied))
    local oldest = stamp_of_unit(site.log, site.denied + 1)
    if oldest ~= -1 then trim_unnamed(site.log, oldest - 1) end
  end
  local stamped = {{sites, stamp}}
  local fits, binding, early = fits_at(sites, time)
  if not fits then return answer(stamped, now, false, binding, nil) end
  local _, last = time_and_newest(sites, now)
  local opens, quiet = opens_at(stamped, held_until(early, last))
  return answer(stamped, now, false, binding or quiet, opens)
end

-- One attempt: the answer, and whether it is the first one of a known id. Sites whose logs changed say so.
-- mode: 0 decide, 1 peek, 2 place.
local function attempt(sites, mode, id, now, max_wait, not_before)
  local time = time_and_newest(sites, now)
  if id then
    local known = first_answer(sites, id, time)
    if known then return known, known[1] == ALLOWED end
  end
  local said
  if mode == 2 then said = place(sites, now, max_wait, not_before) else said = judge({sites}, now) end
  if mode == 1 then
    if said[1] == ALLOWED then said[4] = 2 ^ 60 end
  elseif said[1] == ALLOWED then
    put_all(sites, time, said[4], id)
  elseif mode == 0 and sites[1].denied > 0 then
    said = deny(sites, now) or said
  end
  return said, false
end
