-- Who wants what, and receiving.

local function names()
  local found = {}
  local kept = call('HGETALL', key('names'))
  for place = 1, #kept, 2 do found[kept[place + 1]] = kept[place] end
  return found
end

local function unhandled()
  local found = {}
  for _, group in ipairs(call('HKEYS', key('unplaced'))) do
    local kind, subscription = string.match(group, '^(.*)|(%d*)$')
    found[#found + 1] = { kind, tonumber(subscription) or cjson.null }
  end
  return found
end

local function pauses()
  local found = {}
  for _, kept in ipairs(call('LRANGE', key('pauses'), 0, -1)) do found[#found + 1] = cjson.decode(kept) end
  return found
end

local function catalog()
  local crashed = call('HGET', key('meta'), 'crashed_at')
  local subscriptions = {}
  for _, kept in ipairs(call('HVALS', key('subscriptions'))) do subscriptions[#subscriptions + 1] = cjson.decode(kept) end
  table.sort(subscriptions, function(one, other) return one.id < other.id end)
  return {
    version = version(), since_crash = crashed and since(tonumber(crashed)) or 1e9, names = names(),
    subscriptions = subscriptions, unhandled = unhandled(), pauses = pauses(), now = text(NOW),
  }
end

READ.catalog = catalog
READ.version = version
READ.names = names

function F.make(a)
  if call('HSETNX', key('meta'), 'schema', a.schema) == 1 then
    call('HSET', key('meta'), 'folder', a.folder)
    touch()
    return true
  end
  return false
end

function F.add_names(a)
  for _, name in ipairs(a.names) do call('HSETNX', key('names'), name, call('HLEN', key('names')) + 1) end
  touch()
end

local function subscription_of(consumer, kind)
  for _, kept in ipairs(call('HVALS', key('subscriptions'))) do
    local one = cjson.decode(kept)
    if one.consumer_id == consumer and one.type == kind then return one.id end
  end
end

function F.subscribe(a)
  local known = names()
  for _, one in ipairs(a.subscriptions) do
    one.id = subscription_of(one.consumer_id, one.type) or call('HLEN', key('subscriptions')) + 1
    one.consumer = known[tostring(one.consumer_id)]
    call('HSET', key('subscriptions'), one.id, cjson.encode(one))
  end
  touch()
end

-- How many unfinished messages of a subscription there are, and which, after a number.
local function unfinished_of(wanted, from, limit)
  local found = {}
  while true do
    local seqs = call('ZRANGEBYSCORE', key('open'), '(' .. from, '+inf', 'LIMIT', 0, 500)
    for _, seq in ipairs(seqs) do
      local row = row_of(seq)
      if row.u and wanted[row.u] then found[#found + 1] = tonumber(seq) end
      if #found == limit then return found end
    end
    if #seqs < 500 then return found end
    from = seqs[#seqs]
  end
end

local function subscribed(a)
  local found = {}
  for _, kept in ipairs(call('HVALS', key('subscriptions'))) do
    local one = cjson.decode(kept)
    if one.consumer == a.consumer and (not a.type or a.type == one.type) then
      local count = #unfinished_of({ [one.id] = true }, 0, -1)
      found[#found + 1] = { type = one.type, unfinished = count, retired = one.retired or false, id = one.id }
    end
  end
  table.sort(found, function(one, other) return one.type < other.type end)
  return found
end

READ.subscribed = subscribed

function F.retire(a)
  local found, fresh, unfinished = subscribed(a), {}, 0
  for _, one in ipairs(found) do
    unfinished = unfinished + one.unfinished
    if not one.retired then fresh[#fresh + 1] = one end
  end
  if #fresh > 0 and (a.discard or unfinished == 0) then
    local types = {}
    for _, one in ipairs(fresh) do
      local kept = cjson.decode(call('HGET', key('subscriptions'), one.id))
      kept.retired = true
      call('HSET', key('subscriptions'), one.id, cjson.encode(kept))
      types[#types + 1] = one.type
    end
    say('unsubscribe', 0, a.actor, a.consumer .. ': ' .. table.concat(types, ', ') .. '. ' .. a.reason)
    touch()
  end
  return { found = found, unfinished = unfinished }
end

function READ.unfinished_of(a)
  local wanted = {}
  for _, one in ipairs(a.subscriptions) do wanted[one] = true end
  return unfinished_of(wanted, a.after, a.limit)
end

function READ.latest_sources()
  local found, kept = {}, call('HGETALL', key('windows'))
  for place = 1, #kept, 2 do found[kept[place]] = kept[place + 1] end
  return found
end

function F.declare_sources(a)
  for name, seconds in pairs(a.windows) do call('HSET', key('windows'), name, seconds) end
  return READ.latest_sources()
end

-- A list of what was ever paused, in order; a pause that goes on has no end.
local function pause_of(a)
  for place, one in ipairs(pauses()) do
    if one.kind == a.kind and one.name == a.name and not one.ended_at then return place - 1, one end
  end
end

function F.pause(a)
  if pause_of(a) then return false end
  local begun = { kind = a.kind, name = a.name, began_at = text(NOW), actor = a.actor, reason = a.reason }
  call('RPUSH', key('pauses'), cjson.encode(begun))
  say('pause', 0, a.actor, a.line)
  touch()
  return true
end

function F.resume(a)
  local place, one = pause_of(a)
  if not one then return false end
  one.ended_at = text(NOW)
  call('LSET', key('pauses'), place, cjson.encode(one))
  for _, kept in ipairs(call('LRANGE', key('pauses'), 0, -1)) do
    local ended = cjson.decode(kept).ended_at
    if ended and since(tonumber(ended)) > a.keep then call('LREM', key('pauses'), 1, kept) end
  end
  say('resume', 0, a.actor, a.line)
  touch()
  return true
end

-- That a handler uses its transaction is never taken back.
function F.record_use(a)
  local field = cjson.encode({ a.consumer, a.type })
  if call('HGET', key('apart'), field) ~= '0' then call('HSET', key('apart'), field, a.apart and 1 or 0) end
end

-- Receiving

-- Sources were read so far, where they were before as their readers believe.
local function keep_positions(marks)
  for _, mark in ipairs(marks or {}) do
    local field = cjson.encode({ mark.source, mark.part })
    local before = call('HGET', key('positions'), field)
    if (before or nil) == mark.since then call('HSET', key('positions'), field, mark.position) end
  end
end

function F.keep_positions(a) keep_positions(a.marks) end

function READ.positions(a)
  local found, kept = {}, call('HGETALL', key('positions'))
  for place = 1, #kept, 2 do
    local where = cjson.decode(kept[place])
    if where[1] == a.source then found[#found + 1] = { where[2], kept[place + 1] } end
  end
  return found
end

function F.receive(a, raw)
  local stored = {}
  if a.catalog and a.catalog ~= version() then return { now = text(NOW), stored = stored } end
  for place, given in ipairs(a.rows) do
    local seq = store(given, raw, (place - 1) * 4 + 1)
    if seq then stored[#stored + 1] = { given.n, seq } end
  end
  if #stored > 0 and not a.rows[1].o then logged('received', #stored) end
  keep_positions(a.marks)
  return { now = text(NOW), stored = stored }
end

local function known_of(seq)
  local row = get('ledger', seq)
  if not row then return nil end
  local result = call('HGET', key('results'), seq)
  return { seq = seq, hash = row.h, th = row.th, finished = is_finished(seq), result = result or nil, age = since(row.at) }
end

-- The first message of an id that came before its type had a consumer, whichever service stored it.
local function unplaced_id(given, id)
  local found
  for _, pair in ipairs(call('SMEMBERS', key('pairs'))) do
    local consumer, source = string.match(pair, '^(%d+):(%d+)$')
    if tonumber(source) == given.s then
      local seq = known_seq({ c = consumer, s = source }, id)
      local row = seq and row_of(seq)
      if row and row.s == 'unhandled' and not row.u and row.y == given.type and (not found or seq < found) then
        found = seq
      end
    end
  end
  return found
end

function READ.look_up(a, raw)
  local found, hashes = {}, {}
  for place, given in ipairs(a.rows) do
    local seq = known_seq(given, raw[place]) or (given.unplaced and unplaced_id(given, raw[place])) or nil
    local known = seq and known_of(seq)
    if known then
      hashes[#hashes + 1] = known.hash
      known.hash, known.n = nil, given.n
      found[#found + 1] = known
    end
  end
  return found, hashes
end

function F.import_ids(a, raw)
  local fresh = 0
  for place, given in ipairs(a.rows) do
    if not known_seq(given, raw[place]) then  -- what is known stays as it is
      local seq = number()
      call('HSET', key('ids'), identity(given, raw[place]), seq)
      local at = NOW - tonumber(given.age)
      set('ledger', seq, { c = given.c, s = given.s, i = raw[place], h = a.unknown, th = '0', at = at })
      call('SADD', key('pairs'), given.c .. ':' .. given.s)
      counted('done', 1)
      fresh = fresh + 1
    end
  end
  return fresh
end

function READ.count_known(a, raw)
  local known = 0
  for place, given in ipairs(a.rows) do known = known + (known_seq(given, raw[place]) and 1 or 0) end
  return known
end

function READ.ages(a)
  local found = {}
  for _, seq in ipairs(a.seqs) do
    local row = get('ledger', seq)
    if row then found[#found + 1] = { seq, since(row.at) } end
  end
  return found
end

local function add_copies(seq, count, first_at)
  local before = get('copies', seq) or { n = 0, first = first_at or NOW }
  set('copies', seq, { n = before.n + count, first = first_at or before.first, last = NOW })
  counted('duplicates', count)
end

function F.count_copies(a)
  for _, one in ipairs(a.copies) do
    if call('HEXISTS', key('ledger'), one[1]) == 1 then add_copies(one[1], one[2]) end
  end
end

-- Keep a mismatch: `other` describes it, the hash and the body are beside it.
local function quarantine(other, hash, body)
  if call('HEXISTS', key('ledger'), other.seq) == 0 then return nil end
  for _, kept in ipairs(call('ZRANGE', key('cases:' .. other.seq), 0, -1)) do
    local case = get('cases', kept)
    if case.seq == other.seq and case.hash == hash and case.th == other.th then
      case.copies, case.last = case.copies + 1, NOW
      set('cases', kept, case)
      return case
    end
  end
  local case, count = number(), { copies = 1, first = NOW, last = NOW, hash = hash, body = body, at = due_of(other) }
  for name, value in pairs(other) do count[name] = value end
  set('cases', case, count)
  call('ZADD', key('all cases'), case, case)
  call('ZADD', key('cases:' .. other.seq), case, case)
  call('ZADD', key('open cases'), case, case)
  return count
end

function F.quarantine(a, raw)
  local case = quarantine(a, raw[1], raw[2])
  if not case then return nil end
  local accepted = case.accepted and known_of(case.accepted) or nil
  local hash = accepted and accepted.hash
  if accepted then accepted.hash = nil end
  return { resolution = case.resolution, accepted = accepted }, { hash or nil }
end

function F.first_seen(a, raw)
  local first = {}
  for place, body in ipairs(a.bodies) do
    local field = body.source .. ':' .. raw[place]
    local known, oldest = get('first seen', field), NOW - math.floor(body.window * SECOND)
    if not known or known.at < oldest then
      known = { id = body.id, at = NOW }
      set('first seen', field, known)
      call('ZADD', key('first seen:' .. body.source), NOW, field)
    end
    first[place] = known.id
    for _, old in ipairs(call('ZRANGEBYSCORE', key('first seen:' .. body.source), '-inf', '(' .. text(oldest), 'LIMIT', 0, 10)) do
      call('ZREM', key('first seen:' .. body.source), old)
      call('HDEL', key('first seen'), old)
    end
  end
  return first
end

function READ.referred(a)
  local found = {}
  for _, blob in ipairs(a.blobs) do
    if call('HEXISTS', key('blobs'), blob) == 1 then found[#found + 1] = blob end
  end
  return found
end

READ.folder = function() return call('HGET', key('meta'), 'folder') end
