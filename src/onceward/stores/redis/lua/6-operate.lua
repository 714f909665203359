-- What operators do, each together with its line in the audit; and what keeps the tables small.

local function described_of(seq)
  local kept = get('bodies', seq)
  return kept and cjson.decode(kept[1]) or nil, kept
end

function READ.key_of(a)
  local row = row_of(a.seq)
  if not row then return nil end
  local body = described_of(a.seq)
  return {
    h = row.h, key = body.key, aggregate = body.aggregate, consumer = names()[tostring(body.consumer)], o = row.o,
    destination = body.destination, q = row.q,
  }
end

-- Make a dead message ready.
local function returned(a)
  local row = row_of(a.seq)
  if not row or row.s ~= 'dead' or row.n or row.h ~= a.seen then return 'not dead' end
  if a.counted then
    local numbers = counter(a.seq)
    local running = a.h and call('SCARD', key('kept:' .. a.h)) > 0
    if not numbers or not row.q or applied_in(numbers) ~= row.q or running then return 'passed' end
    call('HSET', key('progress'), numbers, one_less(row.q))
  end
  change(a.seq, row, { s = 'ready', a = 0, c = 0, r = 0, h = a.h or false })
  return 'done'
end

function F.redrive(a)
  local outcome = returned(a)
  if outcome == 'done' then say('redrive', a.seq, a.actor, a.reason) end
  return outcome
end

-- A body is remembered as the message's own: whatever has it is a copy. What was decided about it stays.
local function keep_revision(other, hash, body)
  quarantine(other, hash, body)
  for _, kept in ipairs(call('ZRANGE', key('cases:' .. other.seq), 0, -1)) do
    local case = get('cases', kept)
    if case.seq == other.seq and case.hash == hash and case.th == other.th then
      case.copies, case.resolution = case.copies - 1, case.resolution or 'revision'
      set('cases', kept, case)
      call('ZREM', key('open cases'), kept)
    end
  end
end

function F.revise(a, raw)
  local row = row_of(a.seq)
  if not row or row.n or (row.s ~= 'dead' and row.s ~= 'retry') then return 'not dead' end
  local body, kept = described_of(a.seq)
  if (kept[2] or '') ~= raw[1] or (body.headers ~= cjson.null and body.headers or '') ~= a.seen_headers then return 'changed' end
  if row.s == 'retry' then
    change(a.seq, row, { s = 'ready', t = false, a = 0, c = 0, r = 0 })
  else
    local outcome = returned(a)
    if outcome ~= 'done' then return outcome end
  end
  describe(a.seq, { headers = a.headers or false })
  kept = get('bodies', a.seq)
  if kept[3] then call('HDEL', key('blobs'), kept[3]) end
  if a.blob then call('HSET', key('blobs'), a.blob, a.seq) end
  set('bodies', a.seq, { kept[1], raw[2], a.blob or false, kept[4] })
  for place, one in ipairs(a.kept) do keep_revision(one, raw[2 * place + 1], raw[2 * place + 2]) end
  say('edit', a.seq, a.actor, a.reason)
  return 'done'
end

function F.discard(a)
  local row = row_of(a.seq)
  if not row or row.n or not is_first(a.seq, row) or (a.scheduled and row.s ~= 'scheduled') then return false end
  if row.h then advance(row) end
  local hash, outgoing = row.h, row.o
  dequeue(a.seq, row)
  ended(a.seq, 'discard', nil, nil, outgoing)
  promote(hash)
  say('discard', a.seq, a.actor, a.reason)
  return true
end

function F.make_due(a)
  local row = row_of(a.seq)
  if not row or row.n or (row.s ~= 'retry' and row.s ~= 'scheduled') or (row.t or 0) <= NOW then return false end
  change(a.seq, row, { t = NOW })
  local kept = get('bodies', a.seq)
  if kept[4] then
    kept[4] = NOW
    set('bodies', a.seq, kept)
  end
  say('hasten', a.seq, a.actor, a.reason)
  return true
end

function F.unblock(a)
  if not leave_key(a.seq) then return false end
  say('unblock', a.seq, a.actor, a.reason)
  return true
end

-- Whether its message is running; one that is processed inline is not stored yet.
local function effect_may_run(effect, patience)
  if call('HEXISTS', key('ledger'), effect.seq) == 1 then
    local row = row_of(effect.seq)
    return row ~= nil and row.n ~= nil
  end
  return call('HEXISTS', key('workers'), effect.worker) == 1 and since(effect.started) < patience
end

function F.settle_effect(a)
  local effect = get('effects', a.key)
  if not effect or effect.done or effect_may_run(effect, a.patience) then return false end
  if a.result then end_effect(a.key, effect, a.result) else drop_effect(a.key, effect) end
  say(a.result and 'effect happened' or 'effect did not happen', a.seq, a.actor, a.reason)
  return true
