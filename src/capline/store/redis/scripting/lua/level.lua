-- The level of gcra, which is the units of its log's only hit: a unit raises it by `rise`, each us lowers it by `fall`,
-- and `brim` is a whole quota. Included by the scripts after log.lua; runs nothing by itself.
-- Invariant: every number is whole and below 2^53.

-- The level `level` as of the first instant at which it is not past the quota: that instant, and the level then. So a
-- level past the quota is not trimmed before it has sunk.
local function level_settled(at, level, rise, fall, brim)
  if level <= brim then return at, level end
  local later = math.ceil((level - brim) / fall)
  return at + later, level - later * fall
end

-- The stamp and the level of the log's hit after so many more units at this instant; nil for more than can be counted.
local function level_raised(log, at, units, rise, fall, brim)
  local last = log.n > 0 and log.s[log.n] or -1
  local start, level, own = math.max(at, last), 0, newest(log)
  if own ~= -1 then level = math.max(0, units_after(log, own - 1) - math.max(0, start - own) * fall) end
  if units > math.floor((MOST_UNITS - 1 - level) / rise) then return nil end
  local stamp, rest = level_settled(start, level + units * rise, rise, fall, brim)
  if stamp >= MOST_UNITS then return nil end
  return stamp, rest
end

-- The stamp and the level of the log's hit once so many units are taken off at this instant. A stamp ahead moves back,
-- at most to this instant; not where there are others before it, of another algorithm.
local function level_lowered(log, at, units, rise, fall, brim)
  local last = log.s[log.n]
  local level, off, ahead = units_of(log, log.n), units * rise, last - at
  if log.n == 1 and ahead > 0 and ahead <= math.floor((MOST_UNITS - 1 - level) / fall) then
    return level_settled(at, math.max(0, level + ahead * fall - off), rise, fall, brim)
  end
  return last, math.max(0, level - off)
end
