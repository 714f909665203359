-- What onceward says to PostgreSQL in its own words; portable.sql has what all databases share. Each section says which guard it carries
-- and which index it relies on. {prefix} is the only substitution; everything else is a parameter. sqlite.sql has the same names.
--
-- Whatever the statistics say, a statement that does work (rather than report) reads what it came for: see Plans in docs/architecture.md.
-- So nothing is joined to a table that grows: its rows are found by seq = ANY(ARRAY(SELECT ...)), by LATERAL (... LIMIT 1) or by
-- EXISTS (... OFFSET 0), which leave the planner nothing but the index. A column with + 0 or || '' is not to be found by an index on it; the
-- indexes of what is due are on such an expression, so that no other one has their order.

-- name: begin_limits
-- Local to the transaction, so transaction pooling keeps working. The fence disappears when the transaction ends. The plans
-- are ours (OWN_PLANS in wire.py) where neither handlers nor reports follow; null means the server's own.
SELECT FROM (
    SELECT set_config('statement_timeout', %(statement_limit)s, true),
           set_config('lock_timeout', %(lock_limit)s, true),
           set_config('idle_in_transaction_session_timeout', %(idle_limit)s, true),
           set_config('onceward.fence', %(fence)s, true),
           set_config('enable_seqscan', %(plans)s, true),
           set_config('enable_bitmapscan', %(plans)s, true),
           set_config('max_parallel_workers_per_gather', %(plans)s, true),
           set_config('jit', %(plans)s, true),
           set_config('synchronous_commit', CASE WHEN %(durable)s THEN current_setting('synchronous_commit') ELSE 'off' END, true)
) AS settings

-- name: touch_catalog
-- Tells every receiver to read the catalog again before it stores anything. The version is random: a counter that a restore or a
-- failover takes back would come to a number that receivers know, for another catalog.
UPDATE {prefix}catalog
SET version = floor(random() * 9007199254740992)::bigint,
    last_crash_at = CASE WHEN %(crash)s::boolean THEN {clock} ELSE last_crash_at END

-- name: hold_catalog
-- For a receive inside the caller's transaction, in a statement before it: who wants what stays as it is until that ends, for
-- lock_catalog waits. Notifies as well, for when that commits. Answers whether the transaction keeps to a view of its own, which may be older.
SELECT current_setting('transaction_isolation') <> 'read committed'
FROM (SELECT pg_advisory_xact_lock_shared(hashtext('{prefix}catalog'), 0), pg_notify('{prefix}notify', '')) AS held

-- name: lock_catalog
-- Before who wants what is changed: waits for callers' transactions that have received under hold_catalog. Its own two-part space of
-- advisory locks, apart from the keys of messages.
SELECT pg_advisory_xact_lock(hashtext('{prefix}catalog'), 0)

-- name: catalog_holders
-- The transactions that lock_catalog waited for in vain, for people.
SELECT l.pid, coalesce(a.application_name, ''), coalesce(extract(epoch FROM clock_timestamp() - a.xact_start), 0)::float8
FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.granted AND l.mode = 'ShareLock' AND l.objsubid = 2 AND l.objid = 0
  AND l.classid = (hashtext('{prefix}catalog')::bigint & 4294967295)::oid
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
ORDER BY a.xact_start LIMIT 3

-- name: subscribe
-- Guard: unique (consumer, type). Returns nothing when the subscription is already there and unchanged.
INSERT INTO {prefix}subscription AS s (consumer, type, key_path, key_function, sequence, on_dead, aggregate)
VALUES (%(consumer)s, %(type)s, %(key_path)s, %(key_function)s, %(sequence)s, %(on_dead)s, %(aggregate)s)
ON CONFLICT (consumer, type) DO UPDATE
SET key_path = excluded.key_path, key_function = excluded.key_function, sequence = excluded.sequence,
    on_dead = excluded.on_dead, aggregate = excluded.aggregate, retired = false
WHERE s.retired OR (s.key_path, s.key_function, s.sequence, s.on_dead, s.aggregate)
      IS DISTINCT FROM (excluded.key_path, excluded.key_function, excluded.sequence, excluded.on_dead, excluded.aggregate)
RETURNING id

-- name: receive
-- Guard: unique (consumer, source, id); a duplicate is an insert that changed nothing. Numbers are drawn in arrival order,
-- rows are inserted in id order, so that batches which overlap cannot deadlock. Inserts nothing under an outdated catalog (outgoing
-- messages need none).
WITH input AS MATERIALIZED (
    SELECT nextval('{prefix}seq') AS seq, i.*
    FROM unnest(
        %(ordinal)b::integer[], %(consumer)b::integer[], %(source)b::integer[], %(stored_id)b::bytea[],
        %(hash)b::bytea[], %(type_hash)b::bigint[], %(subscription)b::integer[], %(key_hash)b::bigint[], %(slot)b::smallint[], %(id)b::text[], %(type)b::text[],
        %(version)b::integer[], %(key)b::text[], %(key_from)b::text[], %(aggregate)b::text[], %(position)b::bigint[], %(headers)b::text[], %(body)b::bytea[], %(place)b::bigint[],
        %(sequence)b::bigint[], %(destination)b::text[], %(cause)b::bigint[], %(unplaced)b::text[], %(due_at)b::bigint[], %(due_in)b::bigint[]
    ) AS i (ordinal, consumer, source, stored_id, hash, type_hash, subscription, key_hash, slot, id, type, version,
            key, key_from, aggregate, position, headers, body, place, sequence, destination, cause, unplaced, due_at, due_in)
    WHERE coalesce((SELECT version FROM {prefix}catalog WHERE one) = %(catalog)s::bigint, true)
      AND (%(worker)s::bigint IS NULL OR EXISTS (SELECT FROM {prefix}worker w WHERE w.id = %(worker)s FOR KEY SHARE))
), fresh AS (
    INSERT INTO {prefix}ledger (seq, consumer, source, slot, type_hash, id, hash, received_at)
    SELECT seq, consumer, source, slot, type_hash, stored_id, hash, {clock}
    FROM input ORDER BY consumer, source, stored_id
    ON CONFLICT (consumer, source, id) DO NOTHING
    RETURNING seq, received_at
), stored AS (
    INSERT INTO {prefix}body (seq, source, id, type, version, key, key_from, aggregate, position, headers, body, destination, cause,
                      received_at, due_at)
    SELECT seq, source, id, type, version, key, key_from, aggregate, position, headers, body, destination, cause, received_at,
           coalesce(due_at, received_at + due_in)
    FROM input JOIN fresh USING (seq)
), queued AS (
    INSERT INTO {prefix}queue (seq, subscription, key_hash, slot, place, sequence, outgoing, destination, state, due_at, worker,
                               token, attempts, isolation, type)
    SELECT seq, subscription, key_hash, slot, coalesce(place, seq), sequence, %(outgoing)s::boolean,
           CASE WHEN %(outgoing)s::boolean THEN coalesce(destination, 'default') END,
           CASE WHEN unplaced IS NOT NULL THEN 'unhandled' WHEN due_at IS NULL AND due_in IS NULL THEN %(state)s::text ELSE 'scheduled' END,
           CASE WHEN unplaced IS NULL THEN coalesce(due_at, received_at + due_in, {clock} + {microseconds delay}) END,
           %(worker)s::bigint, %(token)s::bigint, %(attempts)s::integer, %(isolation)s::integer,
           unplaced
    FROM input JOIN fresh USING (seq)
)
SELECT ordinal, seq, received_at FROM input JOIN fresh USING (seq)

-- name: receive_direct
-- Guard: unique (consumer, source, id), as for receive, and in the same order. Messages that this very transaction handles, or queues when
-- it is known which. Inserts nothing under an outdated catalog. It waits for the transaction of a copy as long as lock_timeout says, a short
-- time; what comes after it is the handlers', and may wait as long as they may run.
WITH input AS MATERIALIZED (
    SELECT nextval('{prefix}seq') AS seq, i.*
    FROM unnest(
        %(ordinal)b::integer[], %(consumer)b::integer[], %(source)b::integer[], %(stored_id)b::bytea[],
        %(hash)b::bytea[], %(type_hash)b::bigint[], %(slot)b::smallint[], %(id)b::text[], %(type)b::text[],
        %(version)b::integer[], %(key)b::text[], %(key_from)b::text[], %(aggregate)b::text[], %(position)b::bigint[], %(headers)b::text[], %(body)b::bytea[],
        %(destination)b::text[], %(cause)b::bigint[], %(due_at)b::bigint[], %(due_in)b::bigint[]
    ) AS i (ordinal, consumer, source, stored_id, hash, type_hash, slot, id, type, version, key, key_from, aggregate, position, headers,
            body, destination, cause, due_at, due_in)
    WHERE (SELECT version FROM {prefix}catalog WHERE one) = %(catalog)s::bigint
), fresh AS (
    INSERT INTO {prefix}ledger (seq, consumer, source, slot, type_hash, id, hash, received_at)
    SELECT seq, consumer, source, slot, type_hash, stored_id, hash, {clock}
    FROM input ORDER BY consumer, source, stored_id
    ON CONFLICT (consumer, source, id) DO NOTHING
    RETURNING seq, received_at
), stored AS (
    INSERT INTO {prefix}body (seq, source, id, type, version, key, key_from, aggregate, position, headers, body, destination, cause,
                      received_at, due_at)
    SELECT seq, source, id, type, version, key, key_from, aggregate, position, headers, body, destination, cause, received_at,
           coalesce(due_at, received_at + due_in)
    FROM input JOIN fresh USING (seq)
)
SELECT ordinal, seq, received_at FROM input JOIN fresh USING (seq)
WHERE set_config('lock_timeout', current_setting('statement_timeout'), true) IS NOT NULL

-- name: enqueue
-- In the transaction that has received them, and has found that they do not run in it, or saw them fail.
INSERT INTO {prefix}queue (seq, subscription, key_hash, slot, place, sequence, state, due_at, attempts, type)
SELECT seq, subscription, key_hash, slot, place, sequence, CASE WHEN unplaced IS NULL THEN state ELSE 'unhandled' END, {clock} + after,
       attempts, unplaced
FROM unnest(
    %(seq)b::bigint[], %(subscription)b::integer[], %(key_hash)b::bigint[], %(slot)b::smallint[], %(place)b::bigint[], %(sequence)b::bigint[],
    %(state)b::text[], %(after)b::bigint[], %(attempts)b::integer[], %(unplaced)b::text[]
) AS i (seq, subscription, key_hash, slot, place, sequence, state, after, attempts, unplaced)

