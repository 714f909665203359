-- History: rows of counts by their level, sorted by when their time begins. Each has a number, so none is another's.

local function add_history(rows)
  for _, one in ipairs(rows or {}) do
    local at = one.at or text(NOW)
    call('ZADD', key('history:' .. one.level), at, at .. '|' .. number() .. '|' .. one.row)
  end
end

function F.record_history(a) add_history(a.rows) end

function READ.old_history(a)
  local oldest = math.floor((NOW - math.floor(a.keep * SECOND)) / a.longer) * a.longer
  return call('ZRANGEBYSCORE', key('history:' .. a.level), '-inf', '(' .. text(oldest), 'LIMIT', 0, a.limit)
end

function F.fold_history(a)
  local name = key('history:' .. a.level)
  for _, one in ipairs(a.old) do
    if not call('ZSCORE', name, one) then return false end
  end
  for _, one in ipairs(a.old) do call('ZREM', name, one) end
  add_history(a.rows)
  return true
end

function F.forget_history(a)
  call('ZREMRANGEBYSCORE', key('history:' .. a.level), '-inf', '(' .. text(NOW - math.floor(a.keep * SECOND)))
end

READ.history = function(a)
  local found = {}
  for level = 0, 3 do
    for _, one in ipairs(call('ZRANGEBYSCORE', key('history:' .. level), a.since, '(' .. a['until'])) do
      found[#found + 1] = one
    end
  end
  return found
end
