-- claim: give the worker a batch: the one that it already owns, else one whose lease has ended, else one that is due.
--
-- ARGV   1 worker; 2 expiry in ms; 3 length of the lease in ms; 4 the most claims of one batch; 5 campaign
-- Reply  {'batch', number, fence, rows, data, decided or false, outcome or false, run id}
--        {'aside', number, why}     a batch that became a dead letter in this call; call again
--        {'none', batches in work}  nothing to claim now, or it is paused or not due
--        {'over'}                   finished, cancelled with nothing left to give back, or not there
--
-- A repeated call gives the same batch, under the same fence; any other claim raises the fence. A batch that was
-- claimed too often, without those that gave it back, becomes a dead letter. O(log batches); of a cancelled campaign
-- O(batches) once.

local worker, campaign = ARGV[1], ARGV[5]
local found = redis.call('HMGET', run, 'finished', 'run_id', 'paused', 'due_us', 'cancelled', 'queued', 'batches')
if not found[2] or found[1] then
  redis.call('ZREM', open, campaign)
  redis.call('ZREM', next_of_all, campaign)
  return {'over'}
end
local claimed_us, is_cancelled, is_partial = now_us(), found[5], partial(found[5], found[6], found[7])

local function none()
  plan(campaign)
  return redis.call('HEXISTS', run, 'finished') == 1 and {'over'} or {'none', redis.call('ZCARD', held)}
end
if not is_partial and (found[3] or not is_cancelled and tonumber(found[4]) > claimed_us) then
  return none()
end

local function pick()
  return redis.call('HGET', steps, 'owns:' .. worker)
    or redis.call('ZRANGE', held, '-inf', text(claimed_us), 'BYSCORE', 'LIMIT', 0, 1)[1]
    or redis.call('ZRANGE', waiting, '-inf', is_cancelled and 'inf' or text(claimed_us), 'BYSCORE', 'LIMIT', 0, 1)[1]
end

-- Of a cancelled campaign those that are not decided go.
local number = pick()
while number and is_cancelled and redis.call('HEXISTS', steps, number .. ':decided') == 0 do
  let_go(number)
  redis.call('ZREM', waiting, number)
  number = pick()
end
-- The batch that prepares comes before all others.
if not number or is_partial and number ~= PREPARE then
  return none()
end

local batch = redis.call('HMGET', steps, number .. ':claims', number .. ':fence', number .. ':rows', number .. ':data',
  number .. ':decided', number .. ':outcome', number .. ':error', 'owns:' .. worker)
local fence = batch[2]
if batch[8] ~= number then
  if tonumber(batch[1] or 0) >= tonumber(ARGV[4]) then
    local why = 'claimed ' .. batch[1] .. ' times and never settled'
      .. (batch[7] and '; last error: ' .. batch[7] or '')
    set_aside(number, why)
    plan(campaign)
    return {'aside', number, why}
  end
  let_go(number)
  redis.call('ZREM', waiting, number)
  fence = raise_fence(number)
  redis.call('HINCRBY', steps, number .. ':claims', 1)
end

-- Whether a worker is at work on another batch: the time up to now was work.
local function is_in_work()
  local pairs_of = redis.call('ZRANGE', held, 0, 15, 'WITHSCORES')
  for place = 1, #pairs_of, 2 do
    local lease_us = 1000 * redis.call('HGET', steps, pairs_of[place] .. ':lease')
    if pairs_of[place] ~= number and claimed_us - (pairs_of[place + 1] - lease_us) < SILENT_US then
      return true
    end
  end
  return false
end

if is_in_work() then
  worked(claimed_us)
end
redis.call('HSET', run, 'last_us', text(claimed_us))
hold(number, worker, ARGV[3], claimed_us)
plan(campaign)
return {'batch', number, fence, batch[3], batch[4], batch[5], batch[6], found[2]}