-- name: known
-- What is known of messages that were not inserted. Relies on the unique key of the ledger.
SELECT i.ordinal, l.seq, l.hash, l.type_hash,
       NOT EXISTS (SELECT FROM {prefix}queue q WHERE q.seq = l.seq OFFSET 0)
           AND NOT EXISTS (SELECT FROM {prefix}audit a WHERE a.seq = l.seq AND a.action = 'discard' OFFSET 0),
       (SELECT r.result FROM {prefix}result r WHERE r.seq = l.seq), ({now} - l.received_at) / {second}
FROM unnest(%(ordinal)b::integer[], %(consumer)b::integer[], %(source)b::integer[], %(stored_id)b::bytea[])
         AS i (ordinal, consumer, source, stored_id)
CROSS JOIN LATERAL (
    SELECT seq, hash, type_hash, received_at FROM {prefix}ledger
    WHERE (consumer, source, id) = (i.consumer, i.source, i.stored_id) LIMIT 1
) AS l

-- name: known_unplaced
-- As known, of what came under this id and type when nobody had subscribed, and is not placed yet: the first of it, whoever stored it.
-- Relies on the unique key of the ledger, from one name to the next, and on the primary key of queue.
SELECT i.ordinal, f.seq, f.hash, f.type_hash, false, NULL::text, ({now} - f.received_at) / {second}
FROM unnest(%(ordinal)b::integer[], %(source)b::integer[], %(stored_id)b::bytea[], %(type)b::text[])
         AS i (ordinal, source, stored_id, type)
CROSS JOIN LATERAL (
    SELECT l.seq, l.hash, l.type_hash, l.received_at
    FROM {prefix}name c CROSS JOIN LATERAL (
        SELECT seq, hash, type_hash, received_at FROM {prefix}ledger
        WHERE (consumer, source, id) = (c.id, i.source, i.stored_id) LIMIT 1
    ) AS l CROSS JOIN LATERAL (SELECT state, type, subscription FROM {prefix}queue WHERE seq = l.seq LIMIT 1) AS w
    WHERE w.state = 'unhandled' AND w.type = i.type AND w.subscription IS NULL
    ORDER BY l.seq LIMIT 1
) AS f

-- name: import_ids
-- Guard: unique (consumer, source, id): what is known stays as it is. An id that was handled elsewhere is a finished message without a body:
-- it gets no row in the queue, and of its bytes and its type nothing is known. Rows are inserted in id order, as receive does.
WITH input AS MATERIALIZED (
    SELECT i.*
    FROM unnest(
        %(ordinal)b::integer[], %(consumer)b::integer[], %(source)b::integer[], %(stored_id)b::bytea[], %(slot)b::smallint[],
        %(age)b::bigint[]
    ) AS i (ordinal, consumer, source, stored_id, slot, age)
    ORDER BY consumer, source, stored_id
)
INSERT INTO {prefix}ledger (seq, consumer, source, type_hash, slot, id, hash, received_at)
SELECT nextval('{prefix}seq'), consumer, source, 0, slot, stored_id, decode(repeat('00', 32), 'hex'), {clock} - age
FROM input
ON CONFLICT (consumer, source, id) DO NOTHING
RETURNING seq

-- name: count_duplicates
-- One row per message however many copies came; records arrive sorted by seq, so that batches cannot deadlock.
INSERT INTO {prefix}duplicate AS d (seq, copies, first_at, last_at)
SELECT i.seq, i.copies, {clock}, {clock}
FROM unnest(%(seq)b::bigint[], %(copies)b::bigint[]) AS i (seq, copies)
ON CONFLICT (seq) DO UPDATE SET copies = d.copies + excluded.copies, last_at = excluded.last_at

-- name: quarantine
-- Guards: unique (seq, hash, type_hash), and the ledger row is there and stays until the commit: a fan-out may have replaced it, and a
-- case without one is out of reach. Never touches the first body; answers what an operator decided about these bytes under this type.
INSERT INTO {prefix}quarantine AS x (seq, hash, type_hash, type, version, key, position, due_at, headers, body, copies, first_at, last_at)
SELECT l.seq, %(hash)s, %(type_hash)s, %(type)s, %(version)s, %(key)s, %(position)s, coalesce(%(due_at)s::bigint, {clock} + %(due_in)s::bigint), %(headers)s, %(body)s, 1, {clock}, {clock}
FROM {prefix}ledger l WHERE l.seq = %(seq)s FOR KEY SHARE
ON CONFLICT (seq, hash, type_hash) DO UPDATE SET copies = x.copies + 1, last_at = excluded.last_at
RETURNING resolution, accepted_seq

-- name: forget_first_seen
-- Some of those whose window is over, beside each new one, so that the table stays as large as its window. Relies on first_seen_at;
-- skips what others hold, so that no two wait for each other.
DELETE FROM {prefix}first_seen WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM {prefix}first_seen
    WHERE source + 0 = %(source)s AND seen_at < {now} - {microseconds window}
    ORDER BY seen_at LIMIT 10 FOR UPDATE SKIP LOCKED))

-- name: requeue_own
-- Guards: the ledger row is this very message under this very number, no queue row is there, no run has finished it, and nobody has
-- discarded it. Used when a handler that runs as messages come has committed on its own.
INSERT INTO {prefix}queue (seq, subscription, key_hash, slot, place, sequence, state, due_at, attempts, type)
SELECT l.seq, %(subscription)s::integer, %(key_hash)s::bigint, l.slot, coalesce(%(place)s::bigint, l.seq), %(sequence)s::bigint,
       CASE WHEN %(unplaced)s::text IS NULL THEN %(state)s::text ELSE 'unhandled' END, {clock} + %(after)s::bigint, %(attempts)s::integer,
       %(unplaced)s::text
FROM {prefix}ledger l
WHERE (l.consumer, l.source, l.id) = (%(consumer)s, %(source)s, %(stored_id)s) AND l.seq = %(seq)s
  AND NOT EXISTS (SELECT FROM {prefix}queue q WHERE q.seq = l.seq OFFSET 0)
  AND NOT EXISTS (SELECT FROM {prefix}run r WHERE r.first_seq <= l.seq AND r.last_seq >= l.seq AND l.seq = ANY(r.seqs) OFFSET 0)
  AND NOT EXISTS (SELECT FROM {prefix}audit a WHERE a.seq = l.seq AND a.action = 'discard' OFFSET 0)
FOR KEY SHARE OF l
RETURNING seq

-- name: lock_free_keys
-- Guard of inline work with keys: the locks of those that are answered are held (tried). Of a key that has unfinished messages the lock is not
-- even tried: whoever finishes one waits for it. Relies on queue_key. busy_keys looks again, in a statement after this one.
SELECT i.key_hash
FROM unnest(%(key_hash)b::bigint[]) AS i (key_hash)
WHERE CASE WHEN (SELECT true FROM {prefix}queue q WHERE q.key_hash = i.key_hash AND q.place < 9223372036854775807 ORDER BY q.place, q.seq LIMIT 1) IS NULL
           THEN pg_try_advisory_xact_lock(i.key_hash) ELSE false END

-- name: busy_keys
-- A new statement, so that it sees what was committed before the key locks were taken: the keys that have something unfinished. Relies on
-- queue_key, as park does, and on queue_unhandled: a message that is not placed yet may be one of the key. What is scheduled holds nothing.
SELECT i.key_hash
FROM unnest(%(key_hash)b::bigint[], %(consumer)b::integer[]) AS i (key_hash, consumer)
WHERE (SELECT true FROM {prefix}queue q WHERE q.key_hash = i.key_hash AND q.place < 9223372036854775807 ORDER BY q.place, q.seq LIMIT 1) IS NOT NULL
    OR (EXISTS (SELECT FROM {prefix}queue WHERE state = 'unhandled' OFFSET 0) AND EXISTS (
        SELECT FROM {prefix}subscription s WHERE s.consumer = i.consumer AND NOT s.retired AND (
            EXISTS (SELECT FROM {prefix}queue u WHERE u.state = 'unhandled' AND u.type = s.type AND u.subscription IS NULL AND u.postponed = 0 OFFSET 0)
            OR EXISTS (SELECT FROM {prefix}queue u WHERE u.state = 'unhandled' AND u.type = s.type AND u.subscription = s.id AND u.postponed = 0 OFFSET 0))))

-- name: claim
-- Guards: not claimed yet, row locked (locked ones are skipped), the worker's own row still there and kept from take-over until commit,
-- key lock tried; the rows of keys that were just found held are passed over. What was scheduled joins its key, under the key lock: behind
-- all that came before, in the order of the times; behind one that another lane has locked, and could not claim, it is left for the next
-- claim. A larger body stays behind, to be fetched by itself (body_of). MATERIALIZED, so that no plan can lock more than the limit.
-- Relies on queue_ready, queue_due and queue_key.
WITH me AS MATERIALIZED (
    SELECT id FROM {prefix}worker WHERE id = %(worker)s FOR KEY SHARE
), due AS MATERIALIZED (
    SELECT seq, key_hash, place, due_at FROM {prefix}queue
    WHERE due_at IS NOT NULL AND token IS NULL AND isolation = 0 AND NOT outgoing AND due_at <= {now}
      AND subscription = ANY(%(subscriptions)b::integer[])
      AND (key_hash IS NULL OR key_hash <> ALL(%(held)b::bigint[]))
    ORDER BY due_at LIMIT %(retries)s FOR UPDATE SKIP LOCKED
), fresh AS MATERIALIZED (
    SELECT seq, key_hash, place, due_at FROM {prefix}queue
    WHERE state = 'ready' AND token IS NULL AND isolation = 0 AND NOT outgoing AND seq + 0 >= %(cursor)s
      AND subscription = ANY(%(subscriptions)b::integer[])
      AND (key_hash IS NULL OR key_hash <> ALL(%(held)b::bigint[]))
    ORDER BY seq + 0 LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), picked AS MATERIALIZED (
    SELECT * FROM due UNION ALL SELECT * FROM fresh LIMIT %(limit)s
), mine AS MATERIALIZED (
    SELECT seq, key_hash, place, due_at FROM picked, me WHERE key_hash IS NULL OR pg_try_advisory_xact_lock(key_hash)
), before AS MATERIALIZED (
    SELECT key_hash, (
        SELECT min(e.due_at) FROM {prefix}queue e
        WHERE e.key_hash = keys.key_hash AND e.place = 9223372036854775807 AND e.seq <> ALL(ARRAY(SELECT seq FROM mine))
    ) AS due_at
    FROM (SELECT DISTINCT key_hash FROM mine WHERE place = 9223372036854775807) AS keys
), joining AS MATERIALIZED (
    SELECT seq, nextval('{prefix}seq') AS place FROM (
        SELECT m.seq FROM mine m LEFT JOIN before b ON b.key_hash = m.key_hash
        WHERE m.place = 9223372036854775807 AND m.due_at <= coalesce(b.due_at, m.due_at) ORDER BY m.due_at, m.seq
    ) AS scheduled
), claimed AS (
    UPDATE {prefix}queue q
    SET worker = %(worker)s, token = %(token)s, state = CASE WHEN state IN ('waiting', 'scheduled') THEN 'retry' ELSE state END,
        place = CASE place WHEN 9223372036854775807 THEN (SELECT j.place FROM joining j WHERE j.seq = q.seq) ELSE place END
    WHERE seq = ANY(ARRAY(SELECT seq FROM mine WHERE place < 9223372036854775807 UNION ALL SELECT seq FROM joining))
    RETURNING seq, subscription, key_hash, place, sequence, attempts
)
SELECT q.*, b.source, b.id, b.type, b.version, b.key, b.headers, CASE WHEN octet_length(b.body) <= 262144 THEN b.body END, b.destination,
       b.key_from, b.received_at, ({clock} - coalesce(b.due_at, b.received_at)) / {second}
