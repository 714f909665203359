-- Direct: messages are not stored before their handlers have run. They and their keys are locked for as long as that may
-- take, so that another copy waits, and no other message of the key begins.

local function turn(given, keyless)
  if not given.h then return keyless and 'later' or 'now' end
  if first_in_key(given.h) or has_unplaced(given.c) then return 'later' end
  if not given.q then return 'now' end
  local applied = applied_in(given.g) or digits(0)
  if given.q <= applied then return 'stale' end
  return given.before == applied and 'now' or 'later'
end

local function unlock(locks, holder)
  for _, lock in ipairs(locks) do
    if call('GET', key(lock)) == holder then call('DEL', key(lock)) end
  end
end

function F.unlock(a) unlock(a.locks, a.holder) end

function F.begin_direct(a, raw)
  if a.catalog ~= version() then return { stored = {} } end
  local fresh, stored, busy, applied, locks, wanted_keys = {}, {}, {}, {}, {}, {}
  for place, given in ipairs(a.rows) do
    local id = raw[place]
    if not known_seq(given, id) then
      fresh[#fresh + 1] = given
      locks[#locks + 1] = given.lock
      if is_held(locks[#locks]) then return { waits = true } end
    end
    if given.runs and given.h and not wanted_keys[given.h] then
      wanted_keys[given.h] = true
      if is_locked(given.h) or first_in_key(given.h) or has_unplaced(given.c) then
        busy[#busy + 1] = given.h
      else
        locks[#locks + 1] = 'lock:' .. given.h
      end
    end
    if given.g and applied_in(given.g) then applied[given.g] = applied_in(given.g) end
  end
  if #fresh == 0 then return { stored = {} } end
  if a.holder == '' then locks = {} end
  for _, lock in ipairs(locks) do call('SET', key(lock), a.holder, 'PX', math.ceil(a.seconds * 1000)) end
  for _, given in ipairs(fresh) do stored[#stored + 1] = { given.n, number() } end
  return { stored = stored, now = text(NOW), busy = busy, applied = applied, locks = locks }
end

local function enqueue_given(one)
  enqueue(one.seq, {
    u = one.u, h = one.h, p = one.p, q = one.q, g = one.q and counter(one.seq) or nil, o = false,
    s = one.y and 'unhandled' or one.state, t = one.after and NOW + tonumber(one.after) or nil,
    a = one.a, c = 0, r = 0, i = 0, y = one.y,
  })
end

-- Of a batch one message was applied in part: it is dead, and those that have not begun are for a worker.
local function direct_in_part(a, part, why)
  local mine, done, given = set_of(part), {}, {}
  for _, one in ipairs(a.rows) do given[one.seq] = one end
  local reached = false
  for _, seq in ipairs(a.seqs) do
    reached = reached or mine[seq]
    if not reached then
      done[#done + 1] = seq
    else
      local one = given[seq]
      local row = { seq = seq, u = one.u, h = one.h, p = one.p or digits(seq), q = one.q, state = 'ready', a = 0 }
      enqueue_given(row)
      if mine[seq] then partly(seq, row_of(seq), a.worker, a.code_version, why) end
    end
  end
  return done
end

function F.finish_direct(a, raw)
  for place, given in ipairs(a.rows) do
    if known_seq(given, raw[(place - 1) * 4 + 1]) then
      error({ err = 'ONCEWARD CONFLICT a message was stored while a copy of it was processed' })
    end
  end
  for _, lock in ipairs(a.locks) do
    -- The lock of a process that was declared dead is in nobody's way, though it may still be there.
    if call('GET', key(lock)) ~= a.holder or not is_held(lock) then
      error({ err = 'ONCEWARD CONFLICT a message or its key was given to another while it was processed' })
    end
  end
  local at = 1 + 4 * #a.rows
  local part, why = effects(a.commands, raw, at + 4 * #a.outgoing)
  for place, given in ipairs(a.rows) do accept(given, raw, (place - 1) * 4 + 1, given.seq) end
  logged('received', #a.rows)
  unlock(a.locks, a.holder)
  local seqs = part and direct_in_part(a, part, why) or a.seqs
  local done, skips = set_of(seqs), {}
  for _, skip in ipairs(a.skipped) do skips[skip.seq] = skip.reason end
  for _, seq in ipairs(seqs) do
    ended(seq, skips[seq] and 'skip' or 'done', a.worker, a.code_version, false)
    if skips[seq] then say('skip', seq, 'onceward', skips[seq]) end
    local result = a.results[tostring(seq)]
    if result then call('HSET', key('results'), seq, result) end
  end
  if #seqs > 0 then logged('done', #seqs) end
  for place, row in ipairs(a.outgoing) do
    if not part or done[row.x] then store(row, raw, at + (place - 1) * 4) end
  end
  for _, seq in ipairs(a.forget_bodies) do
    if done[seq] then empty_body(seq) end
  end
  for _, one in ipairs(a.queued) do enqueue_given(one) end
  for _, attempt in ipairs(a.attempts) do add_attempt(attempt) end
  for _, one in ipairs(a.effects) do
    for _, name in ipairs(call('SMEMBERS', key('effects:' .. one[1]))) do
      local effect = get('effects', name)
      effect.seq = one[2]
      set('effects', name, effect)
      call('SADD', key('effects:' .. one[2]), name)
    end
    call('DEL', key('effects:' .. one[1]))
  end
  if part then return { part = part, why = why } end
  for _, one in ipairs(a.applied) do apply(one.g, one.q) end
  promote_all(a.leaves)
  keep_positions(a.marks)
  return {}
end

function F.store_claimed(a, raw)
  local given = a.row
  local ours = (not given.h and not a.keyless) or (not a.after_crash and not (given.h and is_locked(given.h)) and turn(given, a.keyless) == 'now')
  local answer = { claimed = ours, now = text(NOW) }
  if a.catalog ~= version() or (ours and call('HEXISTS', key('workers'), a.worker) == 0) then return answer end
  answer.seq = store(given, raw, 1, ours and { w = a.worker, n = a.token, i = a.isolation } or nil)
  if answer.seq then logged('received', 1) end
  return answer
end
