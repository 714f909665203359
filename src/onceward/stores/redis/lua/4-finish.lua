-- Finishing and settling what was claimed: where effects and "done" become one change.

-- What the recorded commands need their keys to be; those that need a number as well are looked at for that, too.
local TYPES = {
  SET = 'any', GETDEL = 'string', DEL = 'any', UNLINK = 'any', EXPIRE = 'any', PEXPIRE = 'any', EXPIREAT = 'any',
  PEXPIREAT = 'any', PERSIST = 'any', SETEX = 'any', PSETEX = 'any', SETNX = 'any', MSET = 'any', APPEND = 'string',
  SETRANGE = 'string', INCR = 'number', DECR = 'number', INCRBY = 'number', DECRBY = 'number', INCRBYFLOAT = 'float',
  HSET = 'hash', HSETNX = 'hash', HDEL = 'hash', HINCRBY = 'hash number', HINCRBYFLOAT = 'hash float', SADD = 'set',
  SREM = 'set', ZADD = 'zset', ZINCRBY = 'zset', ZREM = 'zset', ZREMRANGEBYSCORE = 'zset', ZREMRANGEBYRANK = 'zset',
  LPUSH = 'list', RPUSH = 'list', LPUSHX = 'list', RPUSHX = 'list', LREM = 'list', LTRIM = 'list', XADD = 'stream',
  XDEL = 'stream', XTRIM = 'stream', PFADD = 'string', SETBIT = 'string', GEOADD = 'zset', LPOP = 'list', RPOP = 'list',
  SPOP = 'set',
}

local function type_of(name, types)
  if not types[name] then types[name] = call('TYPE', name).ok end
  return types[name]
end

-- Why a command would fail, as far as that can be known before any of them has run: `types` is what their keys will be
-- by then.
local function objection(command, types)
  local verb, name = string.upper(command[1]), command[2]
  local wanted = TYPES[verb]
  if wanted == 'any' then
    if verb == 'DEL' or verb == 'UNLINK' then
      for place = 2, #command do types[command[place]] = 'none' end
    elseif verb == 'MSET' then
      for place = 2, #command, 2 do types[command[place]] = 'string' end
    elseif string.find(verb, '^P?SET') then
      types[name] = type_of(name, types) == 'none' and 'string' or (verb == 'SETNX' and types[name]) or 'string'
    end
    return nil
  end
  local kind = string.match(wanted, '^%a+')
  local needed = (kind == 'number' or kind == 'float') and 'string' or kind
  local found = type_of(name, types)
  if found ~= 'none' and found ~= needed then
    return verb .. ' needs a ' .. needed .. ', and ' .. name .. ' is a ' .. found
  end
  local value
  if found == 'string' and (kind == 'number' or kind == 'float') then
    value = call('GET', name)
  elseif found == 'hash' and wanted ~= 'hash' then
    value = call('HGET', name, command[3])
  end
  local pattern = string.find(wanted, 'number') and '^%-?%d+$' or nil
  if value and ((pattern and not string.find(value, pattern)) or not tonumber(value)) then
    return verb .. ' needs a number, and the value at ' .. name .. ' is none'
  end
  types[name] = needed
  return nil
end