FROM claimed q CROSS JOIN LATERAL (SELECT * FROM {prefix}body WHERE seq = q.seq LIMIT 1) AS b

-- name: claim_outgoing
-- As claim, for the messages to one destination: their indexes begin with it, so that no backlog of another one, or of incoming
-- messages, is in the way. New ones and those tried again come in turn. Relies on queue_outgoing and queue_outgoing_due.
WITH me AS MATERIALIZED (
    SELECT id FROM {prefix}worker WHERE id = %(worker)s FOR KEY SHARE
), due AS MATERIALIZED (
    SELECT seq, key_hash, place, due_at FROM {prefix}queue
    WHERE due_at IS NOT NULL AND token IS NULL AND isolation = 0 AND outgoing AND due_at <= {now}
      AND destination = %(destination)s AND subscription = ANY(%(subscriptions)b::integer[])
    ORDER BY due_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), fresh AS MATERIALIZED (
    SELECT seq, key_hash, place, due_at FROM {prefix}queue
    WHERE state = 'ready' AND token IS NULL AND isolation = 0 AND outgoing AND seq + 0 >= %(cursor)s
      AND destination = %(destination)s AND subscription = ANY(%(subscriptions)b::integer[])
    ORDER BY seq + 0 LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), picked AS MATERIALIZED (
    SELECT seq, key_hash, place, due_at FROM (
        SELECT *, row_number() OVER (ORDER BY due_at) AS turn FROM due
        UNION ALL SELECT *, row_number() OVER (ORDER BY seq) FROM fresh
    ) AS both_kinds ORDER BY turn LIMIT %(limit)s
), mine AS MATERIALIZED (
    SELECT seq, key_hash, place, due_at FROM picked, me WHERE key_hash IS NULL OR pg_try_advisory_xact_lock(key_hash)
), before AS MATERIALIZED (
    SELECT key_hash, (
        SELECT min(e.due_at) FROM {prefix}queue e
        WHERE e.key_hash = keys.key_hash AND e.place = 9223372036854775807 AND e.seq <> ALL(ARRAY(SELECT seq FROM mine))
    ) AS due_at
    FROM (SELECT DISTINCT key_hash FROM mine WHERE place = 9223372036854775807) AS keys
), joining AS MATERIALIZED (
    SELECT seq, nextval('{prefix}seq') AS place FROM (
        SELECT m.seq FROM mine m LEFT JOIN before b ON b.key_hash = m.key_hash
        WHERE m.place = 9223372036854775807 AND m.due_at <= coalesce(b.due_at, m.due_at) ORDER BY m.due_at, m.seq
    ) AS scheduled
), claimed AS (
    UPDATE {prefix}queue q
    SET worker = %(worker)s, token = %(token)s, state = CASE WHEN state IN ('waiting', 'scheduled') THEN 'retry' ELSE state END,
        place = CASE place WHEN 9223372036854775807 THEN (SELECT j.place FROM joining j WHERE j.seq = q.seq) ELSE place END
    WHERE seq = ANY(ARRAY(SELECT seq FROM mine WHERE place < 9223372036854775807 UNION ALL SELECT seq FROM joining))
    RETURNING seq, subscription, key_hash, place, sequence, attempts
)
SELECT q.*, b.source, b.id, b.type, b.version, b.key, b.headers, CASE WHEN octet_length(b.body) <= 262144 THEN b.body END, b.destination,
       b.key_from, b.received_at, ({clock} - coalesce(b.due_at, b.received_at)) / {second}
FROM claimed q CROSS JOIN LATERAL (SELECT * FROM {prefix}body WHERE seq = q.seq LIMIT 1) AS b

-- name: awaiting
-- Which of these destinations have a message that may be published now. Relies on queue_outgoing, queue_outgoing_due and queue_isolated.
SELECT place.name FROM unnest(%(destinations)b::text[]) AS place (name)
WHERE EXISTS (SELECT FROM {prefix}queue WHERE state = 'ready' AND token IS NULL AND isolation = 0 AND outgoing AND destination = place.name OFFSET 0)
   OR EXISTS (SELECT FROM {prefix}queue WHERE due_at IS NOT NULL AND token IS NULL AND isolation = 0 AND outgoing
                AND destination = place.name AND due_at <= {now} OFFSET 0)
   OR EXISTS (SELECT FROM {prefix}queue WHERE isolation > 0 AND token IS NULL AND destination = place.name
                AND (state = 'ready' OR due_at <= {now}) OFFSET 0)

