-- Claims: which messages a worker takes. With keys, only those with nothing unfinished of their key before them.

local LARGE, PLACING = 262144, 0.25

local function set_of(list)
  local found = {}
  for _, one in ipairs(list or {}) do found[one] = true end
  return found
end

-- May a row of a claim's subscriptions be looked at?
local function passes(row, held) return row and not (row.h and (held[row.h] or is_locked(row.h))) end

-- Of one index, so many rows that pass, with what sorts them before those of other lanes.
local function collect(found, name, from, to, limit, held)
  local place, count = 0, 0
  while count < limit do
    local seqs = call('ZRANGEBYSCORE', name, from, to, 'WITHSCORES', 'LIMIT', place, limit)
    local names = {}
    for at = 1, #seqs, 2 do names[#names + 1] = seqs[at] end
    local rows = get_all('queue', names)
    for at = 1, #seqs, 2 do
      local row = rows[(at + 1) / 2]
      if count < limit and passes(row, held) then
        found[#found + 1] = { tonumber(seqs[at]), row, tonumber(seqs[at + 1]) }
        count = count + 1
      end
    end
    if #seqs < limit * 2 then return end
    place = place + limit
  end
end

local function sorted(found, limit)
  table.sort(found, function(one, other)
    if one[3] ~= other[3] then return one[3] < other[3] end
    return one[1] < other[1]
  end)
  for place = #found, limit + 1, -1 do found[place] = nil end
  return found
end

-- New messages, in the order of their coming.
local function ready(claim, limit)
  local found, held = {}, set_of(claim.held)
  for _, subscription in ipairs(claim.subscriptions) do
    local name = key('ready:' .. subscription .. '|' .. (claim.destination or ''))
    collect(found, name, claim.cursor or 0, '+inf', limit, held)
  end
  return sorted(found, limit)
end

-- Messages whose time has come.
local function due(claim, limit)
  local found, held = {}, set_of(claim.held)
  if limit < 1 then return found end
  for _, subscription in ipairs(claim.subscriptions) do
    local name = key('due:' .. subscription .. '|' .. (claim.destination or ''))
    collect(found, name, '-inf', text(NOW), limit, held)
  end
  return sorted(found, limit)
end

local function may_run(row)
  return not row.n and (row.s == 'ready' or (row.t ~= nil and row.t <= NOW))
end

local function isolated(claim, level)
  local found, wanted, held = {}, set_of(claim.subscriptions), set_of(claim.held)
  for _, seq in ipairs(call('SMEMBERS', key('isolated'))) do
    local row = row_of(seq)
    local fits = row.u and wanted[row.u] and row.d == claim.destination and may_run(row)
    if fits and (not level or row.i == level) and passes(row, held) then
      found[#found + 1] = { tonumber(seq), row, tonumber(seq) }
    end
  end
  return sorted(found, level and claim.limit or 1e9)
end

-- What may be claimed, what comes first, first.
local function wanted(claim)
  if claim.isolation > 0 then return isolated(claim, claim.isolation) end
  local found = {}
  if not claim.destination then
    found = due(claim, math.min(claim.retries, claim.limit))
    for _, one in ipairs(ready(claim, claim.limit)) do found[#found + 1] = one end
  else
    local old, new = due(claim, claim.limit), ready(claim, claim.limit)  -- in turn
    for place = 1, claim.limit do
      found[#found + 1] = old[place]
      found[#found + 1] = new[place]
    end
  end
  for place = #found, claim.limit + 1, -1 do found[place] = nil end
  return found
end

-- What must not stay claimed: it waits behind an earlier one of its key, or steps back from a later one.
local function blocked(claim, seq, row)
  if not row.h then return nil end
  local own, place = in_key(seq, row), 0
  while true do
    local member = call('ZRANGE', key('key:' .. row.h), place, place)[1]
    if member == own or not member then break end
    local other = row_of(tonumber(string.match(member, ':(%d+)$')))
    if not carries(other, claim.worker, claim.token) then return { s = 'waiting', t = false } end
    place = place + 1
  end
  if not row.q then
    local subscription = call('HGET', key('subscriptions'), row.u)
    local consumer = subscription and cjson.decode(subscription).consumer_id
    if has_unplaced(consumer, seq) then return { s = 'waiting', t = after(PLACING) } end
  end
  for _, other in ipairs(call('SMEMBERS', key('kept:' .. row.h))) do
    -- Nothing would promote a row that waits behind a later one.
    if not carries(row_of(other), claim.worker, claim.token) then return {} end
  end
  return nil
end

local function described(seq, row, kept, stored, bodies)
  local body = kept[2] or ''
  bodies[#bodies + 1] = kept[1]
  bodies[#bodies + 1] = #body <= LARGE and body or ''
  local counted_to = row.q and row.g and applied_in(row.g) or nil
  return {
    seq = seq, u = row.u or 0, h = row.h, p = row.p, q = row.q, a = row.a, at = text(stored.at),
    age = since(kept[4] or stored.at), applied = counted_to, large = #body > LARGE,
  }
end

local function take(claim, bodies)
  if call('HEXISTS', key('workers'), claim.worker) == 0 then return { dead = true } end  -- declared dead
  local found, kept, gone, subscriptions, stepped = wanted(claim), {}, {}, {}, {}
  local parked, unplaced = false, false
  for _, one in ipairs(found) do
    local before = one[2].s
    local state = (before == 'waiting' or before == 'scheduled') and 'retry' or before
    -- What was scheduled joins its key: behind all that came before.
    local place = one[2].p == LAST and digits(number()) or one[2].p
    change(one[1], one[2], { w = claim.worker, n = claim.token, s = state, p = place })
    if one[2].u then subscriptions[tostring(one[2].u)] = true end
  end
  for _, one in ipairs(found) do gone[one[1]] = blocked(claim, one[1], one[2]) end
  for _, one in ipairs(found) do
    local changes = gone[one[1]]
    if changes then
      unclaimed(one[1], one[2], changes)
      if changes.s then
        parked, unplaced = true, unplaced or changes.t ~= false
      else
        stepped[#stepped + 1] = one[2].h
      end
    end
  end
  table.sort(found, function(one, other) return one[1] < other[1] end)
  local stay, seqs = {}, {}
  for _, one in ipairs(found) do
    if not gone[one[1]] then
      stay[#stay + 1] = one
      seqs[#seqs + 1] = one[1]
    end
  end
  local contents, ledger = get_all('bodies', seqs), get_all('ledger', seqs)
  for place, one in ipairs(stay) do kept[place] = described(one[1], one[2], contents[place], ledger[place], bodies) end
  return {
    kept = kept, found = #found, subscriptions = subscriptions, parked = parked, unplaced = unplaced, stepped = stepped,
  }
end

function F.claim(a)
  local bodies = {}
  return take(a.claim, bodies), bodies
end

-- Messages of a claim wait for the numbers before theirs; without a time, for as long as the one that they wait behind.
function F.hold(a)
  for _, one in ipairs(a.held) do
    local row = row_of(one[1])
    if carries(row, a.worker, a.token) then
      unclaimed(one[1], row, { s = 'waiting', t = one[2] ~= nil and after(one[2]) or false })
    end
  end
end

function READ.first_due(a)
  local found = {}
  local claim = { subscriptions = a.subscriptions, cursor = 0 }
  for _, one in ipairs({ ready(claim, 1)[1] or false, due(claim, 1)[1] or false }) do
    if one and one[2].u then found[#found + 1] = one[2].u end
  end
  return found
end

local function lanes_of_all()
  local count = 0
  for _, kept in ipairs(call('HVALS', key('workers'))) do count = count + cjson.decode(kept).lanes end
  return math.max(1, count)
end

function READ.fair_share(a)
  local lanes = lanes_of_all()
  local most = a.claim.limit * lanes
  return math.floor((#ready(a.claim, most) + #due(a.claim, most) + lanes - 1) / lanes)
end

function READ.keys_in_front(a)
  local found = {}
  if call('HEXISTS', key('workers'), a.claim.worker) == 0 then return found end
  for _, list in ipairs({ ready(a.claim, a.claim.limit), due(a.claim, a.claim.limit) }) do
    for _, one in ipairs(list) do found[#found + 1] = one[2].h end
  end
  return found
end

function READ.isolation_level(a)
  local highest = 0
  for _, one in ipairs(isolated(a)) do highest = math.max(highest, one[2].i) end
  return highest
end

local function has_first(name, to) return #call('ZRANGEBYSCORE', name, '-inf', to, 'LIMIT', 0, 1) > 0 end

function READ.awaiting(a)
  local found, wanted_names = {}, set_of(a.destinations)
  for _, one in ipairs(call('SMEMBERS', key('lanes'))) do
    local name = string.match(one, '|(.*)$')
    if wanted_names[name] and (has_first(key('ready:' .. one), '+inf') or has_first(key('due:' .. one), text(NOW))) then
      found[#found + 1] = name
    end
  end
  for _, seq in ipairs(call('SMEMBERS', key('isolated'))) do
    local row = row_of(seq)
    if row.d and may_run(row) then found[#found + 1] = row.d end
  end
  return found
end

function READ.handled_elsewhere(a)
  local found = {}
  for _, kept in ipairs(call('HVALS', key('workers'))) do
    local worker = cjson.decode(kept)
    local until_ = tonumber(call('ZSCORE', key('alive'), worker.worker))
    if not worker.inline and until_ > NOW then
      for _, line in ipairs(a.lines) do
        if string.find(worker.handles, line, 1, true) then found[#found + 1] = line end
      end
    end
  end
  return found
end

function READ.body_of(a)
  local kept = get('bodies', a.seq)
  return nil, { kept and kept[2] or '' }
end

function READ.still_claimed(a)
  local found, tokens = {}, set_of(a.tokens)
  for _, seq in ipairs(call('SMEMBERS', key('held:' .. a.worker))) do
    if tokens[row_of(seq).n] then found[#found + 1] = tonumber(seq) end
  end
  return found
end

local function unclaim(worker, token, seqs)
  for _, seq in ipairs(seqs or {}) do
    local row = row_of(seq)
    if carries(row, worker, token) then unclaimed(seq, row) end
  end
end

function F.unclaim(a) unclaim(a.worker, a.token, a.seqs) end

function F.unclaim_tokens(a)
  local tokens = set_of(a.tokens)
  for _, seq in ipairs(call('SMEMBERS', key('held:' .. a.worker))) do
    local row = row_of(seq)
    if tokens[row.n] then unclaimed(seq, row) end
  end
end
