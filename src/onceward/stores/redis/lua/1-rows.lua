-- What is kept, and the few operations that all moves share. Every function here runs inside one call of the library,
-- which Redis runs from its beginning to its end before anything else. What is wrong is found before the first write,
-- for a function that fails in the middle would leave what it has written.
--
-- Tables are hashes under the prefix, by number: `queue` (rows of messages with unfinished business), `ledger`,
-- `bodies`, `ends`. Times are microseconds; what is larger than a double can hold (tokens, hashes of keys) is text, and
-- places and sequences are text of twenty digits, which sort as numbers do.

local PREFIX, NOW = '', 0
local function call(...) return redis.call(...) end  -- there is none while the library is loaded
local F, READ = {}, {}
local SECOND = 1000000
local LAST = '09223372036854775807'  -- the place of what is scheduled: behind all others

local function key(name) return PREFIX .. name end

local function text(number) return string.format('%.0f', number) end

local function digits(number) return string.format('%020.0f', number) end

local function after(seconds) return seconds and NOW + math.floor(seconds * SECOND) or nil end

local function since(moment) return (NOW - moment) / SECOND end

local function number() return call('INCR', key('numbers')) end

local function get(table_name, field)
  local found = call('HGET', key(table_name), field)
  return found and cmsgpack.unpack(found) or nil
end

-- The rows under several numbers, false where there is none.
local function get_all(table_name, fields)
  if #fields == 0 then return {} end
  local found = call('HMGET', key(table_name), unpack(fields))
  for place, kept in ipairs(found) do found[place] = kept and cmsgpack.unpack(kept) end
  return found
end

local function set(table_name, field, value) call('HSET', key(table_name), field, cmsgpack.pack(value)) end

-- Counts are written once, at the end of a call, for most of it goes up and down again.
local COUNTS = {}

local function counted(name, by) COUNTS[name] = (COUNTS[name] or 0) + by end

local function write_counts()
  for name, by in pairs(COUNTS) do
    if by ~= 0 then call('HINCRBY', key('counts'), name, by) end
  end
end

local function logged(name, count)
  call('LPUSH', key('log:' .. name), text(NOW) .. ':' .. count)
  call('LTRIM', key('log:' .. name), 0, 9999)
end

local function version() return call('HGET', key('meta'), 'version') end

-- Tell receivers to read the catalog again. Random numbers of Lua are the same in every call: the server's count is not.
local function touch() call('HSET', key('meta'), 'version', text(NOW + number())) end

local function say(action, seq, actor, reason)
  local line = number()
  set('audit', line, { at = NOW, actor = actor, action = action, seq = seq, reason = reason })
  call('ZADD', key('lines'), line, line)
  call('ZADD', key('lines:' .. seq), line, line)
end

-- The queue: a row is u subscription, h hash of the key, p place, q sequence, g whose numbers it counts in, o outgoing,
-- d destination, s state, t due at, w worker, n token, a attempts, c crashes, r postponed, i isolation, y type (while it
-- waits for a consumer). A row without a token is claimed by no worker.

local function lane(row) return row.u .. '|' .. (row.d or '') end

local function waiting_group(row) return (row.y or '') .. '|' .. (row.u or '') end

local function in_key(seq, row) return row.p .. ':' .. digits(seq) end

local function label(row) return (row.o and 'out.' or 'in.') .. (row.n and 'running' or row.s) end

local function unindex(seq, row)
  counted(label(row), -1)
  if row.n then
    call('SREM', key('held:' .. row.w), seq)
    if row.h then call('SREM', key('kept:' .. row.h), seq) end
    return
  end
  if row.s == 'unhandled' then
    call('ZREM', key('unplaced:' .. waiting_group(row)), seq)
    if call('HINCRBY', key('unplaced'), waiting_group(row), -1) == 0 then
      call('HDEL', key('unplaced'), waiting_group(row))
    end
  elseif row.s == 'dead' then
    call('ZREM', key('dead'), seq)
  elseif row.i > 0 then
    call('SREM', key('isolated'), seq)
  elseif row.s == 'ready' then
    call('ZREM', key('ready:' .. lane(row)), seq)
  elseif row.t then
    call('ZREM', key('due:' .. lane(row)), seq)
  end
  if row.s == 'retry' or row.s == 'scheduled' then call('ZREM', key(label(row)), seq) end
end

local function index(seq, row)
  counted(label(row), 1)
  if row.n then
    call('SADD', key('held:' .. row.w), seq)
    if row.h then call('SADD', key('kept:' .. row.h), seq) end
    return
  end
  if row.s == 'unhandled' then
    call('ZADD', key('unplaced:' .. waiting_group(row)), tonumber(row.q or seq), seq)
    call('HINCRBY', key('unplaced'), waiting_group(row), 1)
  elseif row.s == 'dead' then
    call('ZADD', key('dead'), seq, seq)
  elseif row.i > 0 then
    call('SADD', key('isolated'), seq)
  elseif row.s == 'ready' then
    call('ZADD', key('ready:' .. lane(row)), seq, seq)
    call('SADD', key('lanes'), lane(row))
  elseif row.t then
    call('ZADD', key('due:' .. lane(row)), row.t, seq)
    call('SADD', key('lanes'), lane(row))
  end
  if row.s == 'retry' or row.s == 'scheduled' then call('ZADD', key(label(row)), row.t or 0, seq) end
