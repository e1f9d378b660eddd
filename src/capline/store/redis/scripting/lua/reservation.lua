-- Reservations: capline.window.reservation in Lua. Included after log.lua; runs nothing by itself.
--
-- Where a policy has reservations, the last of its keys is the record of what is pending, kept as a log: the stamp of a
-- reserved hit; in place of its units for how many us it holds; and as its id 4 bytes of the name of the last log that
-- has the hit, then 4 of the stamp (none: not known). Its `storage` (rule.lua) is -2, its `limits` are the marks of the
-- logs that are read before it: numbers, those 4 bytes.
-- Invariant: a log is read as it is at its time, without the hits whose reservation has ended. Complexity: O(pending).

-- Take the hits whose reservation has ended out of these logs, the policy's own first. Returns all entries of the
-- record, and those that it still has once these logs are written: each {stamp, holds, id}.
local function end_reservations(logs, pending, marks, now, retention)
  local time, s, c, f, read = math.max(now, logs[1].floor), pending.s, pending.c, pending.f, {}
  local all, left = {}, {}
  for _, mark in ipairs(marks) do read[mark] = true end
  for i = 1, pending.n do
    local stamp, holds, id = s[i], c[i] - c[i - 1], f and f[i] or nil
    if holds > 0 then
      local entry, over = {stamp, holds, id}, stamp + holds <= time
      all[#all + 1] = entry
      for _, log in ipairs(over and logs or {}) do
        local j = index_of(log, stamp)
        if j then give_back(log, j, units_of(log, j)) end
      end
      entry.clean = id and read[struct.unpack('>I4', id)]
      if not over or not entry.clean and stamp > time - retention then left[#left + 1] = entry end
    end
  end
  return all, left
end

-- The record as a log of these entries, but for the one of this stamp.
local function record_of(entries, stamp)
  local s, c, f, n = {}, {[0] = 0}, {}, 0
  for _, entry in ipairs(entries) do
    if entry[1] ~= stamp then
      n = n + 1
      s[n], c[n], f[n] = entry[1], c[n - 1] + entry[2], entry[3] or false
    end
  end
  return {s = s, c = c, f = f, n = n, floor = n > 0 and s[n] or 0}
end

-- Take the record, if there is one, off the bound logs, and out of the others what has ended; also where the policy gave
-- up its reservations. Returns the record, with what it still has to say in `left`. `key` is that of the policy's own log.
local function take_record(bound_logs, now, key, field)
  local last, logs, _ = bound_logs[#bound_logs], {}, nil
  if last.storage == -2 then bound_logs[#bound_logs] = nil end
  for k, bound in ipairs(bound_logs) do logs[k] = bound.log end
  if last.storage ~= -2 then
    local former = former_record(logs[1], key, field)
    if former then end_reservations(bound_logs[1].storage < 0 and {logs[1]} or logs, former, {}, now, last.retention) end
    return nil
  end
  _, last.left = end_reservations(logs, last.log, last.limits, now, last.retention)
  return last
end

-- Note that the hit of this stamp holds for `ttl` us.
local function hold(record, stamp, ttl)
  record.left[#record.left + 1] = {stamp, ttl, struct.pack('>I4I4', record.limits[#record.limits], stamp % 2 ^ 32)}
end

-- After the logs were changed, the policy's own first: what the record has to say now. Sets `changed` where that is
-- something else.
local function renew(record, own)
  local left, log = record.left, record.log
  own.reserved = #left > 0
  if #left == log.n and (log.n == 0 or left[log.n][1] == log.s[log.n]) then return end
  record.log, record.changed = record_of(left), true
end
