-- The rule over the tables of log.lua: capline.window.rule in Lua, function by function. Included by the scripts after
-- log.lua and limit_reader.lua (which has the fields of a bound log); runs nothing by itself.
--
-- Two fields of a bound log: `retention` is how long its hits are kept, in us. `storage` is what a hit leaves behind:
-- 0 the hit; -1 the hit if it has an id, else nothing; -3 the same, in a log that several policies have (-5, -7: these,
-- and numbers become one value: numbers.lua); n > 0 one sum for all hits of a span of n us. -2: it is no log of hits but
-- the record of reservations: reservation.lua; -9: but numbers that the policy kept before it kept hits: numbers.lua.
-- Where units must stay free, `judged` is `limits` with quotas less these: whether the cost fits is read by them.
-- Limits are numbered from 0 through all bound logs of an attempt.
-- An answer is {kind, limit, remaining, x, reset_after in us}; x is retry_after in us + 1 (0: never), or the hit's
-- stamp. If the including script sets `with_states`, each bound log gets `states`: for each limit 24 bytes, units
-- left[8, signed: below 0 past the quota], us until more are left[8], us until all are left[8].
-- Invariant: all limits are checked before anything is recorded. Complexity: that of limit_reader.lua for each limit.

local REFUSED, ALLOWED, CONFLICT, NO_ROOM = 0, 1, 2, 5
local MOST_TURNS = 64

local function time_and_newest(logs, now)
  local time, last = now, -1
  for _, bound in ipairs(logs) do
    local log = bound.log
    if log.floor > time then time = log.floor end
    local own = newest(log)
    if own > last then last = own end
  end
  return time, last
end

local TOGETHER = 1000

