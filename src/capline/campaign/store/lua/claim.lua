-- claim: give the consumer a batch: the one that it already owns, else one whose lease has expired, else a new one.
--
-- ARGV   1 consumer; 2 expiry in ms; 3 length of a lease in ms; 4 the most claims of one batch; 5 campaign
-- Reply  {'batch', entry id, entry's fields, decided or false, outcome or false, run id}
--        {'aside', number, why}     a batch that became a dead letter in this call; call again
--        {'none', batches in work}  nothing to claim now, or it is paused or not due
--        {'over'}                   finished, cancelled with nothing left to give back, or not there
--
-- A repeated call gives the same batch. The group counts the claims of a batch, without those that were given back. A
-- batch that was claimed too often becomes a dead letter: it may be what kills the workers. O(batches in work).

local consumer = ARGV[1]

local found = redis.call('HMGET', run, 'finished', 'run_id', 'paused', 'due_us', 'cancelled')
if not found[2] or found[1] then
  redis.call('ZREM', open, ARGV[5])
  return {'over'}
end
local is_cancelled = found[5]
if found[3] or not is_cancelled and tonumber(found[4] or 0) > tonumber(now_us()) then
  return {'none', redis.call('XPENDING', batches, 'workers')[1]}
end

-- The batch that it owns, or whose lease has expired. Of a cancelled campaign those that are not decided go.
local function leased()
  while true do
    local pending = redis.call('XPENDING', batches, 'workers', '-', '+', 1, consumer)[1]
      or redis.call('XPENDING', batches, 'workers', 'IDLE', ARGV[3], '-', '+', 1)[1]
    if not pending or not is_cancelled
      or redis.call('HEXISTS', steps, string.match(pending[1], '-(%d+)$') .. ':decided') == 1 then
      return pending
    end
    redis.call('XACK', batches, 'workers', pending[1])
    redis.call('XDEL', batches, pending[1])
  end
end

local entry
local pending = leased()
if pending and pending[2] == consumer then
  entry = redis.call('XRANGE', batches, pending[1], pending[1])[1]
else
  if pending then
    entry = redis.call('XCLAIM', batches, 'workers', consumer, 0, pending[1])[1]
  elseif is_cancelled then
    local in_work = redis.call('XPENDING', batches, 'workers')[1]
    if in_work > 0 then
      return {'none', in_work}
    end
    redis.call('HSET', run, 'finished', now_us())
    redis.call('ZREM', open, ARGV[5])
    return {'over'}
  else
    local read = redis.call('XREADGROUP', 'GROUP', 'workers', consumer, 'COUNT', 1, 'STREAMS', batches, '>')
    if not read then
      return {'none', redis.call('XPENDING', batches, 'workers')[1]}
    end
    entry = read[1][2][1]
  end
end

local id = pending and pending[1] or entry[1]
local number = string.match(id, '-(%d+)$')
local why
if not entry then
  why = 'its entry is gone from the stream'
elseif pending and tonumber(pending[4]) >= tonumber(ARGV[4]) and pending[2] ~= consumer then
  local last = redis.call('HGET', steps, number .. ':error')
  why = 'claimed ' .. pending[4] .. ' times and never settled' .. (last and '; last error: ' .. last or '')
end
if why then
  redis.call('HSET', aside, number, why)
  redis.call('XACK', batches, 'workers', id)
  redis.call('XDEL', batches, id)
  redis.call('PEXPIRE', aside, ARGV[2])
  return {'aside', number, why}
end

-- Whether a worker is at work on another batch: the time up to now was work.
local function is_in_work(number)
  for _, held in ipairs(redis.call('XPENDING', batches, 'workers', '-', '+', 16)) do
    if held[2] ~= 'nobody' and held[3] < SILENT_MS and string.match(held[1], '-(%d+)$') ~= number then
      return true
    end
  end
  return false
end

local claimed_us = now_us()
redis.call('HSET', steps, number .. ':by', consumer, number .. ':since', claimed_us)
if is_in_work(number) then
  worked(claimed_us)
end
redis.call('HSET', run, 'last_us', claimed_us)
renew_expiry()
local step = redis.call('HMGET', steps, number .. ':decided', number .. ':outcome')
return {'batch', id, entry[2], step[1], step[2], found[2]}
