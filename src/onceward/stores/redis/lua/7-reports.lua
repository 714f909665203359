-- Reports: what operators see. They change nothing.

local function status_of(seq, row)
  if row then
    if row.n then return 'running' end
    local timed = row.s == 'retry' or row.s == 'scheduled'
    if row.s == 'ready' or (timed and (row.t or 0) <= NOW) then return 'due' end
    return row.s == 'retry' and 'retrying' or row.s
  end
  local ended_ = get('ends', seq)
  local words = { discard = 'discarded', skip = 'skipped' }
  return ended_ and words[ended_.k] or 'done'
end

local function listed_row(seq, known)
  local stored, row, body = get('ledger', seq), row_of(seq), described_of(seq)
  local last = row and last_attempt(seq)
  return {
    seq = seq, status = status_of(seq, row), source = known[tostring(stored.s)], consumer = known[tostring(stored.c)],
    id = body and body.id or '', type = body and body.type or '', version = body and body.version or 0,
    key = body and body.key, attempts = row and row.a or 0, crashes = row and row.c or 0, at = stored.at,
    received_at = text(stored.at), due_at = row and row.t and text(row.t), error = last and last.error,
  }
end

local function matches(a, one)
  for _, name in ipairs({ 'status', 'type', 'key', 'source' }) do
    if a[name] ~= nil and a[name] ~= one[name] then return false end
  end
  if a.since and one.at < tonumber(a.since) then return false end
  if a['until'] and one.at >= tonumber(a['until']) then return false end
  if a.fingerprint then
    local last = last_attempt(one.seq)
    return last ~= nil and last.fingerprint == a.fingerprint
  end
  return true
end

local LOOKED_AT = 50000

function READ.unfinished(a)
  local found, known, place = {}, names(), 0
  local from = a.before and '(' .. a.before or '+inf'
  local name = a.status == 'dead' and key('dead') or key('open')
  while #found < a.limit and place < LOOKED_AT do
    local seqs = call('ZREVRANGEBYSCORE', name, from, '-inf', 'LIMIT', place, 200)
    for _, seq in ipairs(seqs) do
      local one = row_of(seq).o == a.outgoing and listed_row(tonumber(seq), known)
      if one and #found < a.limit and matches(a, one) then found[#found + 1] = one end
    end
    if #seqs < 200 then break end
    place = place + 200
  end
  return found
end

