-- What onceward says to SQLite in its own words; portable.sql has what all databases share. Each section says which guard it carries
-- and which index it relies on. A section may hold several statements; they run in order inside BEGIN IMMEDIATE, so the single writer is the lock that PostgreSQL
-- needs row and key locks for. Lists come as JSON. Times are those of this machine's clock. postgres.sql has the same names.

-- name: begin_limits
-- Limits are the connection's own here, and the session watches the transaction itself.
SELECT :statement_limit, :lock_limit, :idle_limit, :fence, :durable, :plans

-- name: touch_catalog
-- Tells every receiver to read the catalog again before it stores anything. The version is random: a counter that a restore or a
-- failover takes back would come to a number that receivers know, for another catalog.
UPDATE {prefix}catalog
SET version = random() & 9007199254740991, last_crash_at = CASE WHEN :crash THEN {clock} ELSE last_crash_at END

-- name: hold_catalog
-- For a receive inside the caller's transaction: it becomes the writer before it reads anything, and who wants what stays as it is until
-- it ends. Its view is never older than that.
UPDATE {prefix}catalog SET version = version WHERE 0;
SELECT 0

-- name: lock_catalog
-- The single writer holds the catalog.
SELECT 1

-- name: catalog_holders
-- Nobody but the single writer.
SELECT 0, '', 0.0 WHERE 0

-- name: subscribe
-- Guard: unique (consumer, type). Returns nothing when the subscription is already there and unchanged.
INSERT INTO {prefix}subscription AS s (consumer, type, key_path, key_function, sequence, on_dead, aggregate)
VALUES (:consumer, :type, :key_path, :key_function, :sequence, :on_dead, :aggregate)
ON CONFLICT (consumer, type) DO UPDATE
SET key_path = excluded.key_path, key_function = excluded.key_function, sequence = excluded.sequence,
    on_dead = excluded.on_dead, aggregate = excluded.aggregate, retired = 0
WHERE s.retired OR s.key_path IS NOT excluded.key_path OR s.key_function <> excluded.key_function
   OR s.sequence IS NOT excluded.sequence OR s.on_dead <> excluded.on_dead OR s.aggregate IS NOT excluded.aggregate
RETURNING id

-- name: receive
-- Guard: unique (consumer, source, id); a duplicate is an insert that changed nothing, and then changes() keeps the other two
-- from inserting. The body's rowid is its seq, so last_insert_rowid() stays the new number. Inserts nothing under an outdated catalog (outgoing
-- messages need none).
INSERT INTO {prefix}ledger (consumer, source, slot, type_hash, id, hash, received_at)
SELECT :consumer, :source, :slot, :type_hash, :stored_id, :hash, {clock} WHERE coalesce((SELECT version FROM {prefix}catalog) = :catalog, 1)
  AND (:worker IS NULL OR EXISTS (SELECT 1 FROM {prefix}worker WHERE id = :worker))
ON CONFLICT (consumer, source, id) DO NOTHING
RETURNING :ordinal, seq, received_at;
INSERT INTO {prefix}body (seq, source, id, type, version, key, key_from, aggregate, position, headers, body, destination, cause,
                      received_at, due_at)
SELECT last_insert_rowid(), :source, :id, :type, :version, :key, :key_from, :aggregate, :position, :headers, :body, :destination, :cause, {clock},
       coalesce(:due_at, {clock} + :due_in)
WHERE changes() > 0;
INSERT INTO {prefix}queue (seq, subscription, key_hash, slot, place, sequence, outgoing, destination, state, due_at, worker, token,
                           attempts, isolation, type)
SELECT last_insert_rowid(), :subscription, :key_hash, :slot, coalesce(:place, last_insert_rowid()), :sequence, :outgoing,
       CASE WHEN :outgoing THEN coalesce(:destination, 'default') END,
       CASE WHEN :unplaced IS NOT NULL THEN 'unhandled' WHEN :due_at IS NULL AND :due_in IS NULL THEN :state ELSE 'scheduled' END,
       CASE WHEN :unplaced IS NULL THEN coalesce(:due_at, {clock} + :due_in, {clock} + {microseconds delay}) END, :worker, :token, :attempts, :isolation, :unplaced
WHERE changes() > 0

-- name: receive_direct
-- Guard: unique (consumer, source, id), as for receive. A message that this very transaction handles, or queues when it is known which.
-- Inserts nothing under an outdated catalog.
INSERT INTO {prefix}ledger (consumer, source, slot, type_hash, id, hash, received_at)
SELECT :consumer, :source, :slot, :type_hash, :stored_id, :hash, {clock} FROM {prefix}catalog WHERE version = :catalog
ON CONFLICT (consumer, source, id) DO NOTHING
RETURNING :ordinal, seq, received_at;
INSERT INTO {prefix}body (seq, source, id, type, version, key, key_from, aggregate, position, headers, body, destination, cause,
                      received_at, due_at)
SELECT last_insert_rowid(), :source, :id, :type, :version, :key, :key_from, :aggregate, :position, :headers, :body, :destination, :cause, {clock},
       coalesce(:due_at, {clock} + :due_in)
WHERE changes() > 0

-- name: enqueue
-- In the transaction that has received it, and has found that it does not run in it, or saw it fail.
INSERT INTO {prefix}queue (seq, subscription, key_hash, slot, place, sequence, outgoing, state, due_at, attempts, type)
VALUES (:seq, :subscription, :key_hash, :slot, :place, :sequence, 0, CASE WHEN :unplaced IS NULL THEN :state ELSE 'unhandled' END,
        {clock} + :after, :attempts, :unplaced)

-- name: known
-- What is known of messages that were not inserted. Relies on the unique key of the ledger.
SELECT :ordinal, l.seq, l.hash, l.type_hash,
       q.seq IS NULL AND NOT EXISTS (SELECT 1 FROM {prefix}audit a WHERE a.seq = l.seq AND a.action = 'discard'), r.result,
       ({now} - l.received_at) / {second}
FROM {prefix}ledger l
LEFT JOIN {prefix}queue q ON q.seq = l.seq
LEFT JOIN {prefix}result r ON r.seq = l.seq
WHERE l.consumer = :consumer AND l.source = :source AND l.id = :stored_id

-- name: known_unplaced
-- As known, of what came under this id and type when nobody had subscribed, and is not placed yet: the first of it, whoever stored it.
-- Relies on the unique key of the ledger, from one name to the next.
SELECT :ordinal, l.seq, l.hash, l.type_hash, 0, NULL, ({now} - l.received_at) / {second}
FROM {prefix}name c
CROSS JOIN {prefix}ledger l ON l.consumer = c.id AND l.source = :source AND l.id = :stored_id
CROSS JOIN {prefix}queue w ON w.seq = l.seq
WHERE w.state = 'unhandled' AND w.type = :type AND w.subscription IS NULL
ORDER BY l.seq LIMIT 1

-- name: import_ids
-- Guard: unique (consumer, source, id): what is known stays as it is. An id that was handled elsewhere is a finished message without a body:
-- it gets no row in the queue, and of its bytes and its type nothing is known.
INSERT INTO {prefix}ledger (consumer, source, type_hash, slot, id, hash, received_at)
VALUES (:consumer, :source, 0, :slot, :stored_id, zeroblob(32), {clock} - :age)
ON CONFLICT (consumer, source, id) DO NOTHING
RETURNING :ordinal

-- name: count_duplicates
-- One row per message however many copies came.
INSERT INTO {prefix}duplicate (seq, copies, first_at, last_at) VALUES (:seq, :copies, {clock}, {clock})
ON CONFLICT (seq) DO UPDATE SET copies = copies + excluded.copies, last_at = excluded.last_at

-- name: quarantine
-- Guards: unique (seq, hash, type_hash), and the ledger row is there: a fan-out may have replaced it, and a case without one is out of
-- reach. Never touches the first body; answers what an operator decided about these bytes under this type.
INSERT INTO {prefix}quarantine (seq, hash, type_hash, type, version, key, position, due_at, headers, body, copies, first_at, last_at)
SELECT seq, :hash, :type_hash, :type, :version, :key, :position, coalesce(:due_at, {clock} + :due_in), :headers, :body, 1, {clock}, {clock} FROM {prefix}ledger WHERE seq = :seq
ON CONFLICT (seq, hash, type_hash) DO UPDATE SET copies = copies + 1, last_at = excluded.last_at
RETURNING resolution, accepted_seq