-- name: hasten
-- Guard: still due later and not claimed; locked ones are skipped. What failed while its destination, or what its handler calls, was away
-- is due at once when that is back; what was told when to come again (`Retry`) keeps its time. Relies on queue_due or
-- queue_outgoing_due, and on attempt_seq.
WITH incoming AS MATERIALIZED (
    SELECT q.seq FROM {prefix}queue q
    WHERE q.due_at IS NOT NULL AND q.token IS NULL AND q.isolation = 0 AND NOT q.outgoing AND NOT %(outgoing)s::boolean
      AND q.due_at > {now} AND q.state = 'retry' AND q.subscription = ANY(%(subscriptions)b::integer[])
      AND (SELECT a.error NOT LIKE 'Retry:%%' FROM {prefix}attempt a WHERE a.seq = q.seq ORDER BY a.id + 0 DESC LIMIT 1)
    ORDER BY q.due_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), outgoing AS MATERIALIZED (
    SELECT q.seq FROM {prefix}queue q
    WHERE q.due_at IS NOT NULL AND q.token IS NULL AND q.isolation = 0 AND q.outgoing AND %(outgoing)s::boolean AND q.destination = %(destination)s::text
      AND q.due_at > {now} AND q.state = 'retry' AND q.subscription = ANY(%(subscriptions)b::integer[])
      AND (SELECT a.error NOT LIKE 'Retry:%%' FROM {prefix}attempt a WHERE a.seq = q.seq ORDER BY a.id + 0 DESC LIMIT 1)
    ORDER BY q.due_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
UPDATE {prefix}queue SET due_at = {clock}
WHERE seq = ANY(ARRAY(SELECT seq FROM incoming UNION ALL SELECT seq FROM outgoing))
RETURNING seq

-- name: claim_isolated
-- As claim, for messages of one level that were in flight when a process died. Those whose key is locked are passed by: OFFSET keeps the lock of
-- the key behind that of the row, so that no more are tried than are needed. Relies on queue_isolated.
WITH me AS MATERIALIZED (
    SELECT id FROM {prefix}worker WHERE id = %(worker)s FOR KEY SHARE
), mine AS MATERIALIZED (
    SELECT seq FROM (
        SELECT seq, key_hash FROM {prefix}queue
        WHERE isolation = %(level)s AND isolation > 0 AND token IS NULL
          AND (state = 'ready' OR due_at <= {now})
          AND subscription = ANY(%(subscriptions)b::integer[]) AND destination IS NOT DISTINCT FROM %(destination)s::text
          AND (key_hash IS NULL OR key_hash <> ALL(%(held)b::bigint[]))
        ORDER BY seq + 0 OFFSET 0 FOR UPDATE SKIP LOCKED
    ) AS waiting
    WHERE EXISTS (SELECT FROM me) AND (key_hash IS NULL OR pg_try_advisory_xact_lock(key_hash)) LIMIT %(limit)s
), claimed AS (
    UPDATE {prefix}queue SET worker = %(worker)s, token = %(token)s, state = CASE state WHEN 'waiting' THEN 'retry' ELSE state END
    WHERE seq = ANY(ARRAY(SELECT seq FROM mine))
    RETURNING seq, subscription, key_hash, place, sequence, attempts
)
SELECT q.*, b.source, b.id, b.type, b.version, b.key, b.headers, CASE WHEN octet_length(b.body) <= 262144 THEN b.body END, b.destination,
       b.key_from, b.received_at, ({clock} - coalesce(b.due_at, b.received_at)) / {second}
FROM claimed q CROSS JOIN LATERAL (SELECT * FROM {prefix}body WHERE seq = q.seq LIMIT 1) AS b

-- name: first_due
-- The subscriptions, of these, of the first new message that may be claimed now and of the first one that may be tried again.
-- Relies on queue_ready and queue_due.
(SELECT subscription FROM {prefix}queue
 WHERE state = 'ready' AND token IS NULL AND isolation = 0 AND NOT outgoing AND seq + 0 >= 0
   AND subscription = ANY(%(subscriptions)b::integer[])
 ORDER BY seq + 0 LIMIT 1)
UNION ALL
(SELECT subscription FROM {prefix}queue
 WHERE due_at IS NOT NULL AND token IS NULL AND isolation = 0 AND NOT outgoing AND due_at <= {now}
   AND subscription = ANY(%(subscriptions)b::integer[])
 ORDER BY due_at LIMIT 1)

-- name: keys_in_front
-- The keys of the rows that a claim looked at in vain, because others hold them (inline work holds its key while its handler runs): the next
-- claim passes over them. No row: nothing is ready, or the worker's own row is gone. Relies on queue_ready and queue_due.
SELECT DISTINCT key_hash FROM (
    (SELECT key_hash FROM {prefix}queue
     WHERE state = 'ready' AND token IS NULL AND isolation = 0 AND NOT outgoing AND seq + 0 >= %(cursor)s
       AND subscription = ANY(%(subscriptions)b::integer[]) AND (key_hash IS NULL OR key_hash <> ALL(%(held)b::bigint[]))
     ORDER BY seq + 0 LIMIT %(limit)s)
    UNION ALL
    (SELECT key_hash FROM {prefix}queue
     WHERE due_at IS NOT NULL AND token IS NULL AND isolation = 0 AND NOT outgoing AND due_at <= {now}
       AND subscription = ANY(%(subscriptions)b::integer[]) AND (key_hash IS NULL OR key_hash <> ALL(%(held)b::bigint[]))
     ORDER BY due_at LIMIT %(limit)s)
) AS looked_at
WHERE key_hash IS NOT NULL AND EXISTS (SELECT FROM {prefix}worker WHERE id = %(worker)s)

-- name: fair_share
-- How many of the messages that may be claimed now each lane of every process would have, counted up to what all of them would take.
-- Relies on queue_ready and queue_due; there is a handful of workers.
WITH all_lanes AS MATERIALIZED (
    SELECT greatest(sum(lanes), 1) AS lanes FROM (SELECT lanes FROM {prefix}worker ORDER BY id) AS workers
)
SELECT ceil(((SELECT count(*) FROM (
    SELECT FROM {prefix}queue
    WHERE state = 'ready' AND token IS NULL AND isolation = 0 AND NOT outgoing AND seq + 0 >= %(cursor)s
      AND subscription = ANY(%(subscriptions)b::integer[])
    ORDER BY seq + 0 LIMIT %(limit)s * (SELECT lanes FROM all_lanes)) AS fresh
) + (SELECT count(*) FROM (
    SELECT FROM {prefix}queue
    WHERE due_at IS NOT NULL AND token IS NULL AND isolation = 0 AND NOT outgoing AND due_at <= {now}
      AND subscription = ANY(%(subscriptions)b::integer[])
    ORDER BY due_at LIMIT %(limit)s * (SELECT lanes FROM all_lanes)) AS due
)) / lanes)::integer FROM all_lanes

-- name: isolation_level
-- The highest level of the isolated messages that wait, 0 for none. Relies on queue_isolated.
SELECT coalesce((
    SELECT isolation FROM {prefix}queue
    WHERE isolation > 0 AND token IS NULL AND (state = 'ready' OR due_at <= {now})
      AND subscription = ANY(%(subscriptions)b::integer[]) AND destination IS NOT DISTINCT FROM %(destination)s::text
    ORDER BY isolation DESC LIMIT 1), 0)

-- name: park
-- Guard: the key lock is held since the statement before, so this view is newer than the lock. A row stays claimed only when every
-- earlier row of its key is in this claim and no other claim holds a row of the key. Behind an earlier row it waits; behind a claimed
-- later one (which was committed first) it only loses its claim, for nobody would promote it. Where an earlier message that its consumer
-- will get is not placed yet, nor refused, and may be of its key, it waits for a moment. Relies on queue_key, queue_claimed (all of it:
-- what the workers have in hand) and queue_unhandled. "Has a key" is said by a comparison that only queue_claimed answers.
WITH RECURSIVE waiting (type) AS (
    (SELECT type FROM {prefix}queue WHERE state = 'unhandled' ORDER BY type LIMIT 1)
    UNION ALL
    SELECT (SELECT q.type FROM {prefix}queue q WHERE q.state = 'unhandled' AND q.type > w.type ORDER BY q.type LIMIT 1)
    FROM waiting w WHERE w.type IS NOT NULL
), first AS MATERIALIZED (
    SELECT s.consumer, min(f.seq) AS seq
    FROM waiting w JOIN {prefix}subscription s ON s.type = w.type AND NOT s.retired CROSS JOIN LATERAL (
        (SELECT coalesce(sequence, seq) AS seq FROM {prefix}queue
         WHERE state = 'unhandled' AND type = w.type AND subscription IS NULL AND postponed = 0 ORDER BY 1 LIMIT 1)
        UNION ALL
        (SELECT coalesce(sequence, seq) FROM {prefix}queue
         WHERE state = 'unhandled' AND type = w.type AND subscription = s.id AND postponed = 0 ORDER BY 1 LIMIT 1)
    ) AS f
    GROUP BY s.consumer
), mine AS MATERIALIZED (
    SELECT seq, key_hash, place, sequence, subscription FROM {prefix}queue
    WHERE worker = %(worker)s AND token = %(token)s AND (worker, key_hash) >= (%(worker)s, '-9223372036854775808'::bigint)
), checked AS MATERIALIZED (
    SELECT m.seq, (
        SELECT true FROM {prefix}queue e
        WHERE e.key_hash = m.key_hash AND (e.place, e.seq) < (m.place, m.seq)
          AND NOT coalesce(e.worker = %(worker)s AND e.token = %(token)s, false)
        ORDER BY e.place, e.seq LIMIT 1
    ) IS NOT NULL AS earlier, m.key_hash IN (
        SELECT n.key_hash FROM {prefix}queue n
        WHERE n.token IS NOT NULL AND NOT (n.worker = %(worker)s AND n.token = %(token)s)
    ) AS busy, m.sequence IS NULL AND EXISTS (
        SELECT FROM first f JOIN {prefix}subscription s ON s.consumer = f.consumer
        WHERE s.id = m.subscription AND f.seq < m.seq OFFSET 0
    ) AS unplaced
    FROM mine m
)
UPDATE {prefix}queue
SET worker = NULL, token = NULL,
    state = CASE WHEN seq = ANY(ARRAY(SELECT seq FROM checked WHERE earlier OR unplaced)) THEN 'waiting' ELSE state END,
    due_at = CASE WHEN seq = ANY(ARRAY(SELECT seq FROM checked WHERE earlier)) THEN NULL
                  WHEN seq = ANY(ARRAY(SELECT seq FROM checked WHERE unplaced)) THEN {clock} + 250000 ELSE due_at END
WHERE seq = ANY(ARRAY(SELECT seq FROM checked WHERE earlier OR busy OR unplaced))
RETURNING seq, CASE WHEN state = 'waiting' AND due_at IS NOT NULL THEN 'unplaced' ELSE state END

-- name: move
-- Guard: the row still carries this claim; under the locks of the key it leaves and the key it comes to. It is claimed anew, in its place.
UPDATE {prefix}queue
SET key_hash = %(key_hash)s, slot = %(slot)s, sequence = %(sequence)s::bigint, place = coalesce(%(sequence)s::bigint, place), worker = NULL, token = NULL
WHERE seq = %(seq)s AND (worker, token) IS NOT DISTINCT FROM (%(worker)s::bigint, %(token)s::bigint)
RETURNING seq

-- name: lock_keys
-- The last blocking lock of whoever removes rows of a key, taken in sorted order.
SELECT count(pg_advisory_xact_lock(key_hash))
FROM (SELECT unnest(%(key_hashes)b::bigint[]) AS key_hash ORDER BY 1) AS sorted

-- name: finish
-- Guard: every row still carries this claim, and the transaction still carries its fence; else `messages` is null, the insert
-- fails, and everything the handlers did rolls back. The deletion is "done". Compared so that only the primary key can find the rows: while
-- an old transaction keeps row versions, the index of claims holds every message that this worker has finished since.
WITH done AS (
    DELETE FROM {prefix}queue
    WHERE seq = ANY(%(seqs)b::bigint[]) AND (worker, token) IS NOT DISTINCT FROM (%(worker)s::bigint, %(token)s::bigint)
      AND current_setting('onceward.fence', true) = %(fence)s
    RETURNING seq, outgoing
)
INSERT INTO {prefix}run (worker, token, code_version, finished_at, first_seq, last_seq, seqs, messages, outgoing)
SELECT %(worker)s, %(token)s, %(code_version)s, {clock}, coalesce(min(seq), 0), coalesce(max(seq), 0),
       coalesce(array_agg(seq), '{}'), CASE WHEN count(*) = %(expected)s THEN count(*) END,
       coalesce(bool_or(outgoing), false)
FROM done

-- name: finish_direct
-- Guard: the transaction still carries its fence, so it is the one that inserted the ledger rows; else `messages` is null. That of a caller
-- carries none: there the savepoint is the fence, which was released before.
INSERT INTO {prefix}run (worker, token, code_version, finished_at, first_seq, last_seq, seqs, messages)
SELECT %(worker)s, 0, %(code_version)s, {clock}, %(first)s::bigint, %(last)s::bigint, %(seqs)b::bigint[],
       CASE WHEN coalesce(current_setting('onceward.fence', true), '') = %(fence)s THEN %(expected)s::integer END

-- name: promote
-- Guard: the key locks are held and the removal is in an earlier statement. Relies on queue_waiting.
UPDATE {prefix}queue SET state = 'ready', due_at = NULL
WHERE seq = ANY(ARRAY(
    SELECT w.seq
    FROM unnest(%(key_hashes)b::bigint[]) AS k (key_hash)
    CROSS JOIN LATERAL (
        SELECT seq FROM {prefix}queue q
        WHERE q.key_hash + 0 = k.key_hash AND q.state = 'waiting'
        ORDER BY place, seq LIMIT 1
    ) AS w
))
RETURNING subscription

-- name: store_results
-- In the handler's transaction: a result exists exactly when its effects do.
INSERT INTO {prefix}result (seq, result)
SELECT * FROM unnest(%(seq)b::bigint[], %(result)b::text[])

-- name: forget_bodies
-- For handlers with keep_body=False, in the handler's transaction; the hash stays in the ledger.
-- A large one is forgotten with the reference to it, which comes first.
UPDATE {prefix}body SET body = NULL, headers = regexp_replace(headers, '^\{"onceward-blob":"[^"]*",?', '{')
WHERE seq = ANY(%(seqs)b::bigint[])

-- name: settle
-- Guard: the row still carries this claim; no row back means that it was taken over. A dead row that is detached no longer holds its
-- key; then the key lock is held. An isolated message that has failed without killing its process is isolated no more, unless it has killed one before.
UPDATE {prefix}queue
SET state = %(state)s, due_at = {clock} + {microseconds delay},
    attempts = attempts + 1, worker = NULL, token = NULL, isolation = CASE WHEN crashes > 0 THEN isolation ELSE 0 END,
    key_hash = CASE WHEN %(detach)s::boolean THEN NULL ELSE key_hash END
WHERE seq = %(seq)s AND (worker, token) IS NOT DISTINCT FROM (%(worker)s::bigint, %(token)s::bigint)
RETURNING seq

-- name: postpone
-- Guards: the row still carries this claim, and was not postponed as often as it may be: then it is charged. An infrastructure error: try
-- again, uncharged, each time later.
UPDATE {prefix}queue
SET state = 'retry', worker = NULL, token = NULL, postponed = postponed + 1,
    due_at = {clock} + (least(%(delay)s::float8 * 2 ^ least(postponed, 20), %(longest)s::float8) * 1000000)::bigint
WHERE seq = %(seq)s AND (worker, token) IS NOT DISTINCT FROM (%(worker)s::bigint, %(token)s::bigint)
  AND (%(most)s::integer IS NULL OR postponed < %(most)s::integer)
RETURNING seq, (due_at - {clock}) / {second}

-- name: put_off
-- Guard: the row still carries this claim. Their handler pauses: nobody is charged.
UPDATE {prefix}queue
SET state = 'retry', due_at = {clock} + {microseconds delay}, worker = NULL, token = NULL
WHERE seq = ANY(%(seqs)b::bigint[]) AND (worker, token) IS NOT DISTINCT FROM (%(worker)s::bigint, %(token)s::bigint)
RETURNING seq

-- name: unclaim
-- Guard: the row still carries this claim. Nobody is charged.
UPDATE {prefix}queue SET worker = NULL, token = NULL
WHERE seq = ANY(%(seqs)b::bigint[]) AND (worker, token) IS NOT DISTINCT FROM (%(worker)s::bigint, %(token)s::bigint)
RETURNING seq

-- name: heartbeat
-- Guard: the row is still there and still this process's; no row back means that it was declared dead and must register anew.
UPDATE {prefix}worker
SET alive_until = {clock} + {microseconds lease}, inline = inline OR %(inline)s, circuits = %(circuits)s
WHERE id = %(worker)s AND process = %(process)s
RETURNING id

-- name: lapsed_workers
-- Locked, so that one process at a time takes a worker over; one that is claiming right now is skipped.
SELECT id, inline, pid, host FROM {prefix}worker
WHERE alive_until < {now} AND id <> %(worker)s
ORDER BY id LIMIT 10
FOR UPDATE SKIP LOCKED

-- name: worker_of_process
-- For a supervisor that saw its child die, and for a process that begins under the name of another. With those that it registered as
-- later, after it had been declared dead. Waits for a claim that is being committed.
SELECT id, inline, pid, host FROM {prefix}worker
WHERE process = %(process)s OR starts_with(process, %(process)s || '#') FOR UPDATE

-- name: handled_elsewhere
-- Whether a worker that lives has a handler for a version. A handful of rows.
SELECT EXISTS (SELECT FROM {prefix}worker
               WHERE NOT inline AND alive_until > {now} AND strpos(handles, %(line)s) > 0)

-- name: lock_worker
-- Before its claims come off: waits for a claim that is being committed and keeps the next one from beginning.
SELECT id FROM {prefix}worker WHERE id = %(worker)s FOR UPDATE

-- name: claimed_by
-- What a dead worker left behind. Relies on queue_claimed.
SELECT q.seq, q.attempts, q.crashes, q.key_hash, s.on_dead, q.isolation
FROM {prefix}queue q JOIN {prefix}subscription s ON s.id = q.subscription
WHERE q.worker = %(worker)s AND q.token IS NOT NULL ORDER BY q.seq + 0 FOR UPDATE OF q

-- name: unhandled_types
-- Types that wait for somebody who knows them, and those of a subscription that wait for its key function. Relies on queue_unhandled:
-- from one type to the next, however many messages wait.
WITH RECURSIVE waiting (type) AS (
    (SELECT type FROM {prefix}queue WHERE state = 'unhandled' ORDER BY type LIMIT 1)
    UNION ALL
    SELECT (SELECT q.type FROM {prefix}queue q WHERE q.state = 'unhandled' AND q.type > w.type ORDER BY q.type LIMIT 1)
    FROM waiting w WHERE w.type IS NOT NULL
)
SELECT w.type, NULL::integer FROM waiting w WHERE EXISTS (
    SELECT FROM {prefix}queue WHERE state = 'unhandled' AND type = w.type AND subscription IS NULL OFFSET 0)
UNION ALL
SELECT w.type, s.id FROM waiting w JOIN {prefix}subscription s ON s.type = w.type WHERE EXISTS (
    SELECT FROM {prefix}queue WHERE state = 'unhandled' AND type = w.type AND subscription = s.id OFFSET 0)

-- name: unhandled
-- Guard: rows locked, state still unhandled. Waits for another fan-out instead of passing it by: the rows it makes come first in their keys.
-- The ledger row too, so that no case of quarantine is opened under a number that goes. Relies on queue_unhandled: what others wait for is
-- not looked at; nor is what was refused a moment ago. A larger body stays behind, to be fetched by itself (body_of).
WITH next AS MATERIALIZED (
    SELECT f.seq FROM (
        SELECT n.seq FROM unnest(%(types)b::text[]) AS t (type) CROSS JOIN LATERAL (
            SELECT seq FROM {prefix}queue
            WHERE state = 'unhandled' AND type = t.type AND subscription IS NULL AND seq <> ALL(%(passed)b::bigint[])
            ORDER BY coalesce(sequence, seq) LIMIT %(limit)s) AS n
        UNION ALL
        SELECT n.seq FROM {prefix}subscription s CROSS JOIN LATERAL (
            SELECT seq FROM {prefix}queue
            WHERE state = 'unhandled' AND type = s.type AND subscription = s.id AND seq <> ALL(%(passed)b::bigint[])
            ORDER BY coalesce(sequence, seq) LIMIT %(limit)s) AS n
        WHERE s.id = ANY(%(subscriptions)b::integer[])
    ) AS f ORDER BY f.seq LIMIT %(limit)s
)
SELECT q.seq, b.source, b.id, b.type, b.version, b.key, b.headers, CASE WHEN octet_length(b.body) <= 262144 THEN b.body END, l.consumer, l.id, l.hash, q.place, q.subscription, b.position, q.key_hash, b.due_at
FROM next
CROSS JOIN LATERAL (SELECT * FROM {prefix}queue WHERE seq = next.seq AND state || '' = 'unhandled' FOR UPDATE) AS q
CROSS JOIN LATERAL (SELECT * FROM {prefix}ledger WHERE seq = next.seq FOR UPDATE) AS l
CROSS JOIN LATERAL (SELECT * FROM {prefix}body WHERE seq = next.seq LIMIT 1) AS b
ORDER BY q.seq

-- name: adopt
-- Guard: state still unhandled. The row keeps its number, so it keeps its place in the order. Where its key is still not to be found, it
-- goes on waiting, for its subscription alone.
UPDATE {prefix}queue
SET state = CASE WHEN %(unplaced)s::text IS NOT NULL THEN 'unhandled' WHEN %(due_at)s::bigint IS NULL THEN 'ready' ELSE 'scheduled' END, type = %(unplaced)s::text,
    due_at = CASE WHEN %(unplaced)s::text IS NULL THEN %(due_at)s::bigint END, subscription = %(subscription)s, key_hash = %(key_hash)s,
    slot = coalesce(%(slot)s::smallint, slot), sequence = %(sequence)s::bigint, place = coalesce(%(place)s::bigint, place), postponed = 0
WHERE seq = %(seq)s AND state || '' = 'unhandled'
RETURNING seq

-- name: bring_forward
-- Guard: state still unhandled. The same message came to another service before: it has come when that one did.
UPDATE {prefix}queue SET place = least(place, %(place)s::bigint), sequence = least(coalesce(sequence, seq), %(since)s::bigint)
WHERE seq = %(seq)s AND state || '' = 'unhandled'

-- name: mark_refused
-- Guard: state still unhandled. The database refuses the rows of its consumers: it stays, and holds up no others but those of its key.
UPDATE {prefix}queue SET postponed = postponed + 1, key_hash = coalesce(%(key_hash)s::bigint, key_hash)
WHERE seq = %(seq)s AND state || '' = 'unhandled'
RETURNING seq

-- name: refused
-- How many messages are marked as refused, and the first of them. Relies on queue_unhandled.
SELECT count(*), min(seq) FROM {prefix}queue WHERE state = 'unhandled' AND postponed > 0

-- name: hand_on
-- Before an unhandled row goes: its copies, its cases in quarantine and what people did to it belong to the row that replaces it.
WITH copies AS (
    DELETE FROM {prefix}duplicate WHERE seq = %(seq)s RETURNING copies, first_at, last_at
), counted AS (
    INSERT INTO {prefix}duplicate AS d (seq, copies, first_at, last_at)
    SELECT %(heir)s::bigint, copies, first_at, last_at FROM copies
    ON CONFLICT (seq) DO UPDATE SET copies = d.copies + excluded.copies, first_at = excluded.first_at
), known AS (
    DELETE FROM {prefix}quarantine x
    WHERE x.seq = %(seq)s AND EXISTS (
        SELECT FROM {prefix}quarantine h WHERE h.seq = %(heir)s AND (h.hash, h.type_hash) = (x.hash, x.type_hash))
), moved AS (
    UPDATE {prefix}quarantine x SET seq = %(heir)s
    WHERE x.seq = %(seq)s AND NOT EXISTS (
        SELECT FROM {prefix}quarantine h WHERE h.seq = %(heir)s AND (h.hash, h.type_hash) = (x.hash, x.type_hash))
), pointed AS (
    UPDATE {prefix}quarantine SET accepted_seq = %(heir)s WHERE accepted_seq = %(seq)s
)
UPDATE {prefix}audit SET seq = %(heir)s WHERE seq = %(seq)s

-- name: remove_unhandled
-- The service's own row of a type that only other consumers want; they have rows of their own by now.
WITH gone AS (
    DELETE FROM {prefix}queue WHERE seq = %(seq)s AND state || '' = 'unhandled' RETURNING seq
), bodyless AS (
    DELETE FROM {prefix}body WHERE seq = ANY(ARRAY(SELECT seq FROM gone))
)
DELETE FROM {prefix}ledger WHERE seq = ANY(ARRAY(SELECT seq FROM gone))

-- name: redrive
-- Guard: state is dead, so a second click changes nothing, and its key is as it was seen. The budget starts anew, the history stays.
UPDATE {prefix}queue SET state = 'ready', attempts = 0, crashes = 0, postponed = 0, key_hash = %(key_hash)s
WHERE seq = %(seq)s AND state = 'dead' AND key_hash IS NOT DISTINCT FROM %(seen_key)s::bigint
RETURNING seq

-- name: key_of
-- Read without a lock: the key lock comes before any row lock of whoever removes a row.
SELECT q.key_hash, b.key, b.aggregate, (SELECT name FROM {prefix}name WHERE id = l.consumer), q.outgoing, b.destination, q.sequence
FROM {prefix}queue q JOIN {prefix}body b USING (seq) JOIN {prefix}ledger l USING (seq)
WHERE q.seq = %(seq)s

-- name: detach
-- Guard: dead, and the first of its key where that is counted (giving up a later number would give up the earlier ones too). Under the
-- key lock; the row stays dead and its key goes on without it.
UPDATE {prefix}queue q SET key_hash = NULL
WHERE q.seq = %(seq)s AND q.state = 'dead' AND q.key_hash + 0 IS NOT NULL
  AND (q.sequence IS NULL OR NOT EXISTS (
       SELECT FROM {prefix}queue e
       WHERE e.key_hash = q.key_hash AND (e.place, e.seq) < (q.place, q.seq)
         AND (SELECT b.key FROM {prefix}body b WHERE b.seq = e.seq) = (SELECT o.key FROM {prefix}body o WHERE o.seq = q.seq) OFFSET 0))
RETURNING seq

-- name: advance
-- The numbers of a key that are applied, in the transaction that applies or gives them up.
INSERT INTO {prefix}progress AS p (consumer, aggregate, key, applied)
SELECT l.consumer, coalesce(b.aggregate, ''), b.key, max(q.sequence)
FROM unnest(%(seqs)b::bigint[]) AS s (seq)
CROSS JOIN LATERAL (SELECT sequence FROM {prefix}queue WHERE seq = s.seq AND sequence IS NOT NULL LIMIT 1) AS q
CROSS JOIN LATERAL (SELECT key, aggregate FROM {prefix}body WHERE seq = s.seq AND key IS NOT NULL LIMIT 1) AS b
CROSS JOIN LATERAL (SELECT consumer FROM {prefix}ledger WHERE seq = s.seq LIMIT 1) AS l
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
ON CONFLICT (consumer, aggregate, key) DO UPDATE SET applied = greatest(p.applied, excluded.applied)

-- name: retreat
-- Guard: the number of this message was the last one given up, and nobody runs a later one of its key. Under the key lock.
UPDATE {prefix}progress p SET applied = p.applied - 1
WHERE (p.consumer, p.aggregate, p.key) = (
    SELECT l.consumer, coalesce(b.aggregate, ''), b.key FROM {prefix}body b, {prefix}ledger l WHERE b.seq = %(seq)s AND l.seq = %(seq)s)
  AND p.applied = (SELECT sequence FROM {prefix}queue WHERE seq = %(seq)s)
  AND NOT EXISTS (SELECT FROM {prefix}queue n
                  WHERE n.key_hash = %(key_hash)s AND n.token + 0 IS NOT NULL
                    AND (SELECT o.key FROM {prefix}body o WHERE o.seq = n.seq) = p.key OFFSET 0)
RETURNING p.applied

-- name: advance_inline
-- As advance, for a message that never had a queue row.
INSERT INTO {prefix}progress AS p (consumer, aggregate, key, applied) VALUES (%(consumer)s, %(aggregate)s, %(key)s, %(sequence)s)
ON CONFLICT (consumer, aggregate, key) DO UPDATE SET applied = greatest(p.applied, excluded.applied)

-- name: progress
-- How far the keys of these rows are. Under their key locks, so it stays true until the commit.
SELECT q.seq, coalesce((
    SELECT p.applied FROM {prefix}progress p WHERE p.consumer = l.consumer AND p.aggregate = coalesce(b.aggregate, '') AND p.key = b.key), 0)
FROM unnest(%(seqs)b::bigint[]) AS s (seq)
CROSS JOIN LATERAL (SELECT seq FROM {prefix}queue WHERE seq = s.seq LIMIT 1) AS q
CROSS JOIN LATERAL (SELECT key, aggregate FROM {prefix}body WHERE seq = s.seq LIMIT 1) AS b
CROSS JOIN LATERAL (SELECT consumer FROM {prefix}ledger WHERE seq = s.seq LIMIT 1) AS l

-- name: hold
-- Guard: the row carries this claim. A number is missing before it: wait for that, until the deadline.
UPDATE {prefix}queue
SET state = 'waiting', due_at = {clock} + {microseconds delay}, worker = NULL, token = NULL
WHERE seq = %(seq)s AND (worker, token) IS NOT DISTINCT FROM (%(worker)s::bigint, %(token)s::bigint)
RETURNING seq

-- name: lock_effect
-- Whoever asks about it (effect) waits until a person's word is committed.
SELECT key FROM {prefix}effect WHERE key = %(key)s FOR UPDATE

-- name: effect_held
-- Under lock_effect: whether its message is being run right now. One that is processed inline has no row yet: it may be running for as
-- long as its process is there and its handler may still be at it.
SELECT e.seq FROM {prefix}effect e
WHERE e.key = %(key)s AND (
    EXISTS (SELECT FROM {prefix}queue q WHERE q.seq = e.seq AND q.token + 0 IS NOT NULL OFFSET 0)
    OR (e.started_at > {now} - {microseconds patience}
        AND EXISTS (SELECT FROM {prefix}worker w WHERE w.id = e.worker OFFSET 0)
        AND NOT EXISTS (SELECT FROM {prefix}ledger l WHERE l.seq = e.seq OFFSET 0)))

-- name: effect_done
-- Committed right after the call. Guard: not done before, so that the first result stands.
UPDATE {prefix}effect SET done = true, result = %(result)s, finished_at = {clock}
WHERE key = %(key)s AND NOT done
RETURNING key

-- name: discard
-- Guard: the row is not claimed, its key is still the one whose lock is held, it is the first of its key where that is counted, and
-- still scheduled where only that is meant.
DELETE FROM {prefix}queue q
WHERE q.seq = %(seq)s AND q.token IS NULL AND q.key_hash IS NOT DISTINCT FROM %(key_hash)s::bigint
  AND (q.state || '' = 'scheduled' OR NOT %(scheduled)s::boolean)
  AND (q.sequence IS NULL OR NOT EXISTS (
       SELECT FROM {prefix}queue e
       WHERE e.key_hash = q.key_hash AND (e.place, e.seq) < (q.place, q.seq)
         AND (SELECT b.key FROM {prefix}body b WHERE b.seq = e.seq) = (SELECT o.key FROM {prefix}body o WHERE o.seq = q.seq) OFFSET 0))
RETURNING seq

-- name: keep_first_types
-- Some of the open cases of a source and a type whose bytes are the first ones, so that only the type or its version differs: decided
-- for the first, with their lines in the audit. Guard: still open.
WITH same AS MATERIALIZED (
    SELECT x.id FROM {prefix}quarantine x JOIN {prefix}ledger l ON l.seq = x.seq JOIN {prefix}name n ON n.id = l.source
    WHERE x.resolution IS NULL AND x.hash = l.hash AND n.name = %(source)s AND x.type = %(type)s
    ORDER BY x.id LIMIT %(limit)s FOR UPDATE OF x
), kept AS (
    UPDATE {prefix}quarantine x SET resolution = 'keep-first' FROM same WHERE x.id = same.id AND x.resolution IS NULL RETURNING x.seq
)
INSERT INTO {prefix}audit (at, actor, action, seq, reason)
SELECT {clock}, %(actor)s, 'keep-first', seq, %(reason)s FROM kept
RETURNING seq

-- name: stats
-- Counts of the queue are counts of unfinished work, which is small; the rest are sums over groups.
SELECT
    (SELECT count(*) FROM {prefix}queue WHERE NOT outgoing AND token IS NULL
        AND (state = 'ready' OR (state IN ('retry', 'scheduled') AND due_at <= {now}))),
    (SELECT count(*) FROM {prefix}queue WHERE NOT outgoing AND state = 'waiting'),
    (SELECT count(*) FROM {prefix}queue WHERE NOT outgoing AND token IS NOT NULL),
    (SELECT count(*) FROM {prefix}queue
        WHERE NOT outgoing AND token IS NULL AND state = 'retry' AND due_at > {now}),
    (SELECT count(*) FROM {prefix}queue WHERE NOT outgoing AND state = 'scheduled' AND due_at > {now}),
    (SELECT count(*) FROM {prefix}queue WHERE NOT outgoing AND state = 'dead'),
    (SELECT count(*) FROM {prefix}queue WHERE state = 'unhandled'),
    (SELECT count(*) FROM {prefix}quarantine WHERE resolution IS NULL),
    (SELECT coalesce(sum(messages), 0)::bigint FROM {prefix}run WHERE NOT outgoing),
    (SELECT count(*) FROM {prefix}audit WHERE action = 'discard'),
    (SELECT count(*) FROM {prefix}audit WHERE action = 'skip'),
    (SELECT coalesce(sum(copies), 0)::bigint FROM {prefix}duplicate),
    (SELECT count(*) FROM {prefix}attempt WHERE charged),
    (SELECT count(*) FROM {prefix}worker WHERE alive_until >= {now}),
    coalesce({now} - least(
        (SELECT coalesce(due_at, received_at) FROM {prefix}body WHERE seq = (
            SELECT min(seq) FROM {prefix}queue WHERE state = 'ready' AND token IS NULL AND NOT outgoing)),
        (SELECT min(due_at) FROM {prefix}queue
            WHERE NOT outgoing AND state IN ('retry', 'scheduled') AND token IS NULL AND due_at <= {now})
    ), 0) / {second},
    (SELECT coalesce(sum(messages), 0)::bigint FROM {prefix}run
        WHERE NOT outgoing AND finished_at > {now} - 60000000),
    (SELECT count(*) FROM {prefix}queue WHERE outgoing AND state <> 'dead' AND NOT (state = 'scheduled' AND due_at > {now})),
    (SELECT count(*) FROM {prefix}queue WHERE outgoing AND state = 'dead'),
    (SELECT coalesce(sum(messages), 0)::bigint FROM {prefix}run WHERE outgoing),
    (SELECT count(*) FROM {prefix}poll WHERE failures > 0)

-- name: list_finished
-- Newest first; a ledger row without a queue row is finished. Walks the ledger's primary key backwards.
SELECT l.seq, CASE e.action WHEN 'discard' THEN 'discarded' WHEN 'skip' THEN 'skipped' ELSE 'done' END,
       n.name, coalesce(b.id, ''), coalesce(b.type, ''), coalesce(b.version, 0), b.key, c.name, 0, 0,
       l.received_at, NULL::bigint, NULL::text
FROM {prefix}ledger l
LEFT JOIN {prefix}queue q ON q.seq = l.seq
LEFT JOIN {prefix}body b ON b.seq = l.seq
JOIN {prefix}name n ON n.id = l.source
JOIN {prefix}name c ON c.id = l.consumer
LEFT JOIN LATERAL (
    SELECT a.action FROM {prefix}audit a WHERE a.seq = l.seq AND a.action IN ('discard', 'skip') LIMIT 1) AS e ON true
WHERE q.seq IS NULL AND (c.name = %(outbox)s) = %(outgoing)s::boolean
  AND (%(status)s::text IS NULL
       OR %(status)s = CASE e.action WHEN 'discard' THEN 'discarded' WHEN 'skip' THEN 'skipped' ELSE 'done' END)
  AND (%(type)s::text IS NULL OR b.type = %(type)s)
  AND (%(key)s::text IS NULL OR b.key = %(key)s)
  AND (%(source)s::text IS NULL OR n.name = %(source)s)
  AND (%(before)s::bigint IS NULL OR l.seq < %(before)s)
  AND (%(since)s::bigint IS NULL OR l.received_at >= %(since)s::bigint)
  AND (%(until)s::bigint IS NULL OR l.received_at < %(until)s::bigint)
  AND (%(fingerprint)s::text IS NULL OR %(fingerprint)s = (
       SELECT a.fingerprint FROM {prefix}attempt a WHERE a.seq = l.seq ORDER BY a.id DESC LIMIT 1))
ORDER BY l.seq DESC LIMIT %(limit)s

-- name: show_run
-- When, by whom and with which code it was finished. Relies on run_seq.
SELECT finished_at, worker, code_version, messages
FROM {prefix}run
WHERE first_seq <= %(seq)s AND last_seq >= %(seq)s AND %(seq)s = ANY(seqs)

-- name: find
-- Relies on the unique key of the ledger, once for each consumer.
SELECT l.seq FROM {prefix}ledger l JOIN {prefix}name n ON n.id = l.source
WHERE n.name = %(source)s AND l.id >= %(from_id)s AND l.id < %(below_id)s
  AND l.consumer = ANY(SELECT DISTINCT consumer FROM {prefix}subscription
      UNION SELECT id FROM {prefix}name WHERE name = %(consumer)s)
ORDER BY l.seq

-- name: find_id
-- An id from whatever source, for whatever consumer. Relies on the unique key of the ledger, once for each pair of names.
SELECT l.seq FROM {prefix}ledger l
WHERE l.id >= %(from_id)s AND l.id < %(below_id)s
  AND l.consumer = ANY(SELECT id FROM {prefix}name) AND l.source = ANY(SELECT id FROM {prefix}name)
ORDER BY l.seq LIMIT %(limit)s

-- name: search
-- A text in the newest errors and payloads: so many of each are read, backwards in the primary keys, and no more.
SELECT seq, min(place) FROM (
    SELECT seq, 'error' AS place FROM (SELECT seq, error FROM {prefix}attempt ORDER BY id DESC LIMIT %(newest)s) AS failures WHERE strpos(error, %(text)s::text) > 0
    UNION ALL
    SELECT seq, 'payload' FROM (SELECT seq, body FROM {prefix}body ORDER BY seq DESC LIMIT %(newest)s) AS bodies WHERE position(%(bytes)s::bytea IN body) > 0
) AS found GROUP BY seq ORDER BY seq DESC LIMIT %(limit)s

-- name: blocked_keys
-- Dead messages that hold their key, and unhandled ones (of the first that came) with others behind them that could run; and how much
-- waits behind each. Relies on queue_dead and queue_key.
SELECT q.seq, b.type, b.key, c.name, q.outgoing, b.received_at,
       (SELECT count(*) FROM {prefix}queue w
        WHERE w.key_hash = q.key_hash AND (w.place, w.seq) > (q.place, q.seq) AND w.place < 9223372036854775807) AS behind,
       (SELECT w.seq FROM {prefix}queue w
        WHERE w.key_hash = q.key_hash AND (w.place, w.seq) > (q.place, q.seq) AND w.place < 9223372036854775807 ORDER BY w.place, w.seq LIMIT 1), q.state
FROM (
    SELECT seq, key_hash, place, outgoing, state FROM {prefix}queue WHERE state = 'dead' AND key_hash IS NOT NULL
    UNION ALL
    (SELECT seq, key_hash, place, outgoing, state FROM {prefix}queue u
    WHERE u.state = 'unhandled' AND u.key_hash IS NOT NULL AND EXISTS (
        SELECT FROM {prefix}queue w
        WHERE w.key_hash = u.key_hash AND (w.place, w.seq) > (u.place, u.seq) AND w.place < 9223372036854775807 AND w.state <> 'unhandled')
    ORDER BY u.seq LIMIT 1000)
) AS q
JOIN {prefix}body b ON b.seq = q.seq
JOIN {prefix}ledger l ON l.seq = q.seq
JOIN {prefix}name c ON c.id = l.consumer
ORDER BY behind DESC, q.seq LIMIT %(limit)s

-- name: sources
-- Who sends, as far as the newest messages show; and who said how late it may redeliver. Walks the ledger's primary key backwards.
SELECT n.name, s.redelivers_seconds, coalesce(r.messages, 0), r.last_at,
       coalesce(r.copies, 0)::bigint
FROM {prefix}name n
LEFT JOIN {prefix}source s ON s.source = n.id
LEFT JOIN (
    SELECT m.source, count(*) AS messages, max(m.received_at) AS last_at, sum(coalesce(d.copies, 0)) AS copies
    FROM (SELECT seq, source, received_at FROM {prefix}ledger ORDER BY seq DESC LIMIT %(newest)s) AS m
    LEFT JOIN {prefix}duplicate d ON d.seq = m.seq
    GROUP BY m.source
) AS r ON r.source = n.id
WHERE s.source IS NOT NULL OR r.messages IS NOT NULL
ORDER BY n.name

-- name: sizes
-- Rows as the server estimates them (none before its first look at a table), bytes with indexes; the partitions of bodies count as one.
SELECT replace(coalesce(p.relname, t.relname), '{prefix}', ''),
       CASE WHEN min(t.reltuples) < 0 THEN NULL ELSE sum(t.reltuples)::bigint END, sum(pg_total_relation_size(t.oid))::bigint
FROM pg_class t
LEFT JOIN pg_inherits i ON i.inhrelid = t.oid
LEFT JOIN pg_class p ON p.oid = i.inhparent
WHERE t.relkind = 'r' AND t.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = '{prefix}ledger'::regclass)
  AND starts_with(t.relname, '{prefix}')
