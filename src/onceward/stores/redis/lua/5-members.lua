-- Processes, messages that came before their consumers, external calls, and polled APIs.

function READ.members(a)
  local found = {}
  for _, kept in ipairs(call('HVALS', key('workers'))) do
    local worker = cjson.decode(kept)
    local until_ = tonumber(call('ZSCORE', key('alive'), worker.worker))
    local named = a.process and (worker.process == a.process or string.sub(worker.process, 1, #a.process + 1) == a.process .. '#')
    if named or (not a.process and until_ < NOW and worker.worker ~= a.worker) then
      found[#found + 1] = { worker.worker, worker.inline, worker.pid, worker.host }
    end
  end
  return found
end

function F.register(a)
  a.worker.started_at = text(NOW)
  call('HSET', key('workers'), a.worker.worker, cjson.encode(a.worker))
  call('ZADD', key('alive'), after(a.worker.lease), a.worker.worker)
end

function F.heartbeat(a)
  local kept = call('HGET', key('workers'), a.worker)
  local worker = kept and cjson.decode(kept)
  if not worker or worker.process ~= a.process then return false end
  call('ZADD', key('alive'), after(a.lease), a.worker)
  if (a.inline and not worker.inline) or a.circuits ~= (worker.circuits or '') then
    worker.inline, worker.circuits = worker.inline or a.inline, a.circuits
    call('HSET', key('workers'), a.worker, cjson.encode(worker))
  end
  return true
end

local function held_by(worker)
  local seqs = {}
  for _, seq in ipairs(call('SMEMBERS', key('held:' .. worker))) do seqs[#seqs + 1] = tonumber(seq) end
  table.sort(seqs)
  return seqs
end

function READ.held(a)
  local found = {}
  for _, seq in ipairs(held_by(a.worker)) do
    local row = row_of(seq)
    found[#found + 1] = { seq = seq, a = row.a, c = row.c, i = row.i, n = row.n }
  end
  return found
end

function READ.tokens(a)
  local found = {}
  for _, seq in ipairs(held_by(a.worker)) do found[#found + 1] = row_of(seq).n end
  return found
end

local function leave_key(seq)
  local row = row_of(seq)
  if not row or row.s ~= 'dead' or row.n or not row.h or not is_first(seq, row) then return false end
  local hash = row.h
  advance(row)
  change(seq, row, { h = false })
  promote(hash)
  return true
end

-- Claims off and the worker gone, in one change; not where what it held is not what was charged for.
function F.bury(a)
  local kept = call('HGET', key('workers'), a.worker)
  if not kept then return true end
  local seqs = held_by(a.worker)
  if #seqs ~= #a.rows then return false end
  for place, one in ipairs(a.rows) do
    if seqs[place] ~= one.seq or row_of(one.seq).n ~= one.n then return false end
  end
  for _, one in ipairs(a.rows) do
    local row = row_of(one.seq)
    unclaimed(one.seq, row, { i = one.i, c = one.c, s = one.dead and 'dead' or row.s, t = not one.dead and row.t or false })
    add_attempt(one.attempt, one.seq)
    local subscription = one.dead and row.u and call('HGET', key('subscriptions'), row.u)
    if subscription and cjson.decode(subscription).on_dead == 'continue' then leave_key(one.seq) end
  end
  call('HDEL', key('workers'), a.worker)
  call('ZREM', key('alive'), a.worker)
  if cjson.decode(kept).inline then  -- perhaps a message without a claim was the cause: store first for a while
    call('HSET', key('meta'), 'crashed_at', text(NOW))
    touch()
  end
  return true
end

function F.deregister(a)
  for _, seq in ipairs(held_by(a.worker)) do unclaimed(seq, row_of(seq)) end
  call('HDEL', key('workers'), a.worker)
  call('ZREM', key('alive'), a.worker)
end

-- Fan-out

function READ.waiting()
  return { version = version(), unhandled = unhandled(), names = names() }
end

function READ.waiting_rows(a)
  local types, subscriptions, passed, found, bodies = set_of(a.types), set_of(a.subscriptions), set_of(a.passed), {}, {}
  local seqs = {}
  for _, group in ipairs(call('HKEYS', key('unplaced'))) do
    local kind, subscription = string.match(group, '^(.*)|(%d*)$')
    subscription = tonumber(subscription)
    if (subscription and subscriptions[subscription]) or (not subscription and types[kind]) then
      for _, seq in ipairs(call('ZRANGE', key('unplaced:' .. group), 0, a.limit + #a.passed)) do
        if not passed[tonumber(seq)] then seqs[#seqs + 1] = tonumber(seq) end
      end
    end
  end
  table.sort(seqs)
  for place = 1, math.min(#seqs, a.limit) do
    local seq = seqs[place]
    local row, kept, stored = row_of(seq), get('bodies', seq), get('ledger', seq)
    found[place] = {
      seq = seq, p = row.p, u = row.u, h = row.h, consumer = stored.c, due = kept[4] and text(kept[4]) or nil,
    }
    for _, part in ipairs({ kept[1], kept[2] or '', stored.i, stored.h }) do bodies[#bodies + 1] = part end
  end
  return found, bodies
end

-- The row of another consumer: a new one, or the one that it has.
local function heir(one, given, raw, at)
  local seq = store(given, raw, at)
  if seq then return seq end
  seq = known_seq(given, raw[at])
  local known, row, other = get('ledger', seq), row_of(seq), one.mismatch
  if known.h == one.unknown then return seq end  -- imported: a copy, whatever its bytes are
  if known.h ~= raw[one.at] or known.th ~= other.th then
    local moved = {}
    for name, value in pairs(other) do moved[name] = value end
    moved.seq = seq
    quarantine(moved, raw[one.at], raw[one.at + 1])
  elseif row and row.s == 'unhandled' then
    -- Another service has it too, and it may have come there later.
    local from = row.q or digits(seq)
    if digits(one.seq) < from then from = digits(one.seq) end
    change(seq, row, { p = one.place < row.p and one.place or row.p, q = from })
  end
  return seq
end

-- The service's own row goes; its copies, cases and audit lines belong to the row that replaces it.
local function hand_on(seq, to, row)
  local copies = get('copies', seq)
  if copies then
    local known = get('copies', to)
    set('copies', to, { n = copies.n + (known and known.n or 0), first = copies.first, last = (known or copies).last })
    call('HDEL', key('copies'), seq)
  end
  for _, case in ipairs(call('ZRANGE', key('cases:' .. seq), 0, -1)) do
    local kept = get('cases', case)
    if kept.seq == seq then kept.seq = to end
    if kept.accepted == seq then kept.accepted = to end
    set('cases', case, kept)
    call('ZADD', key('cases:' .. to), case, case)
  end
  for _, line in ipairs(call('ZRANGE', key('lines:' .. seq), 0, -1)) do
    local kept = get('audit', line)
    kept.seq = to
    set('audit', line, kept)
    call('ZADD', key('lines:' .. to), line, line)
  end
  call('DEL', key('cases:' .. seq), key('lines:' .. seq))
  local stored = get('ledger', seq)
  call('HDEL', key('ids'), identity(stored, stored.i))
  call('HDEL', key('ledger'), seq)
  dequeue(seq, row)
  forget_body(seq)
end

function F.place(a, raw)
  if a.catalog ~= version() then return { outdated = true } end
  local placed, at = {}, 1
  for _, one in ipairs(a.placements) do
    local row, first = row_of(one.seq), nil
    one.at = at
    at = at + 2
    local usable = row and row.s == 'unhandled'
    for _, given in ipairs(one.copies) do
      local its = usable and heir(one, given, raw, at)
      first = first or its
      at = at + 4
    end
    if usable then
      local own = one.adoption
      if own then
        describe(one.seq, { key = own.key or false, aggregate = own.aggregate or false })
        local due = not own.y and own.due and tonumber(own.due) or false
        change(one.seq, row, {
          s = own.y and 'unhandled' or due and 'scheduled' or 'ready', t = due, y = own.y or false, u = own.u or false, h = own.h or false,
          q = own.q or false, g = own.q and counter(one.seq) or false, p = own.p or row.p, r = 0,
        })
      else
        hand_on(one.seq, first, row)
      end
      promote_all(one.keys)
      placed[#placed + 1] = one.seq
    end
  end
  return { placed = placed }
end

-- External calls

function F.intend(a)
  local known = get('effects', a.key)
  if not known then
    set('effects', a.key, { seq = a.seq, name = a.name, worker = a.worker, started = NOW, done = false })
    call('SADD', key('effects:' .. a.seq), a.key)
    call('ZADD', key('open effects'), NOW, a.key)
    return nil
  end
  -- It belongs to whoever asks now: the attempt that began it may have been undone with its number.
  call('SREM', key('effects:' .. known.seq), a.key)
  call('SADD', key('effects:' .. a.seq), a.key)
  known.seq = a.seq
  set('effects', a.key, known)
  return { done = known.done, result = known.result, age = since(known.started) }
end

local function end_effect(name, known, result)
  known.done, known.result, known.finished = true, result, NOW
  set('effects', name, known)
  call('ZREM', key('open effects'), name)
end

local function drop_effect(name, known)
  call('HDEL', key('effects'), name)
  call('SREM', key('effects:' .. known.seq), name)
  call('ZREM', key('open effects'), name)
end

function F.record_effect(a)
  local known = get('effects', a.key)
  if known and not known.done then end_effect(a.key, known, a.result) end
end

function F.forget_intent(a)
  local known = get('effects', a.key)
  if known and not known.done then drop_effect(a.key, known) end
end

-- Polled APIs

function F.take_poll(a)
  local poll = get('polls', a.source) or { number = 0, failures = 0, due = NOW }
  if poll.due > NOW and not (a.early and not poll.token) then
    set('polls', a.source, poll)
    return { wait = -since(poll.due) }
  end
  poll.token, poll.due = a.token, after(a.patience)
  set('polls', a.source, poll)
  return { cursor = poll.cursor, number = poll.number, failures = poll.failures }, { poll.hash or nil }
end

-- Whose turn it is; `moved` where a commit whose answer was lost has moved the cursor.
local function standing(a)
  local poll = get('polls', a.source)
  if not poll or poll.token ~= a.token then return 'lost' end
  if poll.number ~= a.number then return poll.number == a.next and 'moved' or 'lost' end
  return 'ours', poll
end

READ.standing = function(a) return (standing(a)) end

function F.keep_poll(a, raw)
  local whose, poll = standing(a)
  if whose == 'ours' then
    poll.cursor, poll.number, poll.hash, poll.due = a.cursor, a.next, raw[1], after(a.patience)
    set('polls', a.source, poll)
  end
  return whose
end

function F.end_poll(a)
  local poll = get('polls', a.source)
  if poll and poll.token == a.token then
    poll.failures, poll.error, poll.due, poll.ended, poll.token = a.failures, a.error, after(a.wait), NOW, nil
    set('polls', a.source, poll)
  end
end
