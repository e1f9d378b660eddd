-- All numbers of a policy as one value: capline.window.carry in Lua. Included by the scripts after rule.lua; runs nothing
-- by itself.
--
-- The rows are at the policy's own key (`numbers` in log.lua), and its log of hits is beside them, under `/+ids`. So every
-- script finds the rows where it looks for hits, also one whose policy keeps hits now, and no fast path takes them. Where
-- there are no rows each limit has a log of its own; a policy whose `storage` says so (rule.lua) makes rows of these.
-- Complexity: O(rows) a step.

local function load_numbers()
  local TICKS, MOST_SUMS = 2 ^ 20, 64

  local function empty_log()
    return {s = {}, c = {[0] = 0}, n = 0, floor = 0}
  end

  -- The log beside the rows; of a long one only single entries are read, if it may stay there. Nil if it is none.
  local function open_beside(key, field, stays)
    local v = field == '' and redis.pcall('STRLEN', key) or false
    local log = stays and type(v) == 'number' and open_long(key, v)
    if log then return log end
    if field == '' then v = redis.pcall('GET', key) else v = redis.pcall('HGET', key, field) end
    return type(v) ~= 'table' and decode(v) or nil
  end

  local function window_of(by)
    if type(by) == 'number' then return by end
    return by[1] == LEVEL and by[5] or by[2]
  end

  -- The `by` of a row, as compiled_rule.py makes it.
  local function by_of(row)
    local kind, window, quota = row[1], row[2], row[3]
    if kind == FIXED then return {kind, window} end
    if kind == COUNTER then
      local tick = math.ceil(window / TICKS)
      return {kind, window, tick, math.ceil(window / tick)}
    end
    local common, rest = window, quota
    while rest > 0 do common, rest = rest, common % rest end
    local rise = window / common
    return {kind, rise, math.max(1, quota / common), quota * rise, window}
  end

  -- Of the row of the same window, else of the shortest longer one, else of the longest.
  local function nearest(rows, window)
    local best
    for _, row in ipairs(rows) do
      local span, least = row[2] - window, best and best[2] - window
      if not best or least < 0 and span > least or span >= 0 and span < least then best = row end
    end
    return best
  end

  -- The units that `usage` shows of the row at this instant.
  local function used(row, at)
    return row[3] - limit_left({log = row[4]}, row[3], by_of(row), at)
  end

  local function rows_time(rows, own, now)
    local logs = {own}
    for i, row in ipairs(rows) do logs[i + 1] = {log = row[4]} end
    return time_and_newest(logs, now)
  end

  -- Another limit's level of the units of this row, rounded up by at most a millionth of one, to its brim.
  local function level_in(by, row, at)
    local from = by_of(row)
    local level, rise = level_at(row[4], at, from), from[2]
    local tick = math.ceil(rise / TICKS)
    local ticks, steps = math.ceil(level % rise / tick), math.ceil(rise / tick)
    local more = by[2] % steps
    return math.min(by[4], math.floor(level / rise) * by[2] + ticks * ((by[2] - more) / steps) + math.ceil(ticks * more / steps))
  end

  -- The log of a new limit: a counter of the same kind and window as before goes on, else the units as of now.
  local function log_from(rows, quota, by, time, last)
    local kind, window = by[1], window_of(by)
    local before = nearest(rows, window)
    if before[1] == kind and before[2] == window and kind ~= LEVEL then return before[4] end
    local at, log = math.max(time, last), empty_log()
    local units = math.min(quota, used(before, at))
    local amount = units
    if kind == LEVEL then amount = before[1] == LEVEL and level_in(by, before, at) or units * by[2] end
    if units > 0 then
      record(log, at, amount, time)
      log.carried, log.carried_at = units, at
    end
    return log
  end

  -- Bind the logs of single limits to their rows; whether a limit had to take over. Where several policies have the rows,
  -- a limit without one goes on with the log that it has.
  local function take_over(rows, logs, now)
    local shared, same, found = logs[1].storage == -3, #rows == #logs - 1, {}
    local time, last = rows_time(rows, logs[1], now)
    for k = 2, #logs do
      local quota, by = logs[k].limits[1], logs[k].limits[2]
      for i, row in ipairs(rows) do
        if row[1] == by[1] and row[2] == window_of(by) and row[3] == quota then
          found[k], same = row[4], same and i == k - 1
        end
      end
      same = same and found[k]
      logs[k].log = found[k] or shared and logs[k].log or log_from(rows, quota, by, time, last)
    end
    return not (same or shared)
  end

  -- Add to the policy's own log, for each of its windows, the units that the rows show beyond its hits, as units that are
  -- no hit's. Units beyond those of the narrower windows were used before these began, at the latest; the others at the
  -- newest stamp, at the latest.
  local function carry_numbers(rows, own, now)
    local time, last = rows_time(rows, own, now)
    local at, windows, log = math.max(time, last + 1), {}, own.log
    local edge = at
    for j = 1, #own.limits, 2 do
      local by = own.limits[j + 1]
      if kind_of(by) <= CALENDAR then windows[#windows + 1] = {cutoff_at(own, by, at), j, own.limits[j], window_of(by)} end
    end
    table.sort(windows, function(a, b) return a[1] > b[1] or a[1] == b[1] and a[2] < b[2] end)
    for _, one in ipairs(windows) do
      local cutoff = one[1]
      local units = math.min(one[3], used(nearest(rows, one[4]), at)) - units_after(log, cutoff)
      local stamp = cutoff <= last and last < edge and last + 1 or math.max(edge, cutoff + 1, 0)
      if units > 0 then
        local mark, byte = nil, 192
        if own.storage == 0 then
          while byte < 253 and find(log, AT_NEWEST .. string.char(byte), -1) do byte = byte + 1 end
          mark = AT_NEWEST .. string.char(byte)
          if find(log, mark, -1) then mark = CARRIED end
        end
        while index_of(log, stamp) do stamp = stamp + 1 end
        record(log, stamp, units, math.min(at, time + 1), mark)
      end
      edge = cutoff
    end
  end

  -- The rows to keep: those of these logs, and where several policies have the rows, the others' that still count.
  local function rows_of(rows, logs)
    local kept, own, horizon = {}, {}, 0
    for k = 2, #logs do
      local quota, by, log = logs[k].limits[1], logs[k].limits[2], logs[k].log
      kept[k - 1] = {by[1], window_of(by), quota, log}
      horizon = math.max(horizon, log.floor)
      -- What is older no number counts; without this a limit of a second beside one of a day has a sum a second.
      if log.n > MOST_SUMS then trim(log, log.floor - 2 * window_of(by)) end
    end
    for _, row in ipairs(logs[1].storage == -3 and rows or {}) do
      local log, mine = row[4], false
      for _, other in ipairs(kept) do
        mine = mine or row[1] == other[1] and row[2] == other[2] and row[3] == other[3]
      end
      if not mine and log.n > 0 and log.s[log.n] > horizon - logs[1].retention then kept[#kept + 1] = row end
    end
    return kept
  end

  local function last_of(log)
    return math.max(log.floor, log.n > 0 and log.s[log.n] or 0)
  end

  -- Bind the logs of a step, the policy's own first, to the rows at its key, or to what they take over. Nil if a value is
  -- not a log.
  local function open(logs, now, key, field)
    local own = logs[1]
    for k = 2, #logs do
      local log = logs[k].log
      if log.key then logs[k].log = decode(call('GET', log.key)) end   -- it becomes a row
      logs[k].stored = log.n > 0
    end
    local found, keeps = own.log.rows or own.former, own.storage < 0
    local numbers = {
      key = key, field = field, beside = string.gsub(key, ':{', '/+ids:{', 1), rows = found or {}, found = found, keeps = keeps,
    }
    if own.log.rows then
      own.log = open_beside(numbers.beside, field, keeps)
      if not own.log then return nil end
    elseif own.log.key then
      own.log = decode(call('GET', key))   -- it moves
    end
    local pending = keeps and former_record(own.log, key, field)
    if pending then end_reservations({own.log}, pending, {}, now, own.retention) end
    if not keeps then
      if #found > 0 then carry_numbers(found, own, now) end
      numbers.took = true
    elseif #numbers.rows > 0 then
      numbers.took = take_over(found, logs, now)
    else
      numbers.took = carry_hits(logs, now)
    end
    return numbers
  end

  -- After the attempt: write the log of hits, and put in the place of the bound logs what their keys are to have.
  local function save_all(numbers, logs, now, grace, stamp_bytes)
    local own, key, field = logs[1], numbers.beside, numbers.field
    if not numbers.keeps then
      own.changed = own.log.n > 0
      remove(key, field)
      if not own.changed then remove(numbers.key, field) end
      for _, row in ipairs(own.former or {}) do row.bound.log, row.bound.changed = empty_log(), true end
      return
    end
    local changed, last = numbers.took or own.changed, last_of(own.log)
    for k = 2, #logs do changed = changed or logs[k].changed end
    if not (changed or numbers.found) then return end
    local rows = changed and rows_of(numbers.rows, logs) or numbers.rows
    for _, row in ipairs(rows) do last = math.max(last, last_of(row[4])) end
    local ttl = lifetime(last, logs[1].retention, now, grace)
    if (own.changed or changed and not numbers.found) and own.log.n > 0 then
      if own.log.key then
        save(own.log, ttl)
      elseif field == '' then
        call('SET', key, encode(own.log, stamp_bytes), 'PX', ttl)
      else
        call('HSET', key, field, encode(own.log, stamp_bytes))
        keep_bucket(key, ttl, grace)
      end
    else
      prolong(key, last, logs[1].retention, now, grace)
    end
    own.log = {s = {last}, c = {[0] = 0, 1}, n = 1, floor = last, rows = rows}
    own.changed = changed
    for k = 2, #logs do logs[k].log, logs[k].changed = empty_log(), changed and logs[k].stored end
  end

  return {open = open, save = save_all}
end

-- Take the logs of single numbers that policies of hits kept before out of these, and give them, as rows, to the own log of
-- their policy; the others are left. They are read whole.
local function take_former(bound_logs)
  local logs, former = {}, {}
  for k, bound in ipairs(bound_logs) do
    if bound.storage ~= -9 then
      logs[#logs + 1] = bound
    else
      former[k] = bound
      local own, log, by = nil, bound.log, bound.limits[2]
      for _, other in ipairs(logs) do
        if not own and other.part == bound.part then own = other end
      end
      if log.key then log = decode(call('GET', log.key)) end
      if log.n > 0 then
        own.former = own.former or {}
        table.insert(own.former, {by[1], by[1] == LEVEL and by[5] or by[2], bound.limits[1], log, bound = bound})
      end
    end
  end
  return logs, former
end

-- The numbers of these bound logs, which they are bound to; nil where each has a log of its own, and false if a value is
-- not a log.
local number_functions
local function take_numbers(logs, now, key, field)
  local own = logs[1]
  if own.storage >= -4 and not own.log.rows and not own.former then return nil end
  if own.storage < -4 then own.storage = own.storage + 4 end
  number_functions = number_functions or load_numbers()
  return number_functions.open(logs, now, key, field) or false
end

-- Keep them, whatever the answer, but not after an error.
local function save_numbers(numbers, ...)
  if numbers then number_functions.save(numbers, ...) end
end