-- The logs by policy, each at a time of its own; all as one where there is one policy, or their times are no further
-- apart than a burst leaves them, in us. `part` of a bound log is the number of its policy, if there are several.
local function parts_of(logs, now)
  if not logs[1].part then return {logs} end
  local parts, first, last = {}, math.huge, -1
  for k, bound in ipairs(logs) do
    if k == 1 or bound.part ~= logs[k - 1].part then parts[#parts + 1] = {} end
    local part = parts[#parts]
    part[#part + 1] = bound
  end
  for _, part in ipairs(parts) do
    local time = time_and_newest(part, now)
    first, last = math.min(first, time), math.max(last, time)
  end
  return last - first > TOGETHER and parts or {logs}
end

-- The first stamp at or after `time` that is later than every hit with units and free in every log.
local function free_stamp(logs, time, last)
  local stamp = math.max(time, last + 1)
  local again = true
  while again do
    again = false
    for _, bound in ipairs(logs) do
      if index_of(bound.log, stamp) then stamp, again = stamp + 1, true end
    end
  end
  return stamp
end

-- When the attempt fits every limit (nil: never); the limit that blocks it longest, if one still does; when it is
-- allowed, which may be a few us before it fits (see limit_shift).
local function fits_at(logs, time)
  local latest, binding, early, number = -1, nil, -1, 0
  for _, bound in ipairs(logs) do
    local limits = bound.judged or bound.limits
    for j = 1, #limits, 2 do
      local fits = limit_fits(bound, limits[j], limits[j + 1])
      if not fits then return nil, number end
      if fits > latest then latest, binding = fits, fits > time and number or nil end
      early = math.max(early, fits - limit_shift(bound, limits[j + 1], fits))
      number = number + 1
    end
  end
  return latest, binding, early
end

-- Give each hit in the channels' logs the units that it has in the policy's own: it may have been refunded or settled
-- while its channel was not one of the policy's. In short logs alone, as each hit is looked at.
local function match_channels(logs)
  local own = nil
  for k = 1, logs[1].storage == 0 and #logs or 0 do
    local log, i = logs[k].log, 1
    local of_policy = k == 1 or logs[k].part ~= logs[k - 1].part
    if of_policy then own = log end
    for j = 1, (of_policy or own.key or log.key) and 0 or log.n do
      while i < own.n and own.s[i] < log.s[j] do i = i + 1 end
      if own.s[i] == log.s[j] and units_of(own, i) ~= units_of(log, j) then amend(log, j, units_of(own, i)) end
    end
  end
end

-- Give the logs of single limits what the policy's own log shows, where it was one of hits before and none of them has
-- anything: capline.window.carry. Whether anything was.
local function carry_hits(logs, now)
  local own, last = logs[1].log, newest(logs[1].log)
  if logs[1].storage ~= -1 or last == -1 then return false end
  for k = 2, #logs do
    if logs[k].log.n > 0 then return false end
  end
  local at = math.max(now, own.floor, last)
  for k = 2, #logs do
    local quota, by = logs[k].limits[1], logs[k].limits[2]
    local window = by[1] == LEVEL and by[5] or by[2]
    local units = math.min(quota, units_after(own, at - window))
    local stamp = by[1] ~= LEVEL and math.floor(last / window) == math.floor(at / window) and last or at
    if units > 0 then
      local log = {s = {}, c = {[0] = 0}, n = 0, floor = 0, carried = units, carried_at = stamp}
      record(log, stamp, by[1] == LEVEL and units * by[2] or units, math.max(now, own.floor))
      logs[k].log = log
    end
  end
  return true
end

-- Below, `stamped` is a list of parts, {bound logs, stamp}: the logs of one subject, and the stamp that its hit would
-- have. Limits are numbered through all parts.

-- The first instant at or after `at` at which no quiet hours forbid any part's stamp (nil: there is none), and the last
-- quiet hours that did. `at` itself (-1: now) if none forbid it.
local function opens_at(stamped, at)
  local quiet, number, binding = nil, 0, nil
  for _, part in ipairs(stamped) do
    for _, bound in ipairs(part[1]) do
      local limits = bound.limits
      for j = 2, #limits, 2 do
        if kind_of(limits[j]) == QUIET then
          quiet = quiet or {}
          quiet[#quiet + 1] = {bound.zone, limits[j][2], limits[j][3], number, part[2]}
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

local function add_state(bound, left, more, whole)
  bound.states = bound.states .. pack('>i8I8I8', left, math.max(0, more), math.max(0, whole))
end

local function states_of(logs)
  local all = {}
  for k, bound in ipairs(logs) do all[k] = bound.states end
  return table.concat(all)
end

-- Whether the last hit is the sum, of hits or of refusals (`id`), that a hit belongs to which would leave it at `stamp`.
local function is_sum_of(bound, stamp, id)
  local log, span = bound.log, bound.storage
  local n = log.n
  return span > 0 and (not id or id == DENIED) and n > 0 and log.s[n] < stamp and (log.f and log.f[n] or nil) == id
    and math.floor(log.s[n] / span) == math.floor(stamp / span)
end

-- The limit of this part with the fewest units left.
local function tightest_of(logs, stamp)
  local left, tightest, number = math.huge, nil, 0
  for _, bound in ipairs(logs) do
    local limits = bound.limits
    for j = 1, #limits, 2 do
      local units = limit_left(bound, limits[j], limits[j + 1], stamp)
      if units < left then left, tightest = units, number end
      number = number + 1
    end
  end
  return tightest
end

-- Stamps end at MOST_UNITS: an attempt that would be stamped later never fits.
local function answer(stamped, now, allowed, binding, retry_at)
  for _, part in ipairs(stamped) do
    if allowed and part[2] >= MOST_UNITS then allowed, retry_at = false, nil end
  end
  if retry_at and retry_at >= MOST_UNITS then retry_at = nil end
  local left, tightest, empty, number = math.huge, nil, -1, 0
  for _, part in ipairs(stamped) do
    local logs, stamp = part[1], part[2]
    local time, last = time_and_newest(logs, now)
    local consumes = allowed and logs[1].cost > 0
    if consumes then last = math.max(last, stamp) end
    -- The sum of hits that this one joins is read where it moves to, behind it.
    for _, bound in ipairs(consumes and logs or {}) do
      local by, log = bound.limits[2], bound.log
      if not bound.named and by and kind_of(by) <= QUIET and is_sum_of(bound, stamp + 1) then
        last, bound.moved, log.s[log.n] = stamp + 1, log.s[log.n], stamp + 1
      end
    end
    for _, bound in ipairs(logs) do
      local limits, cost = bound.limits, consumes and bound.cost or 0
      bound.states = ''
      for j = 1, #limits, 2 do
        local by = limits[j + 1]
        local units = limit_left(bound, limits[j], by, stamp) - cost
        if units < left then left, tightest = units, number end
        local gone = last == -1 and -1 or limit_empty(bound, by, last, cost)
        if gone > time then empty = math.max(empty, gone) end   -- what has aged counts no more: the clock may step back
        if with_states then
          local more = limit_more(bound, limits[j], by, stamp, cost)
          local whole = more
          if more ~= -1 and kind_of(by) ~= QUIET then
            whole = limit_empty(bound, by, consumes and (bound.moved and stamp + 1 or stamp) or newest(bound.log), cost)
          end
          add_state(bound, units, more - now, whole - now)
        end
        number = number + 1
      end
      if bound.moved then bound.log.s[bound.log.n], bound.moved = bound.moved, nil end
    end
  end
  local reset = empty == -1 and 0 or math.max(0, empty - now)
  if allowed then return {ALLOWED, tightest, math.max(0, left), stamped[1][2], reset} end
  return {REFUSED, binding or tightest, math.max(0, left), retry_at and retry_at - now + 1 or 0, reset}
end

-- Refused until it fits, and until the last slot that is taken (-1: none).
local function held_until(fits, last, cost)
  -- At the instant of the last slot itself, the next stamp is already one later; a peek of cost 0 takes none.
  if fits <= last + math.min(1, cost) then return last end
  return fits
end

-- What one part's logs say, before quiet hours are checked: the stamp that it would have now, until when it is blocked
-- (nil: for ever, -1: not at all), the limit that blocks it, the stamp to record it under, and the last slot (-1: none).
local function verdict(logs, now)
  local time, last = time_and_newest(logs, now)
  -- A peek of cost 0 takes no new stamp: it reads what is left now.
  local stamp = logs[1].cost > 0 and free_stamp(logs, time, last) or time
  local fits, binding, early = fits_at(logs, time)
  if not fits then return stamp, nil, binding end
  local slot = last > time and last or -1
  if early > stamp or slot ~= -1 then return stamp, held_until(early, slot, logs[1].cost), binding, nil, slot end
  if fits <= stamp then return stamp, -1, nil, stamp end
  return stamp, -1, nil, logs[1].cost > 0 and free_stamp(logs, fits, last) or fits
end

-- Whether a part that is held until `holds` and behind the slot `slot` is allowed at this instant, from the next one on
-- it is: the next one's stamp may be this one's.
local function goes_at(part, holds, slot, at)
  if at < slot then return false end
  for _, bound in ipairs(part[1]) do
    if bound.cost > 0 and index_of(bound.log, at) then return true end
  end
  return holds <= at and opens_at({{part[1], at}}, -1) == -1
end

-- When all parts, each held until one of `holds` and behind one of `slots`, are allowed, as `opens_at` says it; where
-- stamps just before that are taken, from the first of them. Later than the last instant nothing goes: there one less
-- may be the same double.
local function opens_from(stamped, at, holds, slots)
  local opens, quiet = opens_at(stamped, at)
  if not opens or opens == -1 or opens > MOST_UNITS then return opens, quiet end
  for before = opens - 1, opens - MOST_SHIFTED, -1 do
    for p, part in ipairs(stamped) do
      if not goes_at(part, holds[p] or -1, slots[p] or -1, before) then return before + 1, quiet end
    end
  end
  return opens - MOST_SHIFTED, quiet
end

-- Whether all parts, each a list of bound logs, are allowed now: the answer, and the stamp to record each part under.
local function judge(parts, now)
  local stamped, hits, never, holds, binding, longest, before, number = {}, {}, nil, -1, nil, nil, 0, 0
  local held_of, slots = {}, {}
  for p, logs in ipairs(parts) do
    local stamp, held, own, hit, slot = verdict(logs, now)
    stamped[p], hits[p], held_of[p], slots[p] = {logs, stamp}, hit, held, slot
    if not held then
      never = never or number + own
    elseif held > holds then
      holds, binding, longest, before = held, own and number + own, p, number
    end
    for _, bound in ipairs(logs) do number = number + #bound.limits / 2 end
  end
  if never then return answer(stamped, now, false, never, nil) end
  local opens, quiet = opens_from(stamped, holds, held_of, slots)
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

-- The next free instant of all logs of these parts, at most max_wait us from now (-1: no bound) and at least not_before
-- us. One instant for all, at the time of the log that is furthest ahead.
local function place(parts, now, max_wait, not_before)
  local logs, stamped = {}, {}
  for p, part in ipairs(parts) do
    stamped[p] = {part}
    for _, bound in ipairs(part) do logs[#logs + 1] = bound end
  end
  local function at(stamp)
    for _, part in ipairs(stamped) do part[2] = stamp end
    return stamped
  end
  local time, last = time_and_newest(logs, now)
  local fits, binding = fits_at(logs, time)
  if not fits then return answer(at(free_stamp(logs, time, last)), now, false, binding, nil) end
  local stamp = free_stamp(logs, math.max(time, fits, now + not_before), last)
  while true do
    local opens, quiet = opens_at(at(stamp), -1)
    if not opens then return answer(stamped, now, false, quiet, nil) end
    if opens == -1 then break end
    stamp = free_stamp(logs, opens, last)
  end
  if max_wait >= 0 and stamp - now > max_wait then
    -- What is left is as of now, and not as of the slot.
    return answer(at(time), now, false, binding, stamp)
  end
  return answer(stamped, now, true)
end

-- That the hit with this stamp was allowed, with what was left just after it.
local function answer_then(logs, stamp, time)
  local horizon = time - logs[1].retention
  local left, binding, reset, number = math.huge, nil, 0, 0
  for _, bound in ipairs(logs) do
    local limits = bound.limits
    bound.states = ''
    for j = 1, #limits, 2 do
      local rest = limit_left_then(bound, limits[j], limits[j + 1], stamp, horizon, time)
      if rest < left then left, binding = rest, number end
      local whole = limit_empty(bound, limits[j + 1], stamp, 0) - stamp
      reset = math.max(reset, whole)
      if with_states then
        local more = limit_more_then(bound, limits[j], limits[j + 1], stamp, horizon, time)
        add_state(bound, math.max(0, rest), more, more > 0 and whole or 0)
      end
      number = number + 1
    end
  end
  return {ALLOWED, binding, math.max(0, left), stamp, reset}
end

-- The answer that this id was recorded with, or a conflict if that had another cost; nil for a new id.
local function first_answer(logs, id, time)
  local log, cost, horizon = logs[1].log, logs[1].cost, time - logs[1].retention
  local i = find(log, id, horizon)
  if not i then return nil end
  if units_of(log, i) ~= cost then return {CONFLICT, 0, units_of(log, i), 0, 0} end
  return answer_then(logs, log.s[i], time)
end

-- Record a hit in the log, as its algorithm keeps it.
local function put(bound, time, stamp, id, units)
  local log, storage, by = bound.log, bound.storage, bound.limits[2]
  if storage < 0 and not id then return end
  trim(log, time - bound.retention)
  if log.c[log.n] - log.c[0] + units > MOST_UNITS then forget(log, upto(log.s, log.n, time - bound.retention)) end
  local n, level = log.n, nil
  if by and kind_of(by) == LEVEL then
    stamp, level = level_raised(log, stamp, units, by[2], by[3], by[4])
  end
  -- The floor that a hit leaves is its own stamp, so that time goes on from there; a slot in the future, only now.
  local floor = stamp <= time + 1 and stamp or time
  -- A sum of hits is no hit's: under `sliding_log` a refund gives none back for another.
  local sum_at = (id or by and kind_of(by) > QUIET) and stamp or stamp + 1
  if level then
    if n == 0 then record(log, stamp, level, floor) else extend(log, stamp, level - units_of(log, n), floor) end
  elseif is_sum_of(bound, sum_at, id) then
    extend(log, sum_at, units, floor == stamp and sum_at or floor)
  elseif not insert(log, stamp, units, floor, id, time - bound.retention) then
    record(log, stamp, units, floor, id)
  end
  bound.changed = true
end

-- Record what was allowed; the id goes into the first log.
local function put_all(logs, time, stamp, id)
  for k, bound in ipairs(logs) do put(bound, time, stamp, k == 1 and id or nil, bound.cost) end
end

-- Record a refusal that counts, and answer as of after it. No more than `denied` units are kept. Nil, and nothing
-- recorded, if no stamp is left for it.
local function deny(logs, now)
  local time = time_and_newest(logs, now)
  local stamp = free_stamp(logs, time, -1)
  if stamp >= MOST_UNITS then return nil end
  for _, bound in ipairs(logs) do
    if units_after(bound.log, stamp) < bound.denied then  -- else it would be forgotten at once
      put(bound, time, stamp, DENIED, math.min(bound.cost, bound.denied))
      local oldest = stamp_of_unit(bound.log, bound.denied + 1)
      if oldest ~= -1 then trim_denied(bound.log, oldest - 1) end
    end
  end
  local stamped = {{logs, stamp}}
  local fits, binding, early = fits_at(logs, time)
  if not fits then return answer(stamped, now, false, binding, nil) end
  local _, last = time_and_newest(logs, now)
  local holds = held_until(early, last, 1)
  local opens, quiet = opens_from(stamped, holds, {holds}, {last})
  return answer(stamped, now, false, binding or quiet, opens)
end

-- Whether each log can count its cost more, at this stamp.
local function can_count(logs, time, stamp)
  for _, bound in ipairs(logs) do
    local log, by, most = bound.log, bound.limits[2], MOST_UNITS - 1
    if bound.storage > 0 and by and kind_of(by) == LEVEL then
      if not level_raised(log, stamp, bound.cost, by[2], by[3], by[4]) then return false end
    else
      if bound.storage > 0 and by and kind_of(by) == COUNTER then most = math.floor(most / by[4]) end
      if not has_room(log, time - bound.retention, bound.cost, most) then return false end
    end
  end
  return true
end

-- Record a hit in all logs at the time of each, its id in the first; false, and nothing recorded, if one cannot count it.
local function record_all(logs, now, stamp, id)
  local parts, times = parts_of(logs, now), {}
  for p, part in ipairs(parts) do
    times[p] = (time_and_newest(part, now))
    if not can_count(part, times[p], stamp) then return false end
  end
  for p, part in ipairs(parts) do put_all(part, times[p], stamp, p == 1 and id or nil) end
  return true
end

-- The answer to an attempt, and what it is recorded under. Of several policies each is judged at its own time; the stamp
-- is the latest of theirs.
local function judge_all(logs, now)
  local parts = parts_of(logs, now)
  local said, hits = judge(parts, now)
  if not hits or #parts == 1 then return said end
  local stamp, stamped = free_stamp(logs, math.max(unpack(hits)), -1), {}
  for p, part in ipairs(parts) do stamped[p] = {part, stamp} end
  return answer(stamped, now, true)
end

-- Record the cost whatever the limits say, now and before slots that are taken, and answer as of after it.
local function charge(logs, id, now)
  local time = time_and_newest(logs, now)
  local stamp = free_stamp(logs, time, -1)
  if stamp >= MOST_UNITS or not record_all(logs, now, stamp, id) then return {NO_ROOM, 0, 0, 0, 0} end
  local after = answer({{logs, stamp}}, now, false)
  return {ALLOWED, after[2], after[3], stamp, after[5]}
end

-- Whether an attempt that is refused would be allowed if nothing had to stay free.
local function fits_unkept(logs, now)
  local unkept = {}
  for k, bound in ipairs(logs) do unkept[k] = setmetatable({judged = false}, {__index = bound}) end
  return logs[1].judged and judge({unkept}, now)[1] == ALLOWED
end

-- One attempt: the answer, and whether it is that of a known id. Sets `changed` on each bound log that it
-- recorded in. mode: 0 decide, 1 peek, 2 place, 3 charge.
local function attempt(logs, mode, id, now, max_wait, not_before)
  local time = time_and_newest(logs, now)
  logs[1].named = id
  if id then
    local known = first_answer(logs, id, time)
    if known then return known, known[1] == ALLOWED end
  end
  local said
  if mode == 3 then return charge(logs, id, now), false end
  if mode == 2 then said = place({logs}, now, max_wait, not_before) else said = judge_all(logs, now) end
  if mode == 1 then
    if said[1] == ALLOWED then said[4] = 2 ^ 60 end
  elseif said[1] == ALLOWED then
    if not record_all(logs, now, said[4], id) then return {NO_ROOM, 0, 0, 0, 0}, false end
  elseif mode == 0 and logs[1].denied > 0 and not fits_unkept(logs, now) then
    said = deny(logs, now) or said
  end
  return said, false
end
