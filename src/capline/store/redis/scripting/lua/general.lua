-- One attempt by the general rule, for everything that no fast path answers. Included by one.lua and attempt.lua where these
-- names are set: mode, cost, id, max_wait, not_before, now, retention, grace, stamp_bytes, width, begins_next, last_stamp,
-- ttl_ms, and `say` and `add_states`, which take the answer and the states.

-- The general rule, for everything that is not one unit on a plain log.
local library
local function load_library()
  --@include log
  --@include level
  --@include limit_reader
  --@include reservation
  --@include rule
  --@include numbers

  next_forms = begins_next

  -- Decide one attempt; a hit that is recorded holds for `ttl` us from its stamp on, unless it is committed.
  local function reserve(logs, pending, id, now, ttl)
    local holds = ttl
    for _, entry in ipairs(pending.left) do holds = holds + entry[2] end
    if holds > MOST_UNITS - 1 then return {NO_ROOM, 0, 0, 0, 0}, false end
    local said, again = attempt(logs, 0, id, now, -1, 0)
    if logs[1].changed then hold(pending, said[4], ttl) end
    return said, again
  end

  -- Move the slot of this id (nil: of this stamp) to where it is placed in front of itself: capline.window.rule in Lua.
  local function move(logs, id, now, stamp, not_before)
    local own, time = logs[1].log, (time_and_newest(logs, now))
    local horizon = time - retention
    local i = id and find(own, id, horizon) or not id and stamp > horizon and index_of(own, stamp)
    local units = i and units_of(own, i) or 0
    if units == 0 then return answer({{logs, time}}, now, false), false end
    stamp = own.s[i]
    local in_front, moves = {}, stamp > time
    for k, bound in ipairs(logs) do
      local log = bound.log
      local j = index_of(log, stamp)
      moves, bound.cost = moves and j and units_of(log, j) == units, units
      local before = {s = log.s, c = log.c, f = log.f, n = (j or 1) - 1, floor = log.floor}
      in_front[k] = setmetatable({log = before}, {__index = bound})
    end
    local place = moves and place({in_front}, now, -1, not_before)
    if place and place[1] == 1 and place[4] < stamp then
      id = own.f and own.f[i] or nil
      for _, bound in ipairs(logs) do give_back(bound.log, index_of(bound.log, stamp), units) end
      stamp = place[4]
      put_all(logs, time, stamp, id)
    end
    return answer_then(logs, stamp, time), true
  end

  library = {decode = decode, encode = encode, attempt = attempt, save = save, open_long = open_long, newest = newest,
    states_of = states_of, take_record = take_record, reserve = reserve, move = move,
    renew = renew, match_channels = match_channels, carry_hits = carry_hits, take_numbers = take_numbers, take_former = take_former,
    save_numbers = save_numbers}
end

-- One row by the general rule, on KEYS from the first of its own on: the new value of each log, '' if it was written in
-- place, 0 if it is to go, false if it is unchanged; nil if all are unchanged.
local function general(values, first, long, term, field)
  if not library then load_library() end
  local logs, new, changed = {}, {}, false
  for k = 1, width do
    if type(values[k]) == 'table' then return say(3, 255, 0, 0, 0) end   -- an error: a key of another kind
    local log
    local key = KEYS[first + k - 1]
    if long then
      local bytes = redis.pcall('STRLEN', key)
      if type(bytes) == 'table' then return say(3, 255, 0, 0, 0) end
      log = library.open_long(key, bytes)
    end
    if not log then log = library.decode(long and call('GET', key) or values[k]) end
    if not log then return say(3, 255, 0, 0, 0) end
    logs[k] = {
      log = log, limits = term[1][k], judged = term[9] and term[9][k], cost = cost, retention = retention,
      storage = term[6] and term[6][k] or 0, zone = term[8], denied = term[7] or 0, part = term[10] and term[10][k],
    }
  end
  local former
  logs, former = library.take_former(logs)
  local numbers = {}   -- of each policy, by the number of its own log
  for k, bound in ipairs(logs) do
    if k == 1 or bound.part ~= logs[k - 1].part then
      numbers[k] = library.take_numbers(k == 1 and logs or {logs[k]}, now, KEYS[first + k - 1], field or '')
      if numbers[k] == false then return say(3, 255, 0, 0, 0) end
    end
  end
  local pending = library.take_record(logs, now, KEYS[first], field or '')
  library.match_channels(logs)
  if not numbers[1] then library.carry_hits(logs, now) end
  local said, again
  if mode == 4 then
    said, again = library.reserve(logs, pending, id, now, max_wait)
  elseif mode == 5 then
    said, again = library.move(logs, id, now, max_wait, not_before)
  else
    said, again = library.attempt(logs, mode, id, now, max_wait, not_before)
  end
  for k, of_policy in pairs(mode ~= 1 and said[1] < 2 and numbers or {}) do
    library.save_numbers(of_policy, k == 1 and logs or {logs[k]}, now, grace, stamp_bytes)
  end
  if again and mode ~= 1 then
    local own = logs[1].log
    touch(KEYS[first], lifetime(math.max(library.newest(own), own.floor), retention, now, grace))
  end
  if pending and logs[1].changed then library.renew(pending, logs[1].log) end
  say(said[1], said[2], said[3], said[4], said[5], term[4])
  if said[1] < 2 then add_states(library.states_of(logs)) end
  for k = 1, width do
    local bound = former[k] or logs[k] or pending
    local log = bound.log
    new[k] = false
    if bound.changed then
      changed = true
      last_stamp = math.max(last_stamp, library.newest(log), log.floor)
      if log.key then
        library.save(log, ttl_ms())
        new[k] = ''
      elseif log.n == 0 then
        new[k] = 0   -- nothing is pending any more
      else
        new[k] = library.encode(log, stamp_bytes)
      end
    elseif mode ~= 1 and not former[k] then
      prolong(KEYS[first + k - 1], math.max(library.newest(log), log.floor), retention, now, grace)
    end
  end
  if changed then return new end
end
