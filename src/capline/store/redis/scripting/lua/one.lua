--@head
-- One attempt on the logs of one subject: decide, peek, take a slot, charge, reserve or move a slot. The script of nearly
-- every online request, so it takes a fast path first and loads the general rule only if none applies.
--
-- KEYS   the key of each of its logs: the subject's, or its bucket's
-- ARGV   1  the terms: bytes of a stamp[1] limits[2] bytes of a text[1] retention_us[8] grace_ms[8] least quota[8]
--           its number[1] widest window in us[8], then quota[8] and window in us[8] of each limit, then the text: the ms
--           that a key lives after a hit of now. A least quota of 0: the number is a kind of flat.lua (0: none), whose
--           limits are four numbers each, and behind the text are the terms in full, msgpack, as attempt.lua takes
--           them. The number's bit 64: the log may begin a next form; 32: before the text come the units of each limit
--           that must stay free[8].
--        2  empty or absent: decide one unit. Else mode[1] cost[7] max_wait_us[8] not_before_us[8], signed, and the
--           id[8], if there is one. Mode: 0 decide, 1 peek, 2 take a slot, 3 charge, 4 reserve, 5 move a slot.
--           max_wait: -1 for no bound; to reserve, how long; to move what has no id, its stamp. not_before: a slot is
--           at least so far from now.
--        3  the field in the bucket; empty or absent: keys of their own
--        4  now in us; empty or absent: the server's clock
-- Reply: that of attempt.lua for one row, with the state of each limit. To charge and to reserve there is kind 5 too: more
--        units than the log can count.
-- Invariant: the answer is the one that the general rule gives. Complexity: O(limits), two to four commands.

local static, asked, field, now = ARGV[1], ARGV[2] or '', ARGV[3] or '', ARGV[4]
--@include prelude
local mode, cost, max_wait, not_before, id = 0, 1, -1, 0, nil
if asked ~= '' then
  mode, cost, max_wait, not_before = unpack_at('>BI7i8i8', asked)
  if #asked > 24 then id = sub(asked, 25) end
end
local key, slot, last_stamp, with_states = KEYS[1], mode == 2, now, true
local stamp_bytes, many, text, retention, grace, least, number, widest, quota, window =
  unpack_at('>BI2BI8I8I8BI8I8I8', static)
local new, kind, limit, remaining, when, reset, states = false, 3, 255, 0, 0, 0, ''
local plain = least > 0 and cost == 1 and not id and (mode == 0 or slot) and not_before == 0
local limits, judged, facts, begins_next, v, bytes
local path, free   -- of flat.lua
if plain then
  --@include stored
  if type(v) == 'table' then
    new, plain = nil, false   -- an error: a key of another kind
  else
    --@include unit
    if new == false and v and not bytes and sub(v, 2, 8) == '\255\255\255\255\255\255\255' then
      path, free = 7, judged ~= limits   -- a log of costs, or of ids
    end
  end
  if kind == 1 and when == now and field == '' then
    local ttl = sub(static, 38 + 8 * facts, 37 + 8 * facts + text)
    if bytes then
      call('SETRANGE', key, bytes, new)
      call('PEXPIRE', key, ttl)
    else
      call('SET', key, new, 'PX', ttl)
    end
    return pack('>I8BB', now, limit, remaining < 255 and remaining or 255) .. states
  end
elseif mode < 3 and not_before == 0 then
  path, free = least > 0 and 7 or number % 32, number % 64 >= 32
end
if path then
  --@include flat
  local said = flat(call, unpack_at, pack, byte, sub, floor, now, mode, static, cost, field, id or '', stamp_bytes, many, text,
    retention, grace, path, free, 0)
  if said then return said end
end

if slot and bytes and plain and facts == 2 and quota > 1 and quota <= SHORT and byte(v) == 75 then
  -- A slot behind a crowd on a long log, under one limit: the unit at the quota's edge says when. Else long.lua.
  local from, far = -14 * (quota + 1), quota > 64   -- far: the bytes between cost more than a command
  local tail = call('GETRANGE', key, from, far and from + 41 or '-1')
  local newest = far and call('GETRANGE', key, '-21', '-1') or sub(tail, -21)
  local seen, first, _, oldest = unpack_at('>I7I7I7I7', v, 2)
  local _, before, at, here, after, own = unpack_at('>I7I7I7I7I7I7', tail)
  local below, top, total = unpack_at('>I7I7I7', newest)
  local time, n = seen > now and seen or now, (bytes - 22) / 14
  when = at + window
  if n % 1 == 0 and (n % 64 > 0 or not begins_next and oldest > now - retention) and seen < MOST_UNITS and first == 0
    and before == total - quota and here == before + 1 and own > here and total > below and total < MOST_UNITS
    and top > time and when > top and when < MOST_UNITS and (max_wait < 0 or when - now <= max_wait) then
    if time > seen then call('SETRANGE', key, '1', pack('>I7', time)) end
    call('SETRANGE', key, bytes, pack('>I7I7', when, total + 1))
    call('PEXPIRE', key, floor((when + retention - now + 999) / 1000) + grace)
    return pack('>I8BBBBI8I8I8I8I8I8', now, 255, 1, 1, 0, 0, when, when + widest - now, 0, after + window - now, when + window - now)
  end
end

--@include blocks
if plain and bytes then
  --@include long
  new, kind, limit, remaining, when, reset, states = long_unit(key, bytes, limits, widest, slot and max_wait, v, judged)
elseif plain and slot and (kind ~= 1 or max_wait >= 0 and when - now > max_wait) then
  --@include queued
  -- A slot that is free now is the same as a decision.
  new, kind, limit, remaining, when, reset, states = queued_unit(v, limits, widest, max_wait)
end

local function ttl_ms()
  return lifetime(last_stamp, retention, now, grace)
end

if new == nil and kind == 0 then prolong(key, now + reset - widest, retention, now, grace) end
if new == false then
  if least > 0 and not limits then
    --@include stored
  end
  if begins_next == nil then begins_next = number >= 64 end
  local width, values, long = #KEYS, {v}, bytes
  for k = 1, least > 0 and 0 or width do
    if field ~= '' then values[k] = redis.pcall('HGET', KEYS[k], field) else values[k] = redis.pcall('GETRANGE', KEYS[k], '0', LONG_END) end
    if values[k] == '' then values[k] = false end
    long = long or field == '' and type(values[k]) == 'string' and #values[k] >= LONG_BYTES
  end
  local function say(...) kind, limit, remaining, when, reset = ... end
  local function add_states(of_row) states = of_row end
  --@include general
  local term
  if least > 0 then
    term = {{limits}, [9] = judged ~= limits and {judged}}
  else
    local each = number % 32 > 0 and 32 or 16
    if number % 64 >= 32 then each = each + 8 end
    term = cmsgpack.unpack(sub(static, 38 + each * many + text))
  end
  states = ''
  local written = general(values, 1, long, term, field)
  for k = 1, written and width or 0 do
    if written[k] == 0 then
      remove(KEYS[k], field)
    elseif written[k] and written[k] ~= '' then
      put_value(KEYS[k], field, nil, written[k], ttl_ms(), grace)
    end
  end
end
if new then put_value(key, field, bytes, new, ttl_ms(), grace) end
if kind == 1 and limit and when == (mode == 1 and 2 ^ 60 or now) and reset == widest then
  return pack('>I8BB', now, limit, remaining < 255 and remaining or 255) .. states
end
return pack('>I8BBBBI8I8I8', now, 255, kind, kind, limit or 255, remaining, when, reset) .. states