-- name: forget_first_seen
-- Some of those whose window is over, beside each new one, so that the table stays as large as its window. Relies on first_seen_at.
DELETE FROM {prefix}first_seen WHERE (source, hash) IN (
    SELECT source, hash FROM {prefix}first_seen
    WHERE source = :source AND seen_at < {now} - {microseconds window} ORDER BY seen_at LIMIT 10)

-- name: requeue_own
-- Guards: the ledger row is this very message under this very number (a number that was rolled back may be another's by now), no queue
-- row is there, no run has finished it, and nobody has discarded it. Used when a handler that runs as messages come has
-- committed on its own.
INSERT INTO {prefix}queue (seq, subscription, key_hash, slot, place, sequence, state, due_at, attempts, type)
SELECT l.seq, :subscription, :key_hash, l.slot, coalesce(:place, l.seq), :sequence,
       CASE WHEN :unplaced IS NULL THEN :state ELSE 'unhandled' END, {clock} + :after, :attempts, :unplaced
FROM {prefix}ledger l
WHERE l.consumer = :consumer AND l.source = :source AND l.id = :stored_id AND l.seq = :seq
  AND NOT EXISTS (SELECT 1 FROM {prefix}queue q WHERE q.seq = l.seq)
  AND NOT EXISTS (SELECT 1 FROM {prefix}run r
                  WHERE r.first_seq <= l.seq AND r.last_seq >= l.seq AND l.seq IN (SELECT value FROM json_each(r.seqs)))
  AND NOT EXISTS (SELECT 1 FROM {prefix}audit a WHERE a.seq = l.seq AND a.action = 'discard')
RETURNING seq

-- name: lock_free_keys
-- The single writer holds every key.
SELECT :key_hash

-- name: busy_keys
-- Relies on queue_key and queue_unhandled: a message that is not placed yet may be one of the key. What is scheduled holds nothing.
SELECT :key_hash WHERE EXISTS (SELECT 1 FROM {prefix}queue WHERE key_hash = :key_hash AND place < 9223372036854775807)
    OR (EXISTS (SELECT 1 FROM {prefix}queue INDEXED BY {prefix}queue_unhandled WHERE state = 'unhandled') AND EXISTS (
        SELECT 1 FROM {prefix}subscription s WHERE s.consumer = :consumer AND NOT s.retired AND (
            EXISTS (SELECT 1 FROM {prefix}queue u INDEXED BY {prefix}queue_unhandled
                    WHERE u.state = 'unhandled' AND u.type = s.type AND u.subscription IS NULL AND u.postponed = 0)
            OR EXISTS (SELECT 1 FROM {prefix}queue u INDEXED BY {prefix}queue_unhandled
                    WHERE u.state = 'unhandled' AND u.type = s.type AND u.subscription = s.id AND u.postponed = 0))))

-- name: claim
-- Guards: not claimed yet, the worker's own row still there; the rows of keys that were just found held are passed over. What was
-- scheduled joins its key: behind all that came before, in the order of the times. Relies on queue_ready, queue_due and queue_claimed.
UPDATE {prefix}queue
SET worker = :worker, token = :token, state = CASE WHEN state IN ('waiting', 'scheduled') THEN 'retry' ELSE state END
WHERE EXISTS (SELECT 1 FROM {prefix}worker WHERE id = :worker) AND seq IN (
    SELECT seq FROM (
        SELECT seq FROM {prefix}queue
        WHERE due_at IS NOT NULL AND token IS NULL AND isolation = 0 AND NOT outgoing AND due_at <= {now}
          AND subscription IN (SELECT value FROM json_each(:subscriptions))
          AND (key_hash IS NULL OR key_hash NOT IN (SELECT value FROM json_each(:held)))
        ORDER BY due_at LIMIT :retries)
    UNION ALL
    SELECT seq FROM (
        SELECT seq FROM {prefix}queue
        WHERE state = 'ready' AND token IS NULL AND isolation = 0 AND NOT outgoing AND seq >= :cursor
          AND subscription IN (SELECT value FROM json_each(:subscriptions))
          AND (key_hash IS NULL OR key_hash NOT IN (SELECT value FROM json_each(:held)))
        ORDER BY seq LIMIT :limit)
    LIMIT :limit);
UPDATE {prefix}queue AS q SET place = j.place
FROM (SELECT c.seq, (SELECT s.seq FROM sqlite_sequence s WHERE s.name = '{prefix}ledger') + row_number() OVER (ORDER BY c.due_at, c.seq) AS place
      FROM {prefix}queue c INDEXED BY {prefix}queue_claimed
      WHERE c.worker = :worker AND c.token = :token AND c.token IS NOT NULL AND c.place = 9223372036854775807) AS j
WHERE q.seq = j.seq;
UPDATE sqlite_sequence SET seq = seq + changes() WHERE name = '{prefix}ledger' AND changes() > 0;
SELECT q.seq, q.subscription, q.key_hash, q.place, q.sequence, q.attempts, b.source, b.id, b.type, b.version, b.key,
       b.headers, CASE WHEN length(b.body) <= 262144 THEN b.body END, b.destination, b.key_from, b.received_at, ({clock} - coalesce(b.due_at, b.received_at)) / {second}
FROM {prefix}queue q JOIN {prefix}body b ON b.seq = q.seq
WHERE q.worker = :worker AND q.token = :token

-- name: claim_outgoing
-- As claim, for the messages to one destination: their indexes begin with it. New ones and those tried again come in turn. Relies on
-- queue_outgoing and queue_outgoing_due.
UPDATE {prefix}queue
SET worker = :worker, token = :token, state = CASE WHEN state IN ('waiting', 'scheduled') THEN 'retry' ELSE state END
WHERE EXISTS (SELECT 1 FROM {prefix}worker WHERE id = :worker) AND seq IN (
    SELECT seq FROM (
        SELECT seq, row_number() OVER (ORDER BY due_at) AS turn FROM (
            SELECT seq, due_at FROM {prefix}queue
            WHERE due_at IS NOT NULL AND token IS NULL AND isolation = 0 AND outgoing AND due_at <= {now}
              AND destination = :destination AND subscription IN (SELECT value FROM json_each(:subscriptions))
            ORDER BY due_at LIMIT :limit)
        UNION ALL
        SELECT seq, row_number() OVER (ORDER BY seq) FROM (
            SELECT seq FROM {prefix}queue
            WHERE state = 'ready' AND token IS NULL AND isolation = 0 AND outgoing AND seq >= :cursor
              AND destination = :destination AND subscription IN (SELECT value FROM json_each(:subscriptions))
            ORDER BY seq LIMIT :limit)
    ) ORDER BY turn LIMIT :limit);
UPDATE {prefix}queue AS q SET place = j.place
FROM (SELECT c.seq, (SELECT s.seq FROM sqlite_sequence s WHERE s.name = '{prefix}ledger') + row_number() OVER (ORDER BY c.due_at, c.seq) AS place
      FROM {prefix}queue c INDEXED BY {prefix}queue_claimed
      WHERE c.worker = :worker AND c.token = :token AND c.token IS NOT NULL AND c.place = 9223372036854775807) AS j
WHERE q.seq = j.seq;
UPDATE sqlite_sequence SET seq = seq + changes() WHERE name = '{prefix}ledger' AND changes() > 0;
SELECT q.seq, q.subscription, q.key_hash, q.place, q.sequence, q.attempts, b.source, b.id, b.type, b.version, b.key,
       b.headers, CASE WHEN length(b.body) <= 262144 THEN b.body END, b.destination, b.key_from, b.received_at, ({clock} - coalesce(b.due_at, b.received_at)) / {second}
FROM {prefix}queue q JOIN {prefix}body b ON b.seq = q.seq
WHERE q.worker = :worker AND q.token = :token

-- name: awaiting
-- Which of these destinations have a message that may be published now. Relies on queue_outgoing, queue_outgoing_due and queue_isolated.
SELECT place.value FROM json_each(:destinations) AS place
WHERE EXISTS (SELECT 1 FROM {prefix}queue WHERE state = 'ready' AND token IS NULL AND isolation = 0 AND outgoing AND destination = place.value)
   OR EXISTS (SELECT 1 FROM {prefix}queue WHERE due_at IS NOT NULL AND token IS NULL AND isolation = 0 AND outgoing
                AND destination = place.value AND due_at <= {now})
   OR EXISTS (SELECT 1 FROM {prefix}queue WHERE isolation > 0 AND token IS NULL AND destination = place.value
                AND (state = 'ready' OR due_at <= {now}))

-- name: hasten
-- Guard: still due later and not claimed. What failed while its destination, or what its handler calls, was away is due at once when that
-- is back; what was told when to come again (`Retry`) keeps its time. Relies on queue_due or queue_outgoing_due, and on attempt_seq.
UPDATE {prefix}queue SET due_at = {clock}
WHERE seq IN (
    SELECT q.seq FROM {prefix}queue q
    WHERE q.due_at IS NOT NULL AND q.token IS NULL AND q.isolation = 0 AND q.outgoing = :outgoing
      AND q.due_at > {now} AND q.state = 'retry' AND q.destination IS :destination
      AND q.subscription IN (SELECT value FROM json_each(:subscriptions))
      AND (SELECT a.error NOT LIKE 'Retry:%' FROM {prefix}attempt a WHERE a.seq = q.seq ORDER BY a.id DESC LIMIT 1)
    ORDER BY q.due_at LIMIT :limit)
RETURNING seq

-- name: claim_isolated
-- As claim, for messages of one level that were in flight when a process died. Relies on queue_isolated.
UPDATE {prefix}queue
SET worker = :worker, token = :token, state = CASE state WHEN 'waiting' THEN 'retry' ELSE state END
WHERE EXISTS (SELECT 1 FROM {prefix}worker WHERE id = :worker) AND seq IN (
    SELECT seq FROM {prefix}queue
    WHERE isolation = :level AND isolation > 0 AND token IS NULL AND (state = 'ready' OR due_at <= {now})
      AND subscription IN (SELECT value FROM json_each(:subscriptions)) AND destination IS :destination
      AND (key_hash IS NULL OR key_hash NOT IN (SELECT value FROM json_each(:held)))
    ORDER BY seq LIMIT :limit);
SELECT q.seq, q.subscription, q.key_hash, q.place, q.sequence, q.attempts, b.source, b.id, b.type, b.version, b.key,
       b.headers, CASE WHEN length(b.body) <= 262144 THEN b.body END, b.destination, b.key_from, b.received_at, ({clock} - coalesce(b.due_at, b.received_at)) / {second}
FROM {prefix}queue q JOIN {prefix}body b ON b.seq = q.seq
WHERE q.worker = :worker AND q.token = :token

-- name: first_due
-- The subscriptions, of these, of the first new message that may be claimed now and of the first one that may be tried again.
-- Relies on queue_ready and queue_due.
SELECT subscription FROM (
    SELECT subscription FROM {prefix}queue
    WHERE state = 'ready' AND token IS NULL AND isolation = 0 AND NOT outgoing AND seq >= 0
      AND subscription IN (SELECT value FROM json_each(:subscriptions))
    ORDER BY seq LIMIT 1)
UNION ALL
SELECT subscription FROM (
    SELECT subscription FROM {prefix}queue
    WHERE due_at IS NOT NULL AND token IS NULL AND isolation = 0 AND NOT outgoing AND due_at <= {now}
      AND subscription IN (SELECT value FROM json_each(:subscriptions))
    ORDER BY due_at LIMIT 1)

-- name: keys_in_front
-- The keys of the rows that a claim looked at in vain. No row here, where nobody locks a key: nothing is ready, or the worker's own row
-- is gone. Relies on queue_ready and queue_due.
SELECT DISTINCT key_hash FROM (
    SELECT key_hash FROM (
        SELECT key_hash FROM {prefix}queue
        WHERE state = 'ready' AND token IS NULL AND isolation = 0 AND NOT outgoing AND seq >= :cursor
          AND subscription IN (SELECT value FROM json_each(:subscriptions))
          AND (key_hash IS NULL OR key_hash NOT IN (SELECT value FROM json_each(:held)))
        ORDER BY seq LIMIT :limit)
    UNION ALL
    SELECT key_hash FROM (
        SELECT key_hash FROM {prefix}queue
        WHERE due_at IS NOT NULL AND token IS NULL AND isolation = 0 AND NOT outgoing AND due_at <= {now}
          AND subscription IN (SELECT value FROM json_each(:subscriptions))
          AND (key_hash IS NULL OR key_hash NOT IN (SELECT value FROM json_each(:held)))
        ORDER BY due_at LIMIT :limit)
)
WHERE key_hash IS NOT NULL AND EXISTS (SELECT 1 FROM {prefix}worker WHERE id = :worker)

-- name: fair_share
-- How many of the messages that may be claimed now each lane of every process would have, counted up to what all of them would take.
-- Relies on queue_ready and queue_due.
SELECT ((SELECT count(*) FROM (
    SELECT 1 FROM {prefix}queue
    WHERE state = 'ready' AND token IS NULL AND isolation = 0 AND NOT outgoing AND seq >= :cursor
      AND subscription IN (SELECT value FROM json_each(:subscriptions))
    ORDER BY seq LIMIT :limit * (SELECT max(total(lanes), 1) FROM {prefix}worker))
) + (SELECT count(*) FROM (
    SELECT 1 FROM {prefix}queue
    WHERE due_at IS NOT NULL AND token IS NULL AND isolation = 0 AND NOT outgoing AND due_at <= {now}
      AND subscription IN (SELECT value FROM json_each(:subscriptions))
    ORDER BY due_at LIMIT :limit * (SELECT max(total(lanes), 1) FROM {prefix}worker))
) + lanes - 1) / lanes
FROM (SELECT CAST(max(total(lanes), 1) AS integer) AS lanes FROM {prefix}worker)

-- name: isolation_level
-- The highest level of the isolated messages that wait, 0 for none. Relies on queue_isolated.
SELECT coalesce((
    SELECT isolation FROM {prefix}queue
    WHERE isolation > 0 AND token IS NULL AND (state = 'ready' OR due_at <= {now})
      AND subscription IN (SELECT value FROM json_each(:subscriptions)) AND destination IS :destination
    ORDER BY isolation DESC LIMIT 1), 0)

-- name: park
-- A row stays claimed only when every earlier row of its key is in this claim and no other claim holds a row of the key. Behind an
-- earlier row it waits; behind a claimed later one (which was committed first) it only loses its claim, for nobody would promote it. Where
-- an earlier message that its consumer will get is not placed yet, nor refused, and may be of its key, it waits for a moment.
-- Relies on queue_key, queue_claimed and queue_unhandled; left to itself, the planner reads every row that has a key to find the few that are claimed.
WITH RECURSIVE waiting (type) AS (
    SELECT min(type) FROM {prefix}queue WHERE state = 'unhandled'
    UNION ALL
    SELECT (SELECT min(q.type) FROM {prefix}queue q WHERE q.state = 'unhandled' AND q.type > w.type)
    FROM waiting w WHERE w.type IS NOT NULL
), first (consumer, seq) AS (
    SELECT s.consumer, min(min(
        coalesce((SELECT coalesce(u.sequence, u.seq) FROM {prefix}queue u INDEXED BY {prefix}queue_unhandled
                  WHERE u.state = 'unhandled' AND u.type = w.type AND u.subscription IS NULL AND u.postponed = 0
                  ORDER BY coalesce(u.sequence, u.seq) LIMIT 1), 9223372036854775807),
        coalesce((SELECT coalesce(u.sequence, u.seq) FROM {prefix}queue u INDEXED BY {prefix}queue_unhandled
                  WHERE u.state = 'unhandled' AND u.type = w.type AND u.subscription = s.id AND u.postponed = 0
                  ORDER BY coalesce(u.sequence, u.seq) LIMIT 1), 9223372036854775807)))
    FROM waiting w JOIN {prefix}subscription s ON s.type = w.type AND NOT s.retired
    GROUP BY s.consumer
)
UPDATE {prefix}queue AS q
SET worker = NULL, token = NULL,
    state = CASE WHEN o.earlier OR o.unplaced THEN 'waiting' ELSE q.state END,
    due_at = CASE WHEN o.earlier THEN NULL WHEN o.unplaced THEN {clock} + 250000 ELSE q.due_at END
FROM (
    SELECT m.seq, EXISTS (
        SELECT 1 FROM {prefix}queue e
        WHERE e.key_hash = m.key_hash AND (e.place, e.seq) < (m.place, m.seq) AND NOT (e.worker IS :worker AND e.token IS :token)
    ) AS earlier, m.key_hash IN (
        SELECT n.key_hash FROM {prefix}queue n INDEXED BY {prefix}queue_claimed
        WHERE n.token IS NOT NULL AND n.key_hash IS NOT NULL AND NOT (n.worker = :worker AND n.token = :token)
    ) AS busy, m.sequence IS NULL AND EXISTS (
        SELECT 1 FROM first f JOIN {prefix}subscription s ON s.consumer = f.consumer
        WHERE s.id = m.subscription AND f.seq < m.seq
    ) AS unplaced
    FROM {prefix}queue m INDEXED BY {prefix}queue_claimed
    WHERE m.worker = :worker AND m.token = :token AND m.token IS NOT NULL AND m.key_hash IS NOT NULL
) AS o
WHERE q.seq = o.seq AND (o.earlier OR o.busy OR o.unplaced)
RETURNING seq, CASE WHEN state = 'waiting' AND due_at IS NOT NULL THEN 'unplaced' ELSE state END

-- name: move
-- Guard: the row still carries this claim. It is claimed anew, in its place in the key it comes to.
UPDATE {prefix}queue
SET key_hash = :key_hash, slot = :slot, sequence = :sequence, place = coalesce(:sequence, place), worker = NULL, token = NULL
WHERE seq = :seq AND worker = :worker AND token = :token
RETURNING seq

-- name: lock_keys
-- The single writer holds every key.
SELECT :key_hashes

-- name: finish
-- Guard: every row still carries this claim; else `messages` is null, the insert fails, and everything the handlers did
-- rolls back. The deletion is "done".
INSERT INTO {prefix}run (worker, token, code_version, finished_at, first_seq, last_seq, seqs, messages, outgoing)
SELECT :worker, :token, :code_version, {clock}, coalesce(min(seq), 0), coalesce(max(seq), 0), :seqs,
       CASE WHEN count(*) = :expected AND :fence IS NOT NULL THEN count(*) END, coalesce(max(outgoing), 0)
FROM {prefix}queue
WHERE seq IN (SELECT value FROM json_each(:seqs)) AND worker = :worker AND token = :token;
DELETE FROM {prefix}queue
WHERE seq IN (SELECT value FROM json_each(:seqs)) AND worker = :worker AND token = :token

-- name: finish_direct
-- Guard: the ledger rows of this transaction are there; else `messages` is null.
INSERT INTO {prefix}run (worker, token, code_version, finished_at, first_seq, last_seq, seqs, messages)
SELECT :worker, 0, :code_version, {clock}, :first, :last, :seqs,
       CASE WHEN :fence IS NOT NULL AND (SELECT count(*) FROM {prefix}ledger WHERE seq IN (SELECT value FROM json_each(:seqs))) = :expected
            THEN :expected END

-- name: promote
-- After the removal, in the same transaction. Relies on queue_waiting.
UPDATE {prefix}queue SET state = 'ready', due_at = NULL
WHERE seq IN (
    SELECT (SELECT q.seq FROM {prefix}queue q WHERE q.key_hash = k.value AND q.state = 'waiting' ORDER BY q.place, q.seq LIMIT 1)
    FROM json_each(:key_hashes) AS k)
RETURNING subscription

-- name: store_results
-- In the handler's transaction: a result exists exactly when its effects do.
INSERT INTO {prefix}result (seq, result) VALUES (:seq, :result)

-- name: forget_bodies
-- For handlers with keep_body=False, in the handler's transaction; the hash stays in the ledger.
-- A large one is forgotten with the reference to it.
UPDATE {prefix}body SET body = NULL,
    headers = CASE substr(headers, 1, 18) WHEN '{"onceward-blob":"' THEN json_remove(headers, '$."onceward-blob"') ELSE headers END
WHERE seq IN (SELECT value FROM json_each(:seqs))

-- name: settle
-- Guard: the row still carries this claim; no row back means that it was taken over. A dead row that is detached no longer holds its
-- key. An isolated message that has failed without killing its process is isolated no more, unless it has killed one before.
UPDATE {prefix}queue
SET state = :state, due_at = {clock} + {microseconds delay}, attempts = attempts + 1, worker = NULL, token = NULL,
    isolation = CASE WHEN crashes > 0 THEN isolation ELSE 0 END,
    key_hash = CASE WHEN :detach THEN NULL ELSE key_hash END
WHERE seq = :seq AND worker = :worker AND token = :token
RETURNING seq

-- name: postpone
-- Guards: the row still carries this claim, and was not postponed as often as it may be: then it is charged. An infrastructure error: try
-- again, uncharged, each time later.
UPDATE {prefix}queue
SET state = 'retry', worker = NULL, token = NULL, postponed = postponed + 1,
    due_at = {clock} + CAST(min(:delay * (1 << min(postponed, 20)), :longest) * 1000000 AS integer)
WHERE seq = :seq AND worker = :worker AND token = :token AND (:most IS NULL OR postponed < :most)
RETURNING seq, (due_at - {clock}) / {second}

-- name: put_off
-- Guard: the row still carries this claim. Their handler pauses: nobody is charged.
UPDATE {prefix}queue
SET state = 'retry', due_at = {clock} + {microseconds delay}, worker = NULL, token = NULL
WHERE seq IN (SELECT value FROM json_each(:seqs)) AND worker = :worker AND token = :token
RETURNING seq

-- name: unclaim
-- Guard: the row still carries this claim. Nobody is charged.
UPDATE {prefix}queue SET worker = NULL, token = NULL
WHERE seq IN (SELECT value FROM json_each(:seqs)) AND worker = :worker AND token = :token
RETURNING seq

-- name: heartbeat
-- Guard: the row is still there and still this process's; no row back means that it was declared dead and must register anew.
UPDATE {prefix}worker SET alive_until = {clock} + {microseconds lease}, inline = max(inline, :inline), circuits = :circuits
WHERE id = :worker AND process = :process
RETURNING id

-- name: lapsed_workers
-- The single writer keeps two processes from taking the same worker over.
SELECT id, inline, pid, host FROM {prefix}worker WHERE alive_until < {now} AND id <> :worker ORDER BY id LIMIT 10

-- name: worker_of_process
-- For a supervisor that saw its child die, and for a process that begins under the name of another. With those that it registered as
-- later, after it had been declared dead.
SELECT id, inline, pid, host FROM {prefix}worker
WHERE process = :process OR substr(process, 1, length(:process) + 1) = :process || '#'

-- name: handled_elsewhere
-- Whether a worker that lives has a handler for a version. A handful of rows.
SELECT EXISTS (SELECT 1 FROM {prefix}worker WHERE NOT inline AND alive_until > {now} AND instr(handles, :line) > 0)

-- name: lock_worker
-- The single writer keeps claims away meanwhile.
SELECT id FROM {prefix}worker WHERE id = :worker

-- name: claimed_by
-- What a dead worker left behind. Relies on queue_claimed.
SELECT q.seq, q.attempts, q.crashes, q.key_hash, s.on_dead, q.isolation
FROM {prefix}queue q JOIN {prefix}subscription s ON s.id = q.subscription
WHERE q.worker = :worker AND q.token IS NOT NULL ORDER BY q.seq

-- name: unhandled_types
-- Types that wait for somebody who knows them, and those of a subscription that wait for its key function. Relies on queue_unhandled:
-- from one type to the next, however many messages wait.
WITH RECURSIVE waiting (type) AS (
    SELECT min(type) FROM {prefix}queue WHERE state = 'unhandled'
    UNION ALL
    SELECT (SELECT min(q.type) FROM {prefix}queue q WHERE q.state = 'unhandled' AND q.type > w.type)
    FROM waiting w WHERE w.type IS NOT NULL
)
SELECT w.type, NULL FROM waiting w WHERE EXISTS (
    SELECT 1 FROM {prefix}queue q INDEXED BY {prefix}queue_unhandled
    WHERE q.state = 'unhandled' AND q.type = w.type AND q.subscription IS NULL)
UNION ALL
SELECT w.type, s.id FROM waiting w JOIN {prefix}subscription s ON s.type = w.type WHERE EXISTS (
    SELECT 1 FROM {prefix}queue q INDEXED BY {prefix}queue_unhandled
    WHERE q.state = 'unhandled' AND q.type = w.type AND q.subscription = s.id)

-- name: unhandled
-- Relies on queue_unhandled: what others wait for is not looked at. Nor is what was refused a moment ago.
-- A larger body stays behind, to be fetched by itself (body_of).
SELECT q.seq, b.source, b.id, b.type, b.version, b.key, b.headers, CASE WHEN length(b.body) <= 262144 THEN b.body END, l.consumer, l.id, l.hash, q.place, q.subscription, b.position, q.key_hash, b.due_at
FROM {prefix}queue q JOIN {prefix}body b ON b.seq = q.seq JOIN {prefix}ledger l ON l.seq = q.seq
WHERE q.seq IN (
    SELECT n.seq FROM json_each(:types) t JOIN {prefix}queue n ON n.seq IN (
        SELECT seq FROM {prefix}queue INDEXED BY {prefix}queue_unhandled
        WHERE state = 'unhandled' AND type = t.value AND subscription IS NULL AND seq NOT IN (SELECT value FROM json_each(:passed))
        ORDER BY coalesce(sequence, seq) LIMIT :limit)
    UNION ALL
    SELECT n.seq FROM json_each(:subscriptions) j JOIN {prefix}subscription s ON s.id = j.value JOIN {prefix}queue n ON n.seq IN (
        SELECT seq FROM {prefix}queue INDEXED BY {prefix}queue_unhandled
        WHERE state = 'unhandled' AND type = s.type AND subscription = s.id AND seq NOT IN (SELECT value FROM json_each(:passed))
        ORDER BY coalesce(sequence, seq) LIMIT :limit)
    ORDER BY 1 LIMIT :limit)
ORDER BY q.seq

-- name: adopt
-- Guard: state still unhandled. The row keeps its number, so it keeps its place in the order. Where its key is still not to be found, it
-- goes on waiting, for its subscription alone.
UPDATE {prefix}queue
SET state = CASE WHEN :unplaced IS NOT NULL THEN 'unhandled' WHEN :due_at IS NULL THEN 'ready' ELSE 'scheduled' END, type = :unplaced,
    due_at = CASE WHEN :unplaced IS NULL THEN :due_at END, subscription = :subscription, key_hash = :key_hash,
    slot = coalesce(:slot, slot), sequence = :sequence, place = coalesce(:place, place), postponed = 0
WHERE seq = :seq AND state = 'unhandled'
RETURNING seq

-- name: bring_forward
-- Guard: state still unhandled. The same message came to another service before: it has come when that one did.
UPDATE {prefix}queue SET place = min(place, :place), sequence = min(coalesce(sequence, seq), :since)
WHERE seq = :seq AND state = 'unhandled'

-- name: mark_refused
-- Guard: state still unhandled. The database refuses the rows of its consumers: it stays, and holds up no others but those of its key.
UPDATE {prefix}queue SET postponed = postponed + 1, key_hash = coalesce(:key_hash, key_hash)
WHERE seq = :seq AND state = 'unhandled'
RETURNING seq

-- name: refused
-- How many messages are marked as refused, and the first of them. Relies on queue_unhandled.
SELECT count(*), min(seq) FROM {prefix}queue INDEXED BY {prefix}queue_unhandled WHERE state = 'unhandled' AND postponed > 0

-- name: hand_on
-- Before an unhandled row goes: its copies, its cases in quarantine and what people did to it belong to the row that replaces it.
INSERT INTO {prefix}duplicate (seq, copies, first_at, last_at)
SELECT :heir, copies, first_at, last_at FROM {prefix}duplicate WHERE seq = :seq
ON CONFLICT (seq) DO UPDATE SET copies = copies + excluded.copies, first_at = excluded.first_at;
DELETE FROM {prefix}duplicate WHERE seq = :seq;
DELETE FROM {prefix}quarantine WHERE seq = :seq
  AND (hash, type_hash) IN (SELECT hash, type_hash FROM {prefix}quarantine WHERE seq = :heir);
UPDATE {prefix}quarantine SET seq = :heir WHERE seq = :seq;
UPDATE {prefix}quarantine SET accepted_seq = :heir WHERE accepted_seq = :seq;
UPDATE {prefix}audit SET seq = :heir WHERE seq = :seq

-- name: remove_unhandled
-- The service's own row of a type that only other consumers want; they have rows of their own by now.
DELETE FROM {prefix}body WHERE seq = :seq AND seq IN (SELECT seq FROM {prefix}queue WHERE state = 'unhandled');
DELETE FROM {prefix}ledger WHERE seq = :seq AND seq IN (SELECT seq FROM {prefix}queue WHERE state = 'unhandled');
DELETE FROM {prefix}queue WHERE seq = :seq AND state = 'unhandled'

-- name: redrive
-- Guard: state is dead, so a second click changes nothing, and its key is as it was seen. The budget starts anew, the history stays.
UPDATE {prefix}queue SET state = 'ready', attempts = 0, crashes = 0, postponed = 0, key_hash = :key_hash
WHERE seq = :seq AND state = 'dead' AND key_hash IS :seen_key
RETURNING seq

-- name: key_of
-- The key whose lock comes before any row lock.
SELECT q.key_hash, b.key, b.aggregate, c.name, q.outgoing, b.destination, q.sequence
FROM {prefix}queue q JOIN {prefix}body b ON b.seq = q.seq JOIN {prefix}ledger l ON l.seq = q.seq
JOIN {prefix}name c ON c.id = l.consumer
WHERE q.seq = :seq

-- name: detach
-- Guard: dead, and the first of its key where that is counted (giving up a later number would give up the earlier ones too). The row
-- stays dead and its key goes on without it.
UPDATE {prefix}queue AS q SET key_hash = NULL
WHERE q.seq = :seq AND q.state = 'dead' AND q.key_hash IS NOT NULL
  AND (q.sequence IS NULL OR NOT EXISTS (
       SELECT 1 FROM {prefix}queue e JOIN {prefix}body b ON b.seq = e.seq
       WHERE e.key_hash = q.key_hash AND (e.place, e.seq) < (q.place, q.seq)
         AND b.key = (SELECT o.key FROM {prefix}body o WHERE o.seq = q.seq)))
RETURNING seq

-- name: advance
-- The numbers of a key that are applied, in the transaction that applies or gives them up.
INSERT INTO {prefix}progress (consumer, aggregate, key, applied)
SELECT l.consumer, coalesce(b.aggregate, ''), b.key, max(q.sequence)
FROM {prefix}queue q JOIN {prefix}body b ON b.seq = q.seq JOIN {prefix}ledger l ON l.seq = q.seq
WHERE q.seq IN (SELECT value FROM json_each(:seqs)) AND q.sequence IS NOT NULL AND b.key IS NOT NULL
GROUP BY 1, 2, 3
ON CONFLICT (consumer, aggregate, key) DO UPDATE SET applied = max(applied, excluded.applied)

-- name: retreat
-- Guard: the number of this message was the last one given up, and nobody runs a later one of its key.
UPDATE {prefix}progress SET applied = applied - 1
WHERE EXISTS (
    SELECT 1 FROM {prefix}queue q JOIN {prefix}body b ON b.seq = q.seq JOIN {prefix}ledger l ON l.seq = q.seq
    WHERE q.seq = :seq AND l.consumer = {prefix}progress.consumer AND coalesce(b.aggregate, '') = {prefix}progress.aggregate
      AND b.key = {prefix}progress.key
      AND q.sequence = {prefix}progress.applied)
  AND NOT EXISTS (
    SELECT 1 FROM {prefix}queue n JOIN {prefix}body o ON o.seq = n.seq
    WHERE n.key_hash = :key_hash AND n.token IS NOT NULL AND o.key = {prefix}progress.key)
RETURNING applied

-- name: advance_inline
-- As advance, for a message that never had a queue row.
INSERT INTO {prefix}progress (consumer, aggregate, key, applied) VALUES (:consumer, :aggregate, :key, :sequence)
ON CONFLICT (consumer, aggregate, key) DO UPDATE SET applied = max(applied, excluded.applied)

-- name: progress
-- How far the keys of these rows are.
SELECT q.seq, coalesce(p.applied, 0)
FROM {prefix}queue q JOIN {prefix}body b ON b.seq = q.seq JOIN {prefix}ledger l ON l.seq = q.seq
LEFT JOIN {prefix}progress p ON p.consumer = l.consumer AND p.aggregate = coalesce(b.aggregate, '') AND p.key = b.key
WHERE q.seq IN (SELECT value FROM json_each(:seqs))

-- name: hold
-- Guard: the row carries this claim. A number is missing before it: wait for that, until the deadline.
UPDATE {prefix}queue SET state = 'waiting', due_at = {clock} + {microseconds delay}, worker = NULL, token = NULL
WHERE seq = :seq AND worker = :worker AND token = :token
RETURNING seq

-- name: lock_effect
-- Whoever asks about it (effect) waits until a person's word is committed.
SELECT key FROM {prefix}effect WHERE key = :key

-- name: effect_held
-- Under lock_effect: whether its message is being run right now. One that is processed inline has no row yet: it may be running for as
-- long as its process is there and its handler may still be at it.
SELECT e.seq FROM {prefix}effect e
WHERE e.key = :key AND (
    EXISTS (SELECT 1 FROM {prefix}queue q WHERE q.seq = e.seq AND q.token IS NOT NULL)
    OR (e.started_at > {now} - {microseconds patience}
        AND EXISTS (SELECT 1 FROM {prefix}worker w WHERE w.id = e.worker)
        AND NOT EXISTS (SELECT 1 FROM {prefix}ledger l WHERE l.seq = e.seq)))

-- name: effect_done
-- Committed right after the call. Guard: not done before, so that the first result stands.
UPDATE {prefix}effect SET done = 1, result = :result, finished_at = {clock} WHERE key = :key AND NOT done RETURNING key

-- name: discard
-- Guard: the row is not claimed, its key is still the one that was seen, it is the first of its key where that is counted, and still
-- scheduled where only that is meant.
DELETE FROM {prefix}queue AS q
WHERE q.seq = :seq AND q.token IS NULL AND q.key_hash IS :key_hash AND (q.state = 'scheduled' OR NOT :scheduled)
  AND (q.sequence IS NULL OR NOT EXISTS (
       SELECT 1 FROM {prefix}queue e JOIN {prefix}body b ON b.seq = e.seq
       WHERE e.key_hash = q.key_hash AND (e.place, e.seq) < (q.place, q.seq)
         AND b.key = (SELECT o.key FROM {prefix}body o WHERE o.seq = q.seq)))
RETURNING seq

-- name: keep_first_types
-- Some of the open cases of a source and a type whose bytes are the first ones, so that only the type or its version differs: decided
-- for the first, with their lines in the audit. Guard: still open.
INSERT INTO {prefix}audit (at, actor, action, seq, reason)
SELECT {clock}, :actor, 'keep-first', x.seq, :reason
FROM {prefix}quarantine x JOIN {prefix}ledger l ON l.seq = x.seq JOIN {prefix}name n ON n.id = l.source
WHERE x.resolution IS NULL AND x.hash = l.hash AND n.name = :source AND x.type = :type
ORDER BY x.id LIMIT :limit
RETURNING seq;
UPDATE {prefix}quarantine SET resolution = 'keep-first' WHERE id IN (
    SELECT x.id FROM {prefix}quarantine x JOIN {prefix}ledger l ON l.seq = x.seq JOIN {prefix}name n ON n.id = l.source
    WHERE x.resolution IS NULL AND x.hash = l.hash AND n.name = :source AND x.type = :type
    ORDER BY x.id LIMIT :limit)

-- name: stats
-- Counts of the queue are counts of unfinished work, which is small; the rest are sums over groups.
SELECT
    (SELECT count(*) FROM {prefix}queue
        WHERE NOT outgoing AND token IS NULL AND (state = 'ready' OR (state IN ('retry', 'scheduled') AND due_at <= {now}))),
    (SELECT count(*) FROM {prefix}queue WHERE NOT outgoing AND state = 'waiting'),
    (SELECT count(*) FROM {prefix}queue WHERE NOT outgoing AND token IS NOT NULL),
    (SELECT count(*) FROM {prefix}queue WHERE NOT outgoing AND token IS NULL AND state = 'retry' AND due_at > {now}),
    (SELECT count(*) FROM {prefix}queue WHERE NOT outgoing AND state = 'scheduled' AND due_at > {now}),
    (SELECT count(*) FROM {prefix}queue WHERE NOT outgoing AND state = 'dead'),
    (SELECT count(*) FROM {prefix}queue WHERE state = 'unhandled'),
    (SELECT count(*) FROM {prefix}quarantine WHERE resolution IS NULL),
    (SELECT coalesce(sum(messages), 0) FROM {prefix}run WHERE NOT outgoing),
    (SELECT count(*) FROM {prefix}audit WHERE action = 'discard'),
    (SELECT count(*) FROM {prefix}audit WHERE action = 'skip'),
    (SELECT coalesce(sum(copies), 0) FROM {prefix}duplicate),
    (SELECT count(*) FROM {prefix}attempt WHERE charged),
    (SELECT count(*) FROM {prefix}worker WHERE alive_until >= {now}),
    ({now} - min(
        coalesce((SELECT coalesce(due_at, received_at) FROM {prefix}body WHERE seq = (
            SELECT min(seq) FROM {prefix}queue WHERE state = 'ready' AND token IS NULL AND NOT outgoing)), {now}),
        coalesce((SELECT min(due_at) FROM {prefix}queue
            WHERE NOT outgoing AND state IN ('retry', 'scheduled') AND token IS NULL AND due_at <= {now}), {now})
    )) / {second},
    (SELECT coalesce(sum(messages), 0) FROM {prefix}run WHERE NOT outgoing AND finished_at > {now} - 60000000),
    (SELECT count(*) FROM {prefix}queue WHERE outgoing AND state <> 'dead' AND NOT (state = 'scheduled' AND due_at > {now})),
    (SELECT count(*) FROM {prefix}queue WHERE outgoing AND state = 'dead'),
    (SELECT coalesce(sum(messages), 0) FROM {prefix}run WHERE outgoing),
    (SELECT count(*) FROM {prefix}poll WHERE failures > 0)

-- name: list_finished
-- Newest first; a ledger row without a queue row is finished. Walks the ledger's primary key backwards.
SELECT l.seq, coalesce((SELECT CASE a.action WHEN 'discard' THEN 'discarded' ELSE 'skipped' END
       FROM {prefix}audit a WHERE a.seq = l.seq AND a.action IN ('discard', 'skip') LIMIT 1), 'done') AS status,
       n.name, coalesce(b.id, ''), coalesce(b.type, ''), coalesce(b.version, 0), b.key, c.name, 0, 0,
       l.received_at, NULL, NULL
FROM {prefix}ledger l
LEFT JOIN {prefix}queue q ON q.seq = l.seq
LEFT JOIN {prefix}body b ON b.seq = l.seq
JOIN {prefix}name n ON n.id = l.source
JOIN {prefix}name c ON c.id = l.consumer
WHERE q.seq IS NULL AND (c.name = :outbox) = :outgoing
  AND (:status IS NULL OR :status = status)
  AND (:type IS NULL OR b.type = :type)
  AND (:key IS NULL OR b.key = :key)
  AND (:source IS NULL OR n.name = :source)
  AND (:before IS NULL OR l.seq < :before)
  AND (:since IS NULL OR l.received_at >= :since)
  AND (:until IS NULL OR l.received_at < :until)
  AND (:fingerprint IS NULL OR :fingerprint = (
       SELECT a.fingerprint FROM {prefix}attempt a WHERE a.seq = l.seq ORDER BY a.id DESC LIMIT 1))
ORDER BY l.seq DESC LIMIT :limit

-- name: show_run
-- When, by whom and with which code it was finished. Relies on run_seq.
SELECT finished_at, worker, code_version, messages
FROM {prefix}run
WHERE first_seq <= :seq AND last_seq >= :seq AND :seq IN (SELECT value FROM json_each(seqs))

-- name: find
-- Relies on the unique key of the ledger, once for each consumer.
SELECT l.seq FROM {prefix}ledger l JOIN {prefix}name n ON n.id = l.source
WHERE n.name = :source AND l.id >= :from_id AND l.id < :below_id
  AND l.consumer IN (SELECT consumer FROM {prefix}subscription
      UNION SELECT id FROM {prefix}name WHERE name = :consumer)
ORDER BY l.seq

-- name: find_id
-- An id from whatever source, for whatever consumer. Relies on the unique key of the ledger, once for each pair of names.
SELECT l.seq FROM {prefix}ledger l
WHERE l.id >= :from_id AND l.id < :below_id
  AND l.consumer IN (SELECT id FROM {prefix}name) AND l.source IN (SELECT id FROM {prefix}name)
ORDER BY l.seq LIMIT :limit

-- name: search
-- A text in the newest errors and payloads: so many of each are read, backwards in the primary keys, and no more.
SELECT seq, min(place) FROM (
    SELECT seq, 'error' AS place FROM (SELECT seq, error FROM {prefix}attempt ORDER BY id DESC LIMIT :newest) AS failures WHERE instr(error, :text) > 0
    UNION ALL
    SELECT seq, 'payload' FROM (SELECT seq, body FROM {prefix}body ORDER BY seq DESC LIMIT :newest) AS bodies WHERE instr(body, :bytes) > 0
) AS found GROUP BY seq ORDER BY seq DESC LIMIT :limit

-- name: blocked_keys
-- Dead messages that hold their key, and unhandled ones (of the first that came) with others behind them that could run; and how much
-- waits behind each. Relies on queue_dead_unhandled and queue_key.
SELECT q.seq, b.type, b.key, c.name, q.outgoing, b.received_at,
       (SELECT count(*) FROM {prefix}queue w
        WHERE w.key_hash = q.key_hash AND (w.place, w.seq) > (q.place, q.seq) AND w.place < 9223372036854775807) AS behind,
       (SELECT w.seq FROM {prefix}queue w
        WHERE w.key_hash = q.key_hash AND (w.place, w.seq) > (q.place, q.seq) AND w.place < 9223372036854775807 ORDER BY w.place, w.seq LIMIT 1), q.state
FROM (
    SELECT seq, key_hash, place, outgoing, state FROM {prefix}queue WHERE state = 'dead' AND key_hash IS NOT NULL
    UNION ALL
    SELECT * FROM (SELECT seq, key_hash, place, outgoing, state FROM {prefix}queue u
    WHERE u.state = 'unhandled' AND u.key_hash IS NOT NULL AND EXISTS (
        SELECT 1 FROM {prefix}queue w
        WHERE w.key_hash = u.key_hash AND (w.place, w.seq) > (u.place, u.seq) AND w.place < 9223372036854775807 AND w.state <> 'unhandled')
    ORDER BY u.seq LIMIT 1000)
) AS q
JOIN {prefix}body b ON b.seq = q.seq
JOIN {prefix}ledger l ON l.seq = q.seq
JOIN {prefix}name c ON c.id = l.consumer
ORDER BY behind DESC, q.seq LIMIT :limit

-- name: sources
-- Who sends, as far as the newest messages show; and who said how late it may redeliver. Walks the ledger's primary key backwards.
SELECT n.name, s.redelivers_seconds, coalesce(r.messages, 0), r.last_at, coalesce(r.copies, 0)
FROM {prefix}name n
LEFT JOIN {prefix}source s ON s.source = n.id
LEFT JOIN (
    SELECT m.source, count(*) AS messages, max(m.received_at) AS last_at, sum(coalesce(d.copies, 0)) AS copies
    FROM (SELECT seq, source, received_at FROM {prefix}ledger ORDER BY seq DESC LIMIT :newest) AS m
    LEFT JOIN {prefix}duplicate d ON d.seq = m.seq
    GROUP BY m.source
) AS r ON r.source = n.id
WHERE s.source IS NOT NULL OR r.messages IS NOT NULL
ORDER BY n.name

-- name: sizes
-- Rows are counted here, in the primary keys; bytes are known for the file as a whole.
SELECT 'ledger', count(*), NULL FROM {prefix}ledger
UNION ALL SELECT 'body', count(*), NULL FROM {prefix}body
UNION ALL SELECT 'queue', count(*), NULL FROM {prefix}queue
UNION ALL SELECT 'run', count(*), NULL FROM {prefix}run
UNION ALL SELECT 'result', count(*), NULL FROM {prefix}result
UNION ALL SELECT 'attempt', count(*), NULL FROM {prefix}attempt
UNION ALL SELECT 'duplicate', count(*), NULL FROM {prefix}duplicate
UNION ALL SELECT 'quarantine', count(*), NULL FROM {prefix}quarantine
UNION ALL SELECT 'effect', count(*), NULL FROM {prefix}effect
UNION ALL SELECT 'audit', count(*), NULL FROM {prefix}audit
UNION ALL SELECT '(whole file)', NULL,
    (SELECT page_count FROM pragma_page_count) * (SELECT page_size FROM pragma_page_size)

-- name: traffic
-- By the minute: 0 received, 1 done, 2 failed; not what goes out. From the newest rows alone, backwards in the primary keys: the cost has an end
-- however busy the last hour was.
SELECT 0, (received_at - {now}) / 60000000 AS minute, count(*) FROM (
    SELECT received_at, consumer FROM {prefix}ledger ORDER BY seq DESC LIMIT :newest)
WHERE consumer IS NOT (SELECT id FROM {prefix}name WHERE name = :outbox) AND received_at > {now} - :minutes * 60000000 GROUP BY minute
UNION ALL
SELECT 1, (finished_at - {now}) / 60000000 AS minute, sum(messages) FROM (
    SELECT finished_at, messages, outgoing FROM {prefix}run ORDER BY id DESC LIMIT :newest)
WHERE NOT outgoing AND finished_at > {now} - :minutes * 60000000 GROUP BY minute
UNION ALL
SELECT 2, (at - {now}) / 60000000 AS minute, count(*) FROM (
    SELECT at FROM {prefix}attempt ORDER BY id DESC LIMIT :newest)
WHERE at > {now} - :minutes * 60000000 GROUP BY minute

-- name: settings
-- What the library really uses, for the doctor.
SELECT sqlite_version(), (SELECT journal_mode FROM pragma_journal_mode), (SELECT synchronous FROM pragma_synchronous)

-- name: notify
-- The file itself tells: its change counter is watched.
SELECT 1

-- name: rotate_partition
-- Bodies are in one table here, from which old ones are deleted; a partition would be a second file.
SELECT :seconds

-- name: old_partitions
-- There are none.
SELECT NULL WHERE :keep IS NULL

-- name: drop_partition
-- There are none.
SELECT :archive_first WHERE :partition IS NULL

-- name: next_bodies
-- The next numbers, and whether they are old. Relies on the primary key of body, whose order is that of time.
SELECT seq, received_at < {now} - {microseconds keep}
FROM {prefix}body WHERE seq > :after ORDER BY seq LIMIT :limit

-- name: lock_ledger
-- The single writer holds every row.
SELECT value FROM json_each(:seqs)

-- name: drop_bodies
-- Guard: nothing unfinished, dead or in an open case.
DELETE FROM {prefix}body
WHERE seq IN (SELECT value FROM json_each(:seqs))
  AND NOT EXISTS (SELECT 1 FROM {prefix}queue q WHERE q.seq = {prefix}body.seq)
  AND NOT EXISTS (SELECT 1 FROM {prefix}quarantine x WHERE x.seq = {prefix}body.seq AND x.resolution IS NULL)
RETURNING seq

-- name: forget_messages
-- Guard: nothing unfinished, dead, in an open case, with an effect of unknown outcome, or with a second body that was accepted and is
-- itself still remembered (or not archived yet, where that comes first); nothing that was finished, or that a person did something to,
-- within the retention, however long ago it came. Everything about the message goes with it, but for the lines about erasure. Relies on
-- run_seq (once, for the range of the batch) and audit_seq.
DELETE FROM {prefix}ledger
WHERE seq IN (SELECT value FROM json_each(:seqs))
  AND seq NOT IN (SELECT s.value FROM {prefix}run r, json_each(r.seqs) s
                  WHERE r.first_seq <= :highest AND r.last_seq >= :lowest
                    AND r.finished_at >= {now} - {microseconds keep})
  AND NOT EXISTS (SELECT 1 FROM {prefix}audit a
                  WHERE a.seq = {prefix}ledger.seq AND a.at >= {now} - {microseconds keep})
  AND NOT (:archive_first AND EXISTS (SELECT 1 FROM {prefix}body b WHERE b.seq = {prefix}ledger.seq))
  AND NOT EXISTS (SELECT 1 FROM {prefix}queue q WHERE q.seq = {prefix}ledger.seq)
  AND NOT EXISTS (SELECT 1 FROM {prefix}effect e WHERE e.seq = {prefix}ledger.seq AND NOT e.done)
  AND NOT EXISTS (SELECT 1 FROM {prefix}quarantine x WHERE x.seq = {prefix}ledger.seq AND (
        x.resolution IS NULL OR EXISTS (SELECT 1 FROM {prefix}ledger a WHERE a.seq = x.accepted_seq)))
RETURNING seq;
DELETE FROM {prefix}body WHERE seq IN (SELECT value FROM json_each(:seqs))
  AND NOT EXISTS (SELECT 1 FROM {prefix}ledger l WHERE l.seq = {prefix}body.seq);
DELETE FROM {prefix}result WHERE seq IN (SELECT value FROM json_each(:seqs))
  AND NOT EXISTS (SELECT 1 FROM {prefix}ledger l WHERE l.seq = {prefix}result.seq);
DELETE FROM {prefix}attempt WHERE seq IN (SELECT value FROM json_each(:seqs))
  AND NOT EXISTS (SELECT 1 FROM {prefix}ledger l WHERE l.seq = {prefix}attempt.seq);
DELETE FROM {prefix}duplicate WHERE seq IN (SELECT value FROM json_each(:seqs))
  AND NOT EXISTS (SELECT 1 FROM {prefix}ledger l WHERE l.seq = {prefix}duplicate.seq);
DELETE FROM {prefix}quarantine WHERE seq IN (SELECT value FROM json_each(:seqs))
  AND NOT EXISTS (SELECT 1 FROM {prefix}ledger l WHERE l.seq = {prefix}quarantine.seq);
DELETE FROM {prefix}effect WHERE seq IN (SELECT value FROM json_each(:seqs))
  AND NOT EXISTS (SELECT 1 FROM {prefix}ledger l WHERE l.seq = {prefix}effect.seq);
DELETE FROM {prefix}audit WHERE seq IN (SELECT value FROM json_each(:seqs)) AND action <> 'erase'
  AND NOT EXISTS (SELECT 1 FROM {prefix}ledger l WHERE l.seq = {prefix}audit.seq)

-- name: forget_runs
-- Guard: none of its messages is remembered. A copy that was counted while its message was forgotten goes too.
DELETE FROM {prefix}duplicate WHERE seq < (SELECT min(seq) FROM {prefix}ledger);
DELETE FROM {prefix}run
WHERE id IN (SELECT value FROM json_each(:seqs))
  AND NOT EXISTS (SELECT 1 FROM {prefix}ledger l WHERE l.seq IN (SELECT value FROM json_each({prefix}run.seqs)))
RETURNING id

-- name: forget_effects
-- Guard: done, long ago, and older than every message that is remembered: those take their effects along when they go. What is left was
-- processed inline, rolled back, and never came again. Relies on effect_seq.
DELETE FROM {prefix}audit WHERE action <> 'erase' AND seq IN (
    SELECT seq FROM {prefix}effect
    WHERE done AND finished_at < {now} - {microseconds keep}
      AND seq < coalesce((SELECT min(seq) FROM {prefix}ledger), 9223372036854775807));
DELETE FROM {prefix}effect
WHERE done AND finished_at < {now} - {microseconds keep}
  AND seq < coalesce((SELECT min(seq) FROM {prefix}ledger), 9223372036854775807)

-- name: bodies_after
-- Everything that has a body, in order of number, for whoever looks for a person's data. Relies on the primary key of body.
SELECT b.seq, b.type, n.name, b.key, b.headers, b.body,
       CASE WHEN q.seq IS NULL THEN 'finished' WHEN q.token IS NOT NULL THEN 'running' ELSE q.state END
FROM {prefix}body b
JOIN {prefix}name n ON n.id = b.source
LEFT JOIN {prefix}queue q ON q.seq = b.seq
WHERE b.seq > :after
ORDER BY b.seq LIMIT :limit

-- name: same_id
-- Every consumer's message of an id, and what their handlers sent. Relies on the unique key of the ledger and on body_cause.
WITH named AS (
    SELECT l.seq FROM {prefix}ledger l
    WHERE l.source = (SELECT id FROM {prefix}name WHERE name = :source)
      AND l.id >= :from_id AND l.id < :below_id
      AND l.consumer IN (SELECT id FROM {prefix}name)
)
SELECT seq FROM named UNION SELECT b.seq FROM {prefix}body b JOIN named ON b.cause = named.seq

-- name: lock_finished
-- Guard of an erasure: it is in the ledger and has no unfinished business. Answers the blob that its body is in, too.
SELECT l.seq, (SELECT substr(b.headers, 19, 56) FROM {prefix}body b
               WHERE b.seq = l.seq AND substr(b.headers, 1, 18) = '{"onceward-blob":"')
FROM {prefix}ledger l
WHERE l.seq = :seq AND NOT EXISTS (SELECT 1 FROM {prefix}queue q WHERE q.seq = l.seq)

-- name: erase
-- Under lock_finished. What says something about a person goes: body, headers, key, result, errors, results of effects, bodies in
-- quarantine (an open case is decided for the first body), also that in which this message came before it was accepted. Id and hashes stay,
-- so copies are still recognised. Relies on quarantine_copy and quarantine_accepted.
UPDATE {prefix}body SET body = NULL, headers = NULL, key = NULL WHERE seq = :seq;
DELETE FROM {prefix}result WHERE seq = :seq;
UPDATE {prefix}attempt SET error = '(erased)', traceback = NULL WHERE seq = :seq;
UPDATE {prefix}effect SET result = NULL WHERE seq = :seq;
UPDATE {prefix}quarantine SET body = x'', headers = NULL, key = NULL, resolution = coalesce(resolution, 'keep-first')
WHERE id IN (SELECT id FROM {prefix}quarantine WHERE seq = :seq UNION ALL SELECT id FROM {prefix}quarantine WHERE accepted_seq = :seq)

-- name: archivable
-- Old bodies whose messages have no unfinished business and no open case, in order of number. Relies on the primary key of body.
SELECT b.seq, n.name, c.name, b.id, b.type, b.version, b.key, b.key_from, b.position, b.headers, b.body, lower(hex(l.hash)), b.destination, b.cause,
       b.received_at, r.result
FROM {prefix}body b
JOIN {prefix}ledger l ON l.seq = b.seq
JOIN {prefix}name n ON n.id = l.source
JOIN {prefix}name c ON c.id = l.consumer
LEFT JOIN {prefix}result r ON r.seq = b.seq
WHERE b.seq > :after AND b.received_at < {now} - {microseconds keep}
  AND NOT EXISTS (SELECT 1 FROM {prefix}queue q WHERE q.seq = b.seq)
  AND NOT EXISTS (SELECT 1 FROM {prefix}quarantine x WHERE x.seq = b.seq AND x.resolution IS NULL)
ORDER BY b.seq LIMIT :limit

-- name: debris
-- The commands that remove every table of this prefix, and with it its indexes, and every view: for inboxes that were made to be measured. Reads
-- SQLite's own catalog; guard: only what begins with the prefix.
SELECT 'DROP ' || type || ' "' || name || '"' FROM sqlite_master
WHERE type IN ('table', 'view') AND substr(name, 1, length('{prefix}')) = '{prefix}'

-- name: record_history
-- Only ever added: no process changes another one's counts.
INSERT INTO {prefix}history (level, starts_at, consumer, source, type, received, duplicates, mismatches, done, failed, dead, backlog, oldest, lateness, wait, run)
VALUES (:level, coalesce(:starts_at, {clock}), :consumer, :source, :type, :received, :duplicates, :mismatches, :done, :failed, :dead,
        :backlog, :oldest, :lateness, :wait, :run)

-- name: lock_history
-- The oldest rows of a level whose next longer time is over by so much; the single writer holds them. Relies on history_start.
SELECT id, level, starts_at, consumer, source, type, received, duplicates, mismatches, done, failed, dead, backlog, oldest, lateness, wait, run
FROM {prefix}history WHERE level = :level AND starts_at < ({now} - {microseconds keep}) / :longer * :longer
ORDER BY starts_at LIMIT :limit