GROUP BY 1 ORDER BY 3 DESC

-- name: traffic
-- By the minute: 0 received, 1 done, 2 failed; not what goes out. From the newest rows alone, backwards in the primary keys: the cost has an end
-- however busy the last hour was.
SELECT 0, (received_at - {now}) / 60000000 AS minute, count(*) FROM (
    SELECT received_at, consumer FROM {prefix}ledger ORDER BY seq DESC LIMIT %(newest)s) AS received
WHERE consumer IS DISTINCT FROM (SELECT id FROM {prefix}name WHERE name = %(outbox)s) AND received_at > {now} - %(minutes)s::bigint * 60000000 GROUP BY minute
UNION ALL
SELECT 1, (finished_at - {now}) / 60000000 AS minute, sum(messages)::bigint FROM (
    SELECT finished_at, messages, outgoing FROM {prefix}run ORDER BY id DESC LIMIT %(newest)s) AS done
WHERE NOT outgoing AND finished_at > {now} - %(minutes)s::bigint * 60000000 GROUP BY minute
UNION ALL
SELECT 2, (at - {now}) / 60000000 AS minute, count(*) FROM (
    SELECT at FROM {prefix}attempt ORDER BY id DESC LIMIT %(newest)s) AS failed
WHERE at > {now} - %(minutes)s::bigint * 60000000 GROUP BY minute