end

local function case_of(number_, bodies)
  local case = get('cases', number_)
  if not case or case.resolution then return nil end
  local first, known = get('ledger', case.seq), names()
  local body, kept = described_of(case.seq)
  for _, part in ipairs({ case.hash, case.body or '', first.i, first.h, kept and kept[2] or '' }) do bodies[#bodies + 1] = part end
  return {
    case = tonumber(number_), seq = case.seq, type = case.type, version = case.version, headers = case.headers,
    copies = case.copies, first_at = text(case.first), last_at = text(case.last), source = known[tostring(first.s)],
    consumer = known[tostring(first.c)], first_id = body and body.id, key = case.key, first_headers = body and body.headers,
    first_type = body and body.type, first_version = body and body.version, position = case.position,
    has_body = kept and kept[2] and true or false, due = case.at and text(case.at) or nil,
  }
end

function READ.case(a)
  local bodies = {}
  return case_of(a.case, bodies), bodies
end

function READ.quarantined(a)
  local found, bodies = {}, {}
  for _, one in ipairs(call('ZRANGE', key('open cases'), 0, a.limit - 1)) do found[#found + 1] = case_of(one, bodies) end
  return found, bodies
end

local function drop_case(number_, case)
  call('HDEL', key('cases'), number_)
  call('ZREM', key('all cases'), number_)
  call('ZREM', key('open cases'), number_)
  call('ZREM', key('cases:' .. case.seq), number_)
end

function F.resolve(a, raw)
  if a.row and a.catalog ~= version() then return { state = 'outdated' } end
  local case = get('cases', a.case)
  if not case or case.resolution then return { state = 'closed' } end
  local accepted = a.row and (store(a.row, raw, 1) or known_seq(a.row, raw[1])) or nil
  if a.resolution == 'discard' then
    drop_case(a.case, case)
  else
    case.resolution, case.accepted = a.resolution, accepted
    set('cases', a.case, case)
    call('ZREM', key('open cases'), a.case)
    if accepted then call('ZADD', key('cases:' .. accepted), a.case, a.case) end
  end
  say(a.resolution == 'discard' and 'discard-mismatch' or a.resolution, a.seq, a.actor, a.reason)
  return { state = 'resolved', accepted = accepted }
end

function F.keep_first(a)
  local count, known = 0, names()
  for _, one in ipairs(call('ZRANGE', key('open cases'), 0, -1)) do
    local case = get('cases', one)
    local first, body = get('ledger', case.seq), nil
    if count < a.limit and case.hash == first.h and known[tostring(first.s)] == a.source and case.type == a.type then
      case.resolution = 'keep-first'
      set('cases', one, case)
      call('ZREM', key('open cases'), one)
      say('keep-first', case.seq, a.actor, a.reason)
      count = count + 1
    end
  end
  return count
end

function F.record_reading(a)
  if call('HEXISTS', key('ledger'), a.seq) == 0 then return false end
  say('read', a.seq, a.actor, a.reason)
  return true
end

function F.sign_out(a) call('SET', key('signed out:' .. a.session), 1, 'PX', math.ceil(a.seconds * 1000)) end

READ.is_signed_out = function(a) return call('EXISTS', key('signed out:' .. a.session)) == 1 end

-- Retention

function F.take_turn(a)
  local turn = call('HGET', key('turns'), a.task)
  if turn and tonumber(turn) > NOW then return false end
  call('HSET', key('turns'), a.task, text(after(a.every)))
  return true
end

function F.give_turn(a) call('HSET', key('turns'), a.task, text(NOW)) end

-- The next numbers that a table has, from one on: answers also where to go on.
local function next_of(table_name, from, limit)
  local found, last = {}, tonumber(call('GET', key('numbers')) or 0)
  local seq = math.max(from + 1, tonumber(call('HGET', key('meta'), 'first ' .. table_name) or 1))
  while seq <= last and #found < limit do
    local wanted = {}
    for place = 0, math.min(499, last - seq) do wanted[#wanted + 1] = seq + place end
    for place, kept in ipairs(call('HMGET', key(table_name), unpack(wanted))) do
      if kept and #found < limit then found[#found + 1] = wanted[place] end
    end
    seq = seq + 500
  end
  return found
end

-- Nothing unfinished, dead or in an open case.
local function is_settled(seq)
  if call('HEXISTS', key('queue'), seq) == 1 then return false end
  for _, one in ipairs(call('ZRANGE', key('cases:' .. seq), 0, -1)) do
    local case = get('cases', one)
    if case.seq == seq and not case.resolution then return false end
  end
  return true
end

local function forget_attempts(seq)
  for _, one in ipairs(call('LRANGE', key('attempts:' .. seq), 0, -1)) do
    if cjson.decode(one).charged then counted('failures', -1) end
  end
  call('DEL', key('attempts:' .. seq))
end

local function must_stay(seq, oldest, archive_first)
  local ended_ = get('ends', seq)
  if ended_ and ended_.at >= oldest then return true end
  for _, line in ipairs(call('ZRANGE', key('lines:' .. seq), 0, -1)) do
    if get('audit', line).at >= oldest then return true end
  end
  if archive_first and call('HEXISTS', key('bodies'), seq) == 1 then return true end
  for _, one in ipairs(call('SMEMBERS', key('effects:' .. seq))) do
    if not get('effects', one).done then return true end
  end
  for _, one in ipairs(call('ZRANGE', key('cases:' .. seq), 0, -1)) do
    local case = get('cases', one)
    if case.seq == seq and case.accepted and call('HEXISTS', key('ledger'), case.accepted) == 1 then return true end
  end
  return false
end

-- Forget a message and everything about it, but for lines about erasure.
local function forget(seq)
  local row, ended_, copies = get('ledger', seq), get('ends', seq), get('copies', seq)
  call('HDEL', key('ids'), identity(row, row.i))
  forget_body(seq)
  forget_attempts(seq)
  if ended_ then counted(ended_.k == 'done' and row.o and 'sent' or ended_.k, -1) elseif row.th == '0' then counted('done', -1) end
  if copies then counted('duplicates', -copies.n) end
  for _, name in ipairs({ 'ledger', 'ends', 'copies', 'results' }) do call('HDEL', key(name), seq) end
  for _, one in ipairs(call('ZRANGE', key('cases:' .. seq), 0, -1)) do
    local case = get('cases', one)
    if case and case.seq == seq then drop_case(one, case) end
  end
  for _, one in ipairs(call('SMEMBERS', key('effects:' .. seq))) do drop_effect(one, get('effects', one)) end
  for _, line in ipairs(call('ZRANGE', key('lines:' .. seq), 0, -1)) do
    if get('audit', line).action ~= 'erase' then
      call('HDEL', key('audit'), line)
      call('ZREM', key('lines'), line)
    end
  end
  call('DEL', key('lines:' .. seq), key('cases:' .. seq), key('effects:' .. seq), key('sent:' .. seq))
end

function F.prune_batch(a)
  if a.what == 'runs' then return { removed = 0 } end
  local oldest, table_name = NOW - math.floor(a.keep * SECOND), a.what == 'bodies' and 'bodies' or 'ledger'
  local seqs, removed, old = next_of(table_name, a.after, a.limit), 0, false
  if a.after == 0 and seqs[1] then call('HSET', key('meta'), 'first ' .. table_name, seqs[1]) end
  for _, seq in ipairs(seqs) do
    if get('ledger', seq).at < oldest then
      old = true
      if is_settled(seq) and a.what == 'bodies' then
        forget_body(seq)
        removed = removed + 1
      elseif a.what == 'messages' and is_settled(seq) and not must_stay(seq, oldest, a.archive_first) then
        forget(seq)
        removed = removed + 1
      end
    end
  end
  local at_end = #seqs < a.limit or not old
  return { after = not at_end and seqs[#seqs] or nil, removed = removed }
end

function F.forget_effects(a)
  -- Calls are forgotten with their messages; these are left of attempts that were undone.
  local first = next_of('ledger', 0, 1)[1]
  local oldest = NOW - math.floor(a.keep * SECOND)
  local cursor = call('HGET', key('meta'), 'effects cursor') or '0'
  local found = call('HSCAN', key('effects'), cursor, 'COUNT', 100)
  for place = 1, #found[2], 2 do
    local one = cmsgpack.unpack(found[2][place + 1])
    if one.done and (one.finished or 0) < oldest and (not first or one.seq < first) then drop_effect(found[2][place], one) end
  end
  call('HSET', key('meta'), 'effects cursor', found[1])
end

local function state_of(seq)
  local row = row_of(seq)
  if not row then return 'finished' end
  return row.n and 'running' or row.s
end

function READ.bodies_after(a)
  local found, bodies, known = {}, {}, names()
  for _, seq in ipairs(next_of('bodies', a.seq, a.limit)) do
    local body, kept = described_of(seq)
    found[#found + 1] = {
      seq = seq, type = body.type, source = known[tostring(body.source)], key = body.key, headers = body.headers,
      status = state_of(seq), has_body = kept[2] and true or false,
    }
    bodies[#bodies + 1] = kept[2] or ''
  end
  return found, bodies
end

function READ.cases_after(a)
  local found, bodies, known = {}, {}, names()
  for _, one in ipairs(call('ZRANGEBYSCORE', key('all cases'), '(' .. a.case, '+inf', 'LIMIT', 0, a.limit)) do
    local case = get('cases', one)
    found[#found + 1] = {
      case = tonumber(one), seq = case.seq, type = case.type, source = known[tostring(get('ledger', case.seq).s)],
      key = case.key, headers = case.headers, status = state_of(case.seq),
    }
    bodies[#bodies + 1] = case.body or ''
  end
  return found, bodies
end

-- The messages of an id, whatever their consumer and destination, from one source or from all.
local function of_id(id, source)
  local found, seen = {}, {}
  local forms = { id }
  for _, destination in ipairs(call('SMEMBERS', key('destinations'))) do forms[#forms + 1] = id .. '\0' .. destination end
  for _, pair in ipairs(call('SMEMBERS', key('pairs'))) do
    local consumer, from = string.match(pair, '^(%d+):(%d+)$')
    if not source or tonumber(from) == source then
      for _, form in ipairs(forms) do
        local seq = known_seq({ c = consumer, s = from }, form)
        if seq and not seen[seq] then
          seen[seq] = true
          found[#found + 1] = seq
        end
      end
    end
  end
  table.sort(found)
  return found
end

local function numbered(source)
  local found = call('HGET', key('names'), source)
  return found and tonumber(found) or -1
end

READ.find = function(a, raw) return of_id(raw[1], numbered(a.source)) end

function READ.find_anywhere(a, raw)
  local found = of_id(raw[1])
  for place = #found, a.limit + 1, -1 do found[place] = nil end
  return found
end

function READ.same_id(a, raw)
  local found = of_id(raw[1], numbered(a.source))
  for place = 1, #found do
    for _, seq in ipairs(call('SMEMBERS', key('sent:' .. found[place]))) do found[#found + 1] = tonumber(seq) end
  end
  table.sort(found)
  return found
end

function F.erase(a)
  local seq = a.seq
  if call('HEXISTS', key('ledger'), seq) == 0 or call('HEXISTS', key('queue'), seq) == 1 then return nil end
  local _, kept = described_of(seq)
  local blob = kept and kept[3]
  if kept then
    describe(seq, { headers = false, key = false })
    empty_body(seq)
  end
  call('HDEL', key('results'), seq)
  local attempts = call('LRANGE', key('attempts:' .. seq), 0, -1)
  for place, one in ipairs(attempts) do
    local attempt = cjson.decode(one)
    attempt.error, attempt.traceback = '(erased)', cjson.null
    call('LSET', key('attempts:' .. seq), place - 1, cjson.encode(attempt))
  end
  for _, one in ipairs(call('SMEMBERS', key('effects:' .. seq))) do
    local effect = get('effects', one)
    effect.result = nil
    set('effects', one, effect)
  end
  for _, one in ipairs(call('ZRANGE', key('cases:' .. seq), 0, -1)) do
    local case = get('cases', one)
    case.body, case.headers, case.key = '', nil, nil
    case.resolution = case.resolution or 'keep-first'
    set('cases', one, case)
    call('ZREM', key('open cases'), one)
  end
  say('erase', seq, a.actor, a.reason)
  return { blobs = { blob } }
end

local function archivable(seq, known, bodies)
  local body, kept = described_of(seq)
  local stored = get('ledger', seq)
  bodies[#bodies + 1], bodies[#bodies + 2] = kept[2] or '', stored.h
  body.seq, body.source, body.consumer = seq, known[tostring(stored.s)], known[tostring(stored.c)]
  body.received_at, body.result, body.has_body = text(stored.at), call('HGET', key('results'), seq) or nil, kept[2] and true or false
  return body
end

function READ.archivable(a)
  local found, bodies, known, from = {}, {}, names(), a.after
  local oldest = NOW - math.floor(a.keep * SECOND)
  while #found < a.limit do
    local seqs = next_of('bodies', from, a.limit)
    for _, seq in ipairs(seqs) do
      if #found < a.limit and get('ledger', seq).at < oldest and is_settled(seq) then
        found[#found + 1] = archivable(seq, known, bodies)
      end
    end
    if #seqs < a.limit then break end
    from = seqs[#seqs]
  end
  return found, bodies
end

function F.drop_bodies(a)
  local gone = 0
  for _, seq in ipairs(a.seqs) do
    if call('HEXISTS', key('bodies'), seq) == 1 and is_settled(seq) then
      forget_body(seq)
      gone = gone + 1
    end
  end
  return gone
end