-- Apply what handlers have recorded. Answers nothing, or which message was applied in part, and why. Whatever is wrong
-- and can be seen before is an error of the call, and then nothing was written.
local function effects(commands, raw, at)
  local types, place = {}, at
  local read = {}
  for _, one in ipairs(commands) do
    local command = {}
    for part = 1, one.n do command[part] = raw[place + part - 1] end
    place = place + one.n
    read[#read + 1] = command
    local wrong = objection(command, types)
    if wrong then error({ err = 'ONCEWARD EFFECT ' .. wrong }) end
  end
  for number_, command in ipairs(read) do
    local answer = redis.pcall(unpack(command))
    if type(answer) == 'table' and answer.err then
      return commands[number_].m, number_ .. ' of ' .. #read .. ', ' .. command[1] .. ' ' .. command[2] .. ': ' .. answer.err
    end
  end
  return nil
end

-- What was recorded outside of any message.
function F.apply(a, raw)
  local part, why = effects(a.commands, raw, 1)
  if part then error({ err = 'ONCEWARD EFFECT what came before it was applied: command ' .. why }) end
end

local function guard(seq, row, worker, token)
  if not carries(row, worker, token) then
    error({ err = 'ONCEWARD GUARD message ' .. seq .. ' is not claimed by worker ' .. worker .. ' any more' })
  end
  return row
end

local function settle(one, row)
  unclaimed(one.seq, row, {
    s = one.state, t = after(one.delay) or false, a = row.a + 1, i = row.c > 0 and row.i or 0,
    h = not one.leaves and row.h or false,
  })
  add_attempt(one.attempt, one.seq)
end

-- It cannot be undone and must not be repeated: a person says what becomes of it.
local function partly(seq, row, worker, code_version, why)
  unclaimed(seq, row, { s = 'dead', t = false, a = row.a + 1 })
  add_attempt({
    attempt = row.a + 1, kind = 'error', charged = true, worker = worker, code_version = code_version,
    error = 'PartlyApplied: command ' .. why, fingerprint = 'PartlyApplied', traceback = cjson.null,
  }, seq)
end

-- Of a group one message was applied in part: those before it are done, it is dead, and those after it keep the claim.
local function finish_in_part(a, rows, part, why)
  local mine, done = set_of(part), {}
  for _, seq in ipairs(a.seqs) do
    if mine[seq] then break end
    done[#done + 1] = seq
  end
  for seq in pairs(mine) do
    if rows[seq] then partly(seq, rows[seq], a.worker, a.code_version, why) end
  end
  return done
end

local function finish(a, raw, bodies)
  local rows, at = {}, 1 + 4 * #a.outgoing
  local found = get_all('queue', a.seqs)
  for place, seq in ipairs(a.seqs) do rows[seq] = guard(seq, found[place], a.worker, a.token) end
  for _, failure in ipairs(a.failures) do guard(failure.seq, row_of(failure.seq), a.worker, a.token) end
  local part, why = effects(a.commands, raw, at)
  local seqs = part and finish_in_part(a, rows, part, why) or a.seqs
  local done, applied = set_of(seqs), set_of(a.applied)
  local skips = {}
  for _, skip in ipairs(a.skipped) do skips[skip.seq] = skip.reason end
  local count = 0
  for _, seq in ipairs(seqs) do
    local row = rows[seq]
    if applied[seq] then advance(row) end
    if not row.o then count = count + 1 end
    ended(seq, skips[seq] and 'skip' or 'done', a.worker, a.code_version, row.o)
    if skips[seq] then say('skip', seq, 'onceward', skips[seq]) end
    if a.results[tostring(seq)] then call('HSET', key('results'), seq, a.results[tostring(seq)]) end
  end
  dequeue_all(seqs, rows, a.worker)
  if count > 0 then logged('done', count) end
  for place, given in ipairs(a.outgoing) do
    if not part or done[given.x] then store(given, raw, (place - 1) * 4 + 1) end
  end
  for _, seq in ipairs(a.forget_bodies) do
    if done[seq] then empty_body(seq) end
  end
  if part then
    for _, row in pairs(rows) do promote(row.h) end
    return { part = part, why = why }
  end
  for _, failure in ipairs(a.failures) do
    local row = row_of(failure.seq)
    if applied[failure.seq] then advance(row) end
    settle(failure, row)
  end
  unclaim(a.worker, a.token, a.given_back)
  local promoted = promote_all(a.keys)
  return { promoted = promoted, claimed = a.claim and take(a.claim, bodies) or nil }
end

function F.finish(a, raw)
  local bodies = {}
  return finish(a, raw, bodies), bodies
end

function F.settle(a)
  local row = row_of(a.settle.seq)
  if not carries(row, a.worker, a.token) then return false end
  if a.settle.leaves then advance(row) end
  settle(a.settle, row)
  promote(a.settle.leaves)
  if a.interrupted then say('interrupt', a.interrupted.seq, a.interrupted.actor, a.interrupted.reason) end
  return true
end

function F.postpone(a)
  local row = row_of(a.seq)
  if not carries(row, a.worker, a.token) or (a.most and row.r >= a.most) then return nil end
  local seconds = math.min(a.delay * 2 ^ math.min(row.r, 20), a.longest)
  unclaimed(a.seq, row, { s = 'retry', r = row.r + 1, t = after(seconds) })
  return seconds
end

function F.put_off(a)
  for _, seq in ipairs(a.seqs) do
    local row = row_of(seq)
    if carries(row, a.worker, a.token) then unclaimed(seq, row, { s = 'retry', t = after(a.seconds) }) end
  end
end

function F.relocate(a)
  local row = row_of(a.seq)
  if not carries(row, a.worker, a.token) then return false end
  describe(a.seq, { key = a.key, aggregate = a.aggregate or false, key_from = 'worker' })
  unclaimed(a.seq, row, { h = a.h, q = a.q or false, g = a.q and counter(a.seq) or false, p = a.q or row.p })
  promote(a.leaves)
  promote(a.h)
  say('move', a.seq, 'onceward', a.reason)
  return true
end

function F.hasten(a)
  local found = {}
  for _, subscription in ipairs(a.subscriptions) do
    local name = key('due:' .. subscription .. '|' .. (a.destination or ''))
    local seqs = call('ZRANGEBYSCORE', name, '(' .. text(NOW), '+inf', 'WITHSCORES', 'LIMIT', 0, a.limit)
    for at = 1, #seqs, 2 do
      local row, last = row_of(seqs[at]), last_attempt(seqs[at])
      if row.s == 'retry' and last and string.sub(last.error, 1, 6) ~= 'Retry:' then
        found[#found + 1] = { tonumber(seqs[at]), row, tonumber(seqs[at + 1]) }
      end
    end
  end
  for _, one in ipairs(sorted(found, a.limit)) do change(one[1], one[2], { t = NOW }) end
  return #found
end
