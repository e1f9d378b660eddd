-- Reservations: capline.window.reservation in Lua. Included after log.lua; runs nothing by itself.
--
-- Where a policy has reservations, the last of its keys is the record of what is pending (`pending`), kept as a log:
-- the stamp of a reserved hit, and in place of its units for how many us it holds; 0 once it is committed. Its `storage`
-- (rule.lua) is -2; -3 if the policy has more logs than those that are read, for its channels.
-- Invariant: a log is read as it is at its time, without the hits whose reservation has ended. Complexity: O(pending).

-- Take the hits whose reservation has ended out of these logs, the policy's own first.
local function end_reservations(logs, pending, now)
  local time, s, c = math.max(now, logs[1].floor), pending.s, pending.c
  for i = 1, pending.n do
    local holds = c[i] - c[i - 1]
    if holds > 0 and s[i] + holds <= time then
      for _, log in ipairs(logs) do
        local j = index_of(log, s[i])
        if j then give_back(log, j, units_of(log, j)) end
      end
    end
  end
end

-- Take the record, if there is one, off the bound logs, and out of the others what has ended. Returns it.
local function take_record(bound_logs, now)
  local last = bound_logs[#bound_logs]
  if last.storage > -2 then return nil end
  bound_logs[#bound_logs] = nil
  local logs = {}
  for k, bound in ipairs(bound_logs) do logs[k] = bound.log end
  end_reservations(logs, last.log, now)
  return last
end

-- Note that the hit of this stamp holds for `ttl` us, and forget the oldest entries that say nothing any more. `alone`:
-- there are no logs but those that were read, so what has ended by `time` is given back in all of them.
local function hold(pending, stamp, ttl, time, horizon, alone)
  local s, c, m = pending.s, pending.c, 0
  while m < pending.n do
    local at, holds = s[m + 1], c[m + 1] - c[m]
    if at > horizon and holds > 0 and not (alone and at + holds <= time) then break end
    m = m + 1
  end
  if m > 0 and (not pending.key or m * 2 >= pending.n) then forget(pending, m) end
  record(pending, stamp, ttl, stamp)
end