-- name: settings
-- What the server really uses, for the doctor; the connections it lets in, those that others have, and our processes.
SELECT current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit'),
       current_setting('full_page_writes'), current_setting('default_transaction_isolation'),
       pg_is_in_recovery()::text, pg_backend_pid(),
       current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
           - coalesce(current_setting('reserved_connections', true)::int, 0),
       (SELECT count(*) FROM pg_stat_activity a
        WHERE a.datid IS NOT NULL AND coalesce(a.backend_type, 'client backend') = 'client backend'
          AND a.application_name <> current_setting('application_name')),
       (SELECT count(*) FROM {prefix}worker w WHERE w.alive_until > {now})

-- name: notify
-- For a send inside the caller's transaction: delivered when that commits. Elsewhere a connection of its own notifies, debounced.
SELECT pg_notify('{prefix}notify', '')

-- name: rotate_partition
-- Makes the next partition of bodies ahead of time, and goes on with it when the current one is old enough.
SELECT {prefix}rotate_partition(%(seconds)s::float8)

-- name: old_partitions
-- Partitions that were closed long enough ago and seem to hold nothing unfinished, dead or in an open case; drop_partition looks again.
SELECT p.number FROM {prefix}partition p
WHERE p.closed_at < {now} - {microseconds keep}
  AND NOT EXISTS (SELECT FROM {prefix}queue q
                  WHERE q.seq >= p.number * 10000000000 AND q.seq < (p.number + 1) * 10000000000 OFFSET 0)
  AND NOT EXISTS (SELECT FROM {prefix}quarantine x WHERE x.resolution IS NULL
                  AND x.seq >= p.number * 10000000000 AND x.seq < (p.number + 1) * 10000000000 OFFSET 0)