function READ.finished(a)
  local found, known = {}, names()
  local seq = (a.before or tonumber(call('GET', key('numbers')) or 0) + 1) - 1
  local lowest = math.max(seq - LOOKED_AT, tonumber(call('HGET', key('meta'), 'first ledger') or 1) - 1)
  while #found < a.limit and seq > lowest do
    local wanted_ = {}
    for place = 0, math.min(199, seq - 1) do wanted_[#wanted_ + 1] = seq - place end
    for place, kept in ipairs(call('HMGET', key('ledger'), unpack(wanted_))) do
      local row = kept and cmsgpack.unpack(kept)
      if row and (row.o or false) == a.outgoing and #found < a.limit and call('HEXISTS', key('queue'), wanted_[place]) == 0 then
        local one = listed_row(wanted_[place], known)
        if matches(a, one) then found[#found + 1] = one end
      end
    end
    seq = seq - 200
  end
  return found
end

local function lines_of(seq)
  local found = {}
  for _, line in ipairs(call('ZRANGE', key('lines:' .. seq), 0, -1)) do
    local kept = get('audit', line)
    found[#found + 1] = { text(kept.at), kept.actor, kept.action, kept.reason }
  end
  return found
end

local function effect_shown(name)
  local one = get('effects', name)
  return {
    key = name, seq = one.seq, name = one.name, done = one.done, result = one.result, started = text(one.started),
    finished = one.finished and text(one.finished),
  }
end

local function cases_shown(seq, hash)
  local found = {}
  for _, number_ in ipairs(call('ZRANGE', key('cases:' .. seq), 0, -1)) do
    local one = get('cases', number_)
    if one.seq == seq then
      found[#found + 1] = {
        case = tonumber(number_), kind = one.hash == hash and 'type' or 'body', type = one.type, version = one.version,
        copies = one.copies, first = text(one.first), last = text(one.last), resolution = one.resolution,
        accepted = one.accepted,
      }
    end
  end
  return found
end

function READ.message(a)
  local stored = get('ledger', a.seq)
  if not stored then return nil end
  local one, row, copies, ended_ = listed_row(a.seq, names()), row_of(a.seq), get('copies', a.seq), get('ends', a.seq)
  local body, kept = described_of(a.seq)
  local attempts, sent, effects_ = {}, {}, {}
  for _, attempt in ipairs(call('LRANGE', key('attempts:' .. a.seq), 0, -1)) do attempts[#attempts + 1] = cjson.decode(attempt) end
  for _, attempt in ipairs(attempts) do attempt.at = text(attempt.at) end
  local numbers = {}
  for _, seq in ipairs(call('SMEMBERS', key('sent:' .. a.seq))) do numbers[#numbers + 1] = tonumber(seq) end
  table.sort(numbers)
  for _, seq in ipairs(numbers) do
    local other = described_of(seq)
    if other then sent[#sent + 1] = { seq, other.id, other.type, other.destination or cjson.null } end
  end
  for _, name in ipairs(call('SMEMBERS', key('effects:' .. a.seq))) do effects_[#effects_ + 1] = effect_shown(name) end
  local done = ended_ and ended_.k ~= 'discard' and ended_ or nil
  return {
    row = one, described = body, has_body = kept and kept[2] and true or false, worker = row and row.w,
    result = call('HGET', key('results'), a.seq) or nil, duplicates = copies and copies.n or 0,
    scheduled_at = kept and kept[4] and text(kept[4]) or nil, first_copy = copies and text(copies.first), last_copy = copies and text(copies.last),
    finished_at = done and text(done.at), finished_by = done and done.w, code_version = done and done.v,
    attempts = attempts, actions = lines_of(a.seq), cases = cases_shown(a.seq, stored.h), sent = sent, effects = effects_,
  }, { stored.i, stored.h, kept and kept[2] or '' }
end

function READ.ahead(a)
  local row = row_of(a.seq)
  local first = row and row.h and of_key(row.h, 0, 0)[1]
  if not first or first == a.seq then return nil end
  local other = row_of(first)
  return { first, other.n and 'running' or other.s, described_of(first).type }
end

function READ.effects(a)
  local found = {}
  local names_ = a.seq and call('SMEMBERS', key('effects:' .. a.seq)) or call('ZRANGE', key('open effects'), 0, a.limit - 1)
  for _, name in ipairs(names_) do
    local one = effect_shown(name)
    local row = row_of(one.seq)
    if a.seq or not (row and row.n) then found[#found + 1] = one end
  end
  return found
end

-- The inbox as a whole

local function count_of(name) return tonumber(call('HGET', key('counts'), name) or 0) end

local function oldest_due()
  local oldest = NOW
  local function look(at) if at and at < oldest then oldest = at end end
  for _, one in ipairs(call('SMEMBERS', key('lanes'))) do
    if string.sub(one, -1) == '|' then
      local seq = call('ZRANGE', key('ready:' .. one), 0, 0)[1]
      if seq then look(since_due(seq)) end
    end
  end
  for _, seq in ipairs(call('SMEMBERS', key('isolated'))) do
    local row = row_of(seq)
    if row.s == 'ready' and not row.o then look(since_due(seq)) end
  end
  for _, name in ipairs({ 'in.retry', 'in.scheduled' }) do
    look(tonumber(call('ZRANGE', key(name), 0, 0, 'WITHSCORES')[2]))
  end
  return oldest
end

local function done_since(moment)
  local count = 0
  for _, one in ipairs(call('LRANGE', key('log:done'), 0, -1)) do
    local at, number_ = string.match(one, '^(%d+):(%d+)$')
    if tonumber(at) <= moment then break end
    count = count + tonumber(number_)
  end
  return count
end

function READ.stats()
  local function is_due(name) return call('ZCOUNT', key(name), '-inf', text(NOW)) end
  local due_retries, due_scheduled = is_due('in.retry'), is_due('in.scheduled')
  local unsent = is_due('out.scheduled')
  for _, name in ipairs({ 'running', 'ready', 'retry', 'waiting', 'unhandled' }) do unsent = unsent + count_of('out.' .. name) end
  local failing = 0
  for _, kept in ipairs(call('HVALS', key('polls'))) do
    if cmsgpack.unpack(kept).failures > 0 then failing = failing + 1 end
  end
  return {
    due = count_of('in.ready') + due_retries + due_scheduled, scheduled = count_of('in.scheduled') - due_scheduled,
    waiting = count_of('in.waiting'), running = count_of('in.running'),
    retrying = count_of('in.retry') - due_retries, dead = count_of('in.dead'), unhandled = count_of('in.unhandled'),
    quarantined = call('ZCARD', key('open cases')), done = count_of('done'), discarded = count_of('discard'),
    skipped = count_of('skip'), duplicates = count_of('duplicates'), failures = count_of('failures'),
    workers = call('ZCOUNT', key('alive'), text(NOW), '+inf'), oldest_due_seconds = since(oldest_due()),
    done_last_minute = done_since(NOW - 60 * SECOND), outbox_unsent = unsent, outbox_dead = count_of('out.dead'),
    outbox_sent = count_of('sent'), polls_failing = failing,
  }
end

function READ.workers()
  local found = {}
  for _, kept in ipairs(call('HVALS', key('workers'))) do
    local one = cjson.decode(kept)
    one.lease_seconds = -since(tonumber(call('ZSCORE', key('alive'), one.worker)))
    one.holds = call('SCARD', key('held:' .. one.worker))
    found[#found + 1] = one
  end
  table.sort(found, function(one, other) return one.started_at < other.started_at end)
  return found
end

local function what(seq, known)
  local body = described_of(seq)
  return { type = body.type, key = body.key, consumer = known[tostring(body.consumer)], seq = seq }
end

function READ.running(a)
  local found, known = {}, names()
  for _, worker in ipairs(call('HKEYS', key('workers'))) do
    for _, seq in ipairs(held_by(worker)) do
      local row, one = row_of(seq), what(seq, known)
      one.worker, one.o, one.a = worker, row.o, row.a + 1
      found[#found + 1] = one
    end
  end
  table.sort(found, function(one, other) return one.seq < other.seq end)
  for place = #found, a.limit + 1, -1 do found[place] = nil end
  return found
end

function READ.dead_groups()
  local groups, order, known = {}, {}, names()
  for _, kept in ipairs(call('ZRANGE', key('dead'), 0, LOOKED_AT)) do
    local seq = tonumber(kept)
    local one, last, at = what(seq, known), last_attempt(seq), get('ledger', seq).at
    local outgoing = row_of(seq).o
    local name = cjson.encode({ last and last.fingerprint or '', one.type, one.consumer, outgoing })
    local group = groups[name]
    if not group then
      group = {
        fingerprint = last and last.fingerprint or '', type = one.type, consumer = one.consumer, o = outgoing,
        messages = 0, first_seq = seq, first_at = at, last_at = at,
      }
      groups[name] = group
      order[#order + 1] = group
    end
    group.messages, group.last_seq, group.error = group.messages + 1, seq, last and last.error or ''
    group.first_at, group.last_at = math.min(group.first_at, at), math.max(group.last_at, at)
  end
  for _, group in ipairs(order) do group.first_at, group.last_at = text(group.first_at), text(group.last_at) end
  return order
end

function READ.blocked_keys()
  local found, known = {}, names()
  local seqs = call('ZRANGE', key('dead'), 0, LOOKED_AT)
  for _, group in ipairs(call('HKEYS', key('unplaced'))) do
    for _, seq in ipairs(call('ZRANGE', key('unplaced:' .. group), 0, 999)) do seqs[#seqs + 1] = seq end
  end
  for _, kept in ipairs(seqs) do
    local seq = tonumber(kept)
    local row = row_of(seq)
    if row.h then
      local rank, total = call('ZRANK', key('key:' .. row.h), in_key(seq, row)), count_in_key(row.h)
      local behind, others = of_key(row.h, rank + 1, math.min(rank + 100, total - 1)), row.s == 'dead'
      if total <= rank + 1 then behind = {} end
      for _, other in ipairs(behind) do others = others or row_of(other).s ~= 'unhandled' end
      if others then
        local one = what(seq, known)
        one.o, one.received_at, one.behind = row.o, text(get('ledger', seq).at), math.max(0, total - rank - 1)
        one.next, one.state = behind[1], row.s
        found[#found + 1] = one
      end
    end
  end
  return found
end

-- The messages that are tried again, in and out.
local function retrying()
  local seqs = call('ZRANGE', key('in.retry'), 0, LOOKED_AT)
  for _, seq in ipairs(call('ZRANGE', key('out.retry'), 0, LOOKED_AT)) do seqs[#seqs + 1] = seq end
  return seqs
end

function READ.failing(a)
  local messages, held, oldest = 0, 0, NOW - math.floor(a.held * SECOND)
  local subscriptions, destinations = set_of(a.subscriptions), set_of(a.destinations)
  for _, seq in ipairs(retrying()) do
    local row = row_of(seq)
    local is_halted = subscriptions[row.u] or (row.d and destinations[row.d])
    if row.a >= a.times and not is_halted then messages = messages + 1 end
    if row.h and not is_halted and last_in_key(row.h) ~= tonumber(seq) then
      local first = call('LINDEX', key('attempts:' .. seq), 0)
      if first and cjson.decode(first).at <= oldest then held = held + 1 end
    end
  end
  return { messages, held }
end

local function newest_of(count)
  local last, found = tonumber(call('GET', key('numbers')) or 0), {}
  local seq = last
  while seq > 0 and #found < count and last - seq < LOOKED_AT do
    local wanted_ = {}
    for place = 0, math.min(499, seq - 1) do wanted_[#wanted_ + 1] = seq - place end
    for place, kept in ipairs(call('HMGET', key('ledger'), unpack(wanted_))) do
      if kept and #found < count then found[#found + 1] = { wanted_[place], cmsgpack.unpack(kept) } end
    end
    seq = seq - 500
  end
  return found
end

function READ.sources(a)
  local found, known = {}, names()
  for _, one in ipairs(newest_of(a.newest)) do
    local name = known[tostring(one[2].s)]
    local copies = get('copies', one[1])
    found[name] = found[name] or { recent = 0, last = 0, copies = 0 }
    local its = found[name]
    its.recent, its.last, its.copies = its.recent + 1, math.max(its.last, one[2].at), its.copies + (copies and copies.n or 0)
  end
  for _, its in pairs(found) do its.last = text(its.last) end
  return { found = found, windows = READ.latest_sources() }
end

function READ.polls()
  local found, known, kept = {}, names(), call('HGETALL', key('polls'))
  for place = 1, #kept, 2 do
    local poll = cmsgpack.unpack(kept[place + 1])
    found[#found + 1] = {
      source = known[kept[place]], cursor = poll.cursor, number = poll.number, running = poll.token ~= nil,
      due = -since(poll.due), ended = poll.ended and text(poll.ended), failures = poll.failures, error = poll.error,
    }
  end
  return found
end

function READ.storage()
  local sizes = {}
  for _, name in ipairs({ 'ledger', 'bodies', 'queue', 'ends', 'results', 'copies', 'cases', 'effects', 'audit' }) do
    sizes[#sizes + 1] = { name, call('HLEN', key(name)) }
  end
  local first, body, turn = next_of('ledger', 0, 1)[1], next_of('bodies', 0, 1)[1], call('HGET', key('turns'), 'prune')
  return {
    sizes = sizes, ledger = first and text(get('ledger', first).at), bodies = body and text(get('ledger', body).at), due = turn or nil,
  }
end

function READ.audit(a)
  local found = {}
  local from = a.before and '(' .. a.before or '+inf'
  for _, line in ipairs(call('ZREVRANGEBYSCORE', key('lines'), from, '-inf', 'LIMIT', 0, a.limit)) do
    local kept = get('audit', line)
    found[#found + 1] = { tonumber(line), text(kept.at), kept.actor, kept.action, kept.seq, kept.reason }
  end
  return found
end

function READ.traffic(a)
  local found = {}
  for _, name in ipairs({ 'received', 'done', 'failed' }) do
    local minutes = {}
    for _, one in ipairs(call('LRANGE', key('log:' .. name), 0, -1)) do
      local at, count = string.match(one, '^(%d+):(%d+)$')
      local ago = math.floor(since(tonumber(at)) / 60)
      if ago >= a.minutes then break end
      minutes[tostring(ago)] = (minutes[tostring(ago)] or 0) + tonumber(count)
    end
    found[name] = minutes
  end
  return found
end

-- What can be wrong

function READ.unserved()
  local found = {}
  for _, one in ipairs(call('SMEMBERS', key('lanes'))) do
    local number_ = call('ZCARD', key('ready:' .. one))
    local subscription, destination = string.match(one, '^(%d+)|(.*)$')
    local first = tonumber(call('ZRANGE', key('ready:' .. one), 0, 0)[1])
    for _, seq in ipairs(call('ZRANGEBYSCORE', key('due:' .. one), '-inf', text(NOW), 'LIMIT', 0, 1000)) do
      if row_of(seq).s == 'scheduled' then
        number_, first = number_ + 1, math.min(first or tonumber(seq), tonumber(seq))
      end
    end
    local kept = number_ > 0 and call('HGET', key('subscriptions'), subscription)
    if kept then
      local its = cjson.decode(kept)
      found[#found + 1] = { its.type, its.consumer, destination, number_, since(since_due(first)) }
    end
  end
  return found
end

-- Whether something of a key goes on by itself, and so all of it in the end; mostly that is the first.
local function is_moved(hash)
  local from = 0
  while hash do
    local seqs = of_key(hash, from, from + 19)
    for _, seq in ipairs(seqs) do
      local row = row_of(seq)
      if row.p ~= LAST and (row.s ~= 'waiting' or row.t ~= nil) then return true end
    end
    if #seqs < 20 then return false end
    from = from + 20
  end
  return false
end

-- Messages that no process would ever move: waiting behind nothing, or held by nobody.
function READ.unreachable()
  local stuck, from = 0, '-inf'
  while true do
    local seqs = call('ZRANGEBYSCORE', key('open'), from, '+inf', 'LIMIT', 0, 500)
    for _, seq in ipairs(seqs) do
      local row = row_of(seq)
      if row.n and call('HEXISTS', key('workers'), row.w) == 0 then
        stuck = stuck + 1
      elseif row.s == 'waiting' and not row.n then
        if not is_moved(row.h) then stuck = stuck + 1 end
      end
    end
    if #seqs < 500 then return stuck end
    from = '(' .. seqs[#seqs]
  end
end

function READ.keyless(a)
  local wanted_, found = {}, {}
  for _, kept in ipairs(call('HVALS', key('subscriptions'))) do
    local one = cjson.decode(kept)
    if one.key_path or one.key_function then wanted_[one.consumer_id .. '|' .. one.type] = one end
  end
  if next(wanted_) == nil then return found end
  for _, one in ipairs(newest_of(a.newest)) do
    local body, kept = described_of(one[1])
    local its = body and kept[2] and wanted_[body.consumer .. '|' .. body.type]
    local row = its and body.key == cjson.null and row_of(one[1])
    if its and body.key == cjson.null and not (row and row.s == 'dead') then
      local name = cjson.encode({ its.type, its.consumer, its.key_path or cjson.null })
      found[name] = (found[name] or 0) + 1
    end
  end
  return found
end

function READ.apart()
  local found, kept = {}, call('HGETALL', key('apart'))
  for place = 1, #kept, 2 do
    if kept[place + 1] == '1' then found[#found + 1] = cjson.decode(kept[place]) end
  end
  return found
end
