-- The two doors: what changes something, and what does not, which a server that is out of memory answers as well.

local function without_nulls(value)
  if type(value) ~= 'table' then return value end
  for name, part in pairs(value) do
    if part == cjson.null then value[name] = nil else without_nulls(part) end
  end
  return value
end

local function answer(functions)
  return function(_, arguments)
    local moment = call('TIME')
    PREFIX, NOW, COUNTS = arguments[1], tonumber(moment[1]) * SECOND + tonumber(moment[2]), {}
    local raw = {}
    for place = 4, #arguments do raw[place - 3] = arguments[place] end
    local value, bodies = functions[arguments[2]](without_nulls(cjson.decode(arguments[3])), raw)
    write_counts()
    local found = { cjson.encode(value == nil and cjson.null or value) }
    for _, body in ipairs(bodies or {}) do found[#found + 1] = body end
    return found
  end
end

redis.register_function({ function_name = LIBRARY, callback = answer(F) })
redis.register_function({ function_name = LIBRARY .. '_read', callback = answer(READ), flags = { 'no-writes' } })