end

local function row_of(seq) return get('queue', seq) end

local function change(seq, row, changes)
  local hash, place = row.h, row.p
  unindex(seq, row)
  for name, value in pairs(changes) do
    if value == false and name ~= 'o' then row[name] = nil else row[name] = value end
  end
  if hash ~= row.h or place ~= row.p then
    if hash then call('ZREM', key('key:' .. hash), place .. ':' .. digits(seq)) end
    if row.h then call('ZADD', key('key:' .. row.h), 0, in_key(seq, row)) end
  end
  index(seq, row)
  set('queue', seq, row)
end

local function unclaimed(seq, row, changes)
  changes = changes or {}
  changes.w, changes.n = false, false
  change(seq, row, changes)
end

local function enqueue(seq, row)
  index(seq, row)
  set('queue', seq, row)
  call('ZADD', key('open'), seq, seq)
  if row.h then call('ZADD', key('key:' .. row.h), 0, in_key(seq, row)) end
end

local function dequeue(seq, row)
  unindex(seq, row)
  call('HDEL', key('queue'), seq)
  call('ZREM', key('open'), seq)
  if row.h then call('ZREM', key('key:' .. row.h), in_key(seq, row)) end
end

-- The same of messages that one claim has, each of a worker.
local function dequeue_all(seqs, rows, worker)
  if #seqs == 0 then return end
  for _, seq in ipairs(seqs) do
    local row = rows[seq]
    counted(label(row), -1)
    if row.h then
      call('SREM', key('kept:' .. row.h), seq)
      call('ZREM', key('key:' .. row.h), in_key(seq, row))
    end
  end
  call('SREM', key('held:' .. worker), unpack(seqs))
  call('HDEL', key('queue'), unpack(seqs))
  call('ZREM', key('open'), unpack(seqs))
end

local function carries(row, worker, token) return row and row.w == worker and row.n == token or false end