ORDER BY p.number

-- name: drop_partition
-- Guard: under the table's lock, nothing unfinished, dead or in an open case has its body in this partition, and nothing at all where
-- bodies are archived first; else false.
SELECT {prefix}drop_partition(%(partition)s::bigint, %(archive_first)s::boolean)

-- name: next_bodies
-- The next numbers in the old partitions that could not be dropped, and whether they are old. Relies on the primary key of body.
SELECT b.seq, b.received_at < {now} - {microseconds keep}
FROM {prefix}body b
WHERE b.seq > %(after)s AND b.seq < (
    SELECT (number + 1) * 10000000000 FROM {prefix}partition
    WHERE closed_at < {now} - {microseconds keep} ORDER BY number DESC LIMIT 1)
ORDER BY b.seq LIMIT %(limit)s

-- name: lock_ledger
-- What a copy with other bytes is being compared with right now is skipped; what is locked here gets no new case until the commit.
SELECT seq FROM {prefix}ledger WHERE seq = ANY(%(seqs)b::bigint[]) ORDER BY seq FOR UPDATE SKIP LOCKED

-- name: drop_bodies
-- Guard: nothing unfinished, dead or in an open case, looked at in a new statement after lock_ledger.
DELETE FROM {prefix}body b
WHERE b.seq = ANY(%(seqs)b::bigint[])
  AND NOT EXISTS (SELECT FROM {prefix}queue q WHERE q.seq = b.seq OFFSET 0)
  AND NOT EXISTS (SELECT FROM {prefix}quarantine x WHERE x.seq = b.seq AND x.resolution IS NULL OFFSET 0)