-- The unfinished messages of a key, in order: so many of them.
local function of_key(hash, from, to)
  local seqs = {}
  for _, member in ipairs(call('ZRANGE', key('key:' .. hash), from, to)) do
    seqs[#seqs + 1] = tonumber(string.match(member, ':(%d+)$'))
  end
  return seqs
end

-- Up to which member of a key messages hold others: what is scheduled does not, before it is due.
local IN_KEY = '(' .. LAST

local function first_in_key(hash)
  local member = call('ZRANGEBYLEX', key('key:' .. hash), '-', IN_KEY, 'LIMIT', 0, 1)[1]
  return member and tonumber(string.match(member, ':(%d+)$'))
end

local function last_in_key(hash)
  local member = call('ZREVRANGEBYLEX', key('key:' .. hash), IN_KEY, '-', 'LIMIT', 0, 1)[1]
  return member and tonumber(string.match(member, ':(%d+)$'))
end

local function count_in_key(hash) return call('ZLEXCOUNT', key('key:' .. hash), '-', IN_KEY) end

local function is_first(seq, row)
  if not row.q or not row.h then return true end
  return of_key(row.h, 0, 0)[1] == seq
end

-- After a removal: the first of a key that waits goes on; its subscription, if there is one.
local function promote(hash)
  if not hash then return end
  local from = 0
  while true do
    local seqs = of_key(hash, from, from + 19)
    for _, seq in ipairs(seqs) do
      local row = row_of(seq)
      if row.s == 'waiting' and not row.n then
        change(seq, row, { s = 'ready', t = false })
        return row.u
      end
    end
    if #seqs < 20 then return end
    from = from + 20
  end
end

local function promote_all(hashes)
  local promoted = {}
  for _, hash in ipairs(hashes or {}) do promoted[#promoted + 1] = promote(hash) end
  return promoted
end

-- Progress: how far a key has come in its own numbers.

local function applied_in(counter) return call('HGET', key('progress'), counter) end

local function apply(counter, sequence)
  local before = applied_in(counter)
  if not before or before < sequence then call('HSET', key('progress'), counter, sequence) end
end

-- Whose numbers a message counts in.
local function counter(seq)
  local described = cjson.decode(get('bodies', seq)[1])
  if described.key == cjson.null then return nil end
  local aggregate = described.aggregate ~= cjson.null and described.aggregate or ''
  return described.consumer .. '\0' .. aggregate .. '\0' .. described.key
end

-- The sequence before this one, which is not zero.
local function one_less(sequence)
  local head, last, zeros = string.match(sequence, '^(%d-)([1-9])(0*)$')
  return head .. (tonumber(last) - 1) .. string.rep('9', #zeros)
end

local function advance(row) if row and row.g and row.q then apply(row.g, row.q) end end

-- Storing: `given` is a row as Python has it, and `raw` are its id, hash, description and body, from a place on.

local function identity(given, id) return given.c .. ':' .. given.s .. ':' .. id end

local function known_seq(given, id)
  local found = call('HGET', key('ids'), identity(given, id))
  return found and tonumber(found) or nil
end

-- When a message is due that is not to run at once.
local function due_of(given)
  if given.due_in then return NOW + tonumber(given.due_in) end
  return given.due and tonumber(given.due) or nil
end

local function accept(given, raw, at, seq)
  local id = raw[at]
  if known_seq(given, id) then return nil end
  seq = seq or number()
  call('HSET', key('ids'), identity(given, id), seq)
  set('ledger', seq, { c = given.c, s = given.s, i = id, h = raw[at + 1], th = given.th, at = NOW, o = given.o })
  set('bodies', seq, { raw[at + 2], raw[at + 3], given.b or false, due_of(given) or false })
  if given.b then call('HSET', key('blobs'), given.b, seq) end
  if given.x then call('SADD', key('sent:' .. given.x), seq) end
  if given.d then call('SADD', key('destinations'), given.d) end
  call('SADD', key('pairs'), given.c .. ':' .. given.s)
  return seq
end

local function store(given, raw, at, queued)
  local seq = accept(given, raw, at)
  if not seq then return nil end
  queued = queued or {}
  local due = due_of(given)
  local state = given.y and 'unhandled' or due and 'scheduled' or 'ready'
  local when = queued.t
  if not queued.s and state == 'scheduled' then when = due end
  enqueue(seq, {
    u = given.u, h = given.h, p = given.p or digits(seq), q = given.q, g = given.q and given.g or nil,
    o = given.o or false, d = given.o and (given.d or 'default') or nil,
    s = queued.s or state, t = when, w = queued.w, n = queued.n,
    a = queued.a or 0, c = 0, r = 0, i = queued.i or 0, y = given.y,
  })
  return seq
end

local function forget_body(seq)
  local kept = get('bodies', seq)
  if kept and kept[3] then call('HDEL', key('blobs'), kept[3]) end
  call('HDEL', key('bodies'), seq)
end

-- The description stays, and what was the content is gone.
local function empty_body(seq)
  local kept = get('bodies', seq)
  if kept then
    if kept[3] then call('HDEL', key('blobs'), kept[3]) end
    set('bodies', seq, { kept[1], false, false, kept[4] })
  end
end

-- When a message came, or was to run.
local function since_due(seq)
  local kept = get('bodies', seq)
  return kept and kept[4] or get('ledger', seq).at
end

local function describe(seq, changes)
  local kept = get('bodies', seq)
  local described = cjson.decode(kept[1])
  for name, value in pairs(changes) do
    if value == false then value = cjson.null end
    described[name] = value
  end
  kept[1] = cjson.encode(described)
  set('bodies', seq, kept)
end

local function add_attempt(attempt, seq)
  seq = seq or attempt.seq
  attempt.seq, attempt.at = nil, NOW
  call('RPUSH', key('attempts:' .. seq), cjson.encode(attempt))
  if attempt.charged then counted('failures', 1) end
  logged('failed', 1)
end

local function last_attempt(seq)
  local found = call('LINDEX', key('attempts:' .. seq), -1)
  return found and cjson.decode(found) or nil
end

local function is_finished(seq)
  if call('HEXISTS', key('queue'), seq) == 1 or call('HEXISTS', key('ledger'), seq) == 0 then return false end
  local ended = get('ends', seq)
  return not (ended and ended.k == 'discard')
end

local function ended(seq, kind, worker, code_version, outgoing)
  set('ends', seq, { k = kind, at = NOW, w = worker, v = code_version })
  counted(kind == 'done' and outgoing and 'sent' or kind, 1)
end

-- Inline, a message and its key are locked for as long as its handler may take: another copy of it waits, and its key
-- has no message for others. A lock of a process that is gone holds nobody.
local function is_held(lock)
  local holder = call('GET', key(lock))
  return holder and call('HEXISTS', key('workers'), string.match(holder, '^%d+')) == 1
end

local function is_locked(hash) return is_held('lock:' .. hash) end

-- The subscriptions of a consumer that are not retired.
local function own_subscriptions(consumer)
  local own = {}
  for _, kept in ipairs(call('HVALS', key('subscriptions'))) do
    local one = cjson.decode(kept)
    if one.consumer_id == consumer and not one.retired then own[#own + 1] = one end
  end
  return own
end

-- Whether a consumer has messages that are not placed yet, and came before this one, if there is one.
local function has_unplaced(consumer, before)
  if call('EXISTS', key('unplaced')) == 0 then return false end
  for _, one in ipairs(own_subscriptions(consumer)) do
    for _, group in ipairs({ one.type .. '|', one.type .. '|' .. one.id }) do
      local first = call('ZRANGE', key('unplaced:' .. group), 0, 0, 'WITHSCORES')
      if first[1] and (not before or tonumber(first[2]) < before) then return true end
    end
  end
  return false
end