RETURNING b.seq

-- name: forget_messages
-- Guard: nothing unfinished, dead, in an open case, with an effect of unknown outcome, or with a second body that was accepted and is
-- itself still remembered (or not archived yet, where that comes first); nothing that was finished, or that a person did something to,
-- within the retention, however long ago it came. Looked at in a new statement after lock_ledger. Everything about the message goes
-- with it, but for the lines about erasure. Relies on run_seq (once, for the range of the batch) and audit_seq.
WITH recent AS MATERIALIZED (
    SELECT unnest(r.seqs) AS seq FROM {prefix}run r
    WHERE r.first_seq <= %(highest)s::bigint AND r.last_seq >= %(lowest)s::bigint
      AND r.finished_at >= {now} - {microseconds keep}
), gone AS (
    DELETE FROM {prefix}ledger l
    WHERE l.seq = ANY(%(seqs)b::bigint[])
      AND l.seq NOT IN (SELECT seq FROM recent)
      AND NOT EXISTS (SELECT FROM {prefix}audit a
                      WHERE a.seq = l.seq AND a.at >= {now} - {microseconds keep} OFFSET 0)
      AND NOT (%(archive_first)s::boolean AND EXISTS (SELECT FROM {prefix}body b WHERE b.seq = l.seq OFFSET 0))
      AND NOT EXISTS (SELECT FROM {prefix}queue q WHERE q.seq = l.seq OFFSET 0)
      AND NOT EXISTS (SELECT FROM {prefix}effect e WHERE e.seq = l.seq AND NOT e.done OFFSET 0)
      AND NOT EXISTS (SELECT FROM {prefix}quarantine x WHERE x.seq = l.seq AND (
            x.resolution IS NULL OR EXISTS (SELECT FROM {prefix}ledger a WHERE a.seq = x.accepted_seq OFFSET 0)) OFFSET 0)
    RETURNING l.seq
), bodies AS (
    DELETE FROM {prefix}body WHERE seq = ANY(ARRAY(SELECT seq FROM gone))
), results AS (
    DELETE FROM {prefix}result WHERE seq = ANY(ARRAY(SELECT seq FROM gone))
), attempts AS (
    DELETE FROM {prefix}attempt WHERE seq = ANY(ARRAY(SELECT seq FROM gone))
), duplicates AS (
    DELETE FROM {prefix}duplicate WHERE seq = ANY(ARRAY(SELECT seq FROM gone))
), cases AS (
    DELETE FROM {prefix}quarantine WHERE seq = ANY(ARRAY(SELECT seq FROM gone))
), effects AS (
    DELETE FROM {prefix}effect WHERE seq = ANY(ARRAY(SELECT seq FROM gone))
), actions AS (
    DELETE FROM {prefix}audit WHERE seq = ANY(ARRAY(SELECT seq FROM gone)) AND action <> 'erase'
)
SELECT seq FROM gone

-- name: forget_runs
-- Guard: none of its messages is remembered. A copy that was counted while its message was forgotten goes too.
WITH counted AS (
    DELETE FROM {prefix}duplicate WHERE seq < (SELECT seq FROM {prefix}ledger ORDER BY seq LIMIT 1)
)
DELETE FROM {prefix}run r
WHERE r.id = ANY(%(seqs)b::bigint[]) AND NOT EXISTS (SELECT FROM {prefix}ledger l WHERE l.seq = ANY(r.seqs) OFFSET 0)
RETURNING r.id

-- name: forget_effects
-- Guard: done, long ago, and older than every message that is remembered: those take their effects along when they go. What is left was
-- processed inline, rolled back, and never came again. Relies on effect_seq.
WITH gone AS (
    DELETE FROM {prefix}effect
    WHERE done AND finished_at < {now} - {microseconds keep}
      AND seq < coalesce((SELECT seq FROM {prefix}ledger ORDER BY seq LIMIT 1), 9223372036854775807)
    RETURNING seq
)
DELETE FROM {prefix}audit WHERE seq = ANY(ARRAY(SELECT seq FROM gone)) AND action <> 'erase'

-- name: bodies_after
-- Everything that has a body, in order of number, for whoever looks for a person's data. Relies on the primary key of body.
SELECT b.seq, b.type, (SELECT name FROM {prefix}name WHERE id = b.source), b.key, b.headers, b.body,
       CASE WHEN q.seq IS NULL THEN 'finished' WHEN q.token IS NOT NULL THEN 'running' ELSE q.state END
FROM {prefix}body b
LEFT JOIN LATERAL (SELECT seq, token, state FROM {prefix}queue WHERE seq = b.seq LIMIT 1) AS q ON true
WHERE b.seq > %(after)s
ORDER BY b.seq LIMIT %(limit)s

-- name: same_id
-- Every consumer's message of an id, and what their handlers sent. Relies on the unique key of the ledger and on body_cause.
WITH named AS (
    SELECT l.seq FROM {prefix}ledger l
    WHERE l.source = (SELECT id FROM {prefix}name WHERE name = %(source)s)
      AND l.id >= %(from_id)s AND l.id < %(below_id)s
      AND l.consumer = ANY(SELECT id FROM {prefix}name)
)
SELECT seq FROM named UNION SELECT b.seq FROM {prefix}body b JOIN named ON b.cause = named.seq

-- name: lock_finished
-- Guard of an erasure: it is in the ledger and has no unfinished business. Answers the blob that its body is in, too.
SELECT l.seq, (SELECT CASE WHEN substr(b.headers, 1, 18) = '{"onceward-blob":"' THEN substr(b.headers, 19, 56) END
               FROM {prefix}body b WHERE b.seq = l.seq)
FROM {prefix}ledger l
WHERE l.seq = %(seq)s AND NOT EXISTS (SELECT FROM {prefix}queue q WHERE q.seq = l.seq)
FOR UPDATE OF l

-- name: erase
-- Under lock_finished. What says something about a person goes: body, headers, key, result, errors, results of effects, bodies in
-- quarantine (an open case is decided for the first body), also that in which this message came before it was accepted. Id and hashes stay,
-- so copies are still recognised. Relies on quarantine_copy and quarantine_accepted.
WITH body AS (
    UPDATE {prefix}body SET body = NULL, headers = NULL, key = NULL WHERE seq = %(seq)s
), result AS (
    DELETE FROM {prefix}result WHERE seq = %(seq)s
), attempts AS (
    UPDATE {prefix}attempt SET error = '(erased)', traceback = NULL WHERE seq = %(seq)s
), effects AS (
    UPDATE {prefix}effect SET result = NULL WHERE seq = %(seq)s
)
UPDATE {prefix}quarantine SET body = '', headers = NULL, key = NULL, resolution = coalesce(resolution, 'keep-first')
WHERE id = ANY(ARRAY(SELECT id FROM {prefix}quarantine WHERE seq = %(seq)s
                     UNION ALL SELECT id FROM {prefix}quarantine WHERE accepted_seq = %(seq)s))

-- name: archivable
-- Old bodies whose messages have no unfinished business and no open case, in order of number. Relies on the primary key of body.
SELECT b.seq, (SELECT name FROM {prefix}name WHERE id = l.source), (SELECT name FROM {prefix}name WHERE id = l.consumer), b.id, b.type, b.version, b.key, b.key_from, b.position, b.headers, b.body, encode(l.hash, 'hex'), b.destination, b.cause,
       b.received_at, (SELECT r.result FROM {prefix}result r WHERE r.seq = b.seq)
FROM {prefix}body b
CROSS JOIN LATERAL (SELECT source, consumer, hash FROM {prefix}ledger WHERE seq = b.seq LIMIT 1) AS l
WHERE b.seq > %(after)s AND b.received_at < {now} - {microseconds keep}
  AND NOT EXISTS (SELECT FROM {prefix}queue q WHERE q.seq = b.seq OFFSET 0)
  AND NOT EXISTS (SELECT FROM {prefix}quarantine x WHERE x.seq = b.seq AND x.resolution IS NULL OFFSET 0)
ORDER BY b.seq LIMIT %(limit)s

-- name: debris
-- The commands that remove every table (with its views), sequence and function of this prefix: for inboxes that were made to be measured. Reads the
-- catalogs of PostgreSQL; guard: only what begins with the prefix and is found without naming a schema.
SELECT format('DROP TABLE %%I CASCADE', relname) FROM pg_class
WHERE starts_with(relname, '{prefix}') AND relkind IN ('r', 'p') AND NOT relispartition AND pg_table_is_visible(oid)
UNION ALL
SELECT format('DROP SEQUENCE IF EXISTS %%I', '{prefix}seq')
UNION ALL
SELECT format('DROP FUNCTION %%s', oid::regprocedure) FROM pg_proc
WHERE starts_with(proname, '{prefix}') AND pg_function_is_visible(oid)

-- name: record_history
-- Only ever added: no process changes another one's counts.
INSERT INTO {prefix}history (level, starts_at, consumer, source, type, received, duplicates, mismatches, done, failed, dead, backlog, oldest, lateness, wait, run)
SELECT i.level, coalesce(i.starts_at, {clock}), i.consumer, i.source, i.type, i.received, i.duplicates, i.mismatches, i.done, i.failed, i.dead, i.backlog, i.oldest, i.lateness, i.wait, i.run
FROM unnest(%(level)b::integer[], %(starts_at)b::bigint[], %(consumer)b::text[], %(source)b::text[], %(type)b::text[], %(received)b::bigint[],
            %(duplicates)b::bigint[], %(mismatches)b::bigint[], %(done)b::bigint[], %(failed)b::bigint[], %(dead)b::bigint[],
            %(backlog)b::bigint[], %(oldest)b::bigint[], %(lateness)b::text[], %(wait)b::text[], %(run)b::text[])
         AS i (level, starts_at, consumer, source, type, received, duplicates, mismatches, done, failed, dead, backlog, oldest, lateness, wait, run)

-- name: lock_history
-- The oldest rows of a level whose next longer time is over by so much. Who else would fold them waits, and finds them gone. Relies on
-- history_start.
SELECT id, level, starts_at, consumer, source, type, received, duplicates, mismatches, done, failed, dead, backlog, oldest, lateness, wait, run
FROM {prefix}history
WHERE level = %(level)s AND starts_at < ({now} - {microseconds keep}) / %(longer)s::bigint * %(longer)s::bigint
ORDER BY starts_at LIMIT %(limit)s FOR UPDATE
