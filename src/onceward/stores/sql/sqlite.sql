-- Every statement onceward sends to SQLite. Each section says which guard it carries and which index it relies on.
-- A section may hold several statements; they run in order inside BEGIN IMMEDIATE, so the single writer is the lock that PostgreSQL
-- needs row and key locks for. Lists come as JSON. :now is the clock in microseconds. postgres.sql has the same names.

-- name: begin_limits
-- Limits are the connection's own here, and the session watches the transaction itself.
SELECT :statement_limit, :lock_limit, :idle_limit, :mark, :durable, :plans

-- name: make_point
-- Between two handlers of a group: what was done until here stays when a later one fails.
SAVEPOINT onceward_point

-- name: back_to_point
-- Also after an error. What it undoes runs again in a later transaction, without the one that failed.
ROLLBACK TO SAVEPOINT onceward_point

-- name: catalog
-- One row; the version changes whenever names a receiver relies on have changed.
SELECT version, coalesce((:now - last_crash_at) / 1000000.0, 1e9) FROM {prefix}catalog

-- name: touch_catalog
-- Tells every receiver to read the catalog again before it stores anything. The version is random: a counter that a restore or a
-- failover takes back would come to a number that receivers know, for another catalog.
UPDATE {prefix}catalog
SET version = random() & 9007199254740991, last_crash_at = CASE WHEN :crash THEN :now ELSE last_crash_at END

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

-- name: names
-- Small numbers for consumers and sources; read as a whole, it is a short list.
SELECT id, name FROM {prefix}name

-- name: add_name
-- Guard: unique (name). Two processes adding the same name get the same number when they read it again.
INSERT INTO {prefix}name (name) VALUES (:name) ON CONFLICT (name) DO NOTHING

-- name: subscriptions
-- Who wants what; read by processes that have no handlers.
SELECT s.id, n.name, s.consumer, s.type, s.key_path, s.key_function, s.sequence, s.on_dead, s.aggregate, s.retired
FROM {prefix}subscription s JOIN {prefix}name n ON n.id = s.consumer
ORDER BY s.id

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

-- name: subscribed
-- What a consumer is or was subscribed to, and how much of it is unfinished. Reads the whole queue, for an operator.
SELECT s.type, (SELECT count(*) FROM {prefix}queue q WHERE q.subscription = s.id), s.retired, s.id
FROM {prefix}subscription s JOIN {prefix}name n ON n.id = s.consumer
WHERE n.name = :consumer AND (:type IS NULL OR s.type = :type)
ORDER BY s.type

-- name: retire
-- Under lock_catalog. The row stays, for messages that were stored for it by receives that are under way.
UPDATE {prefix}subscription SET retired = 1 WHERE id IN (SELECT value FROM json_each(:subscriptions)) AND NOT retired RETURNING id

-- name: unfinished_of
-- What is unfinished of some subscriptions, in order. Walks the primary key.
SELECT seq FROM {prefix}queue
WHERE subscription IN (SELECT value FROM json_each(:subscriptions)) AND seq > :after ORDER BY seq LIMIT :limit

-- name: note_use
-- Whether the handler of a type has its effects elsewhere, for people. That it uses its transaction is never taken back. A handful of rows.
UPDATE {prefix}subscription SET apart = :apart
WHERE type = :type AND consumer = (SELECT id FROM {prefix}name WHERE name = :consumer)
  AND (apart IS NULL OR (apart AND NOT :apart))

-- name: apart
-- Whose handlers have their effects elsewhere. A handful of rows.
SELECT n.name, s.type FROM {prefix}subscription s JOIN {prefix}name n ON n.id = s.consumer WHERE s.apart

-- name: receive
-- Guard: unique (consumer, source, id); a duplicate is an insert that changed nothing, and then changes() keeps the other two
-- from inserting. The body's rowid is its seq, so last_insert_rowid() stays the new number. Inserts nothing under an outdated catalog (outgoing
-- messages need none).
INSERT INTO {prefix}ledger (consumer, source, type_hash, id, hash, received_at)
SELECT :consumer, :source, :type_hash, :stored_id, :hash, :now WHERE coalesce((SELECT version FROM {prefix}catalog) = :catalog, 1)
  AND (:worker IS NULL OR EXISTS (SELECT 1 FROM {prefix}worker WHERE id = :worker))
ON CONFLICT (consumer, source, id) DO NOTHING
RETURNING :ordinal, seq, received_at;
INSERT INTO {prefix}body (seq, source, id, type, version, key, key_from, aggregate, position, headers, body, destination, cause,
                      received_at)
SELECT last_insert_rowid(), :source, :id, :type, :version, :key, :key_from, :aggregate, :position, :headers, :body, :destination, :cause, :now
WHERE changes() > 0;
INSERT INTO {prefix}queue (seq, subscription, key_hash, place, sequence, outgoing, destination, state, due_at, worker, token,
                           attempts, suspect, type)
SELECT last_insert_rowid(), :subscription, :key_hash, coalesce(:place, last_insert_rowid()), :sequence, :outgoing,
       CASE WHEN :outgoing THEN coalesce(:destination, 'default') END,
       CASE WHEN :unplaced IS NULL THEN :state ELSE 'unhandled' END,
       :now + CAST(:delay * 1000000 AS integer), :worker, :token, :attempts, :suspect, :unplaced
WHERE changes() > 0

-- name: receive_inline
-- Guard: unique (consumer, source, id), as for receive. One message that this very transaction handles, so it has no row in the queue.
-- Inserts nothing under an outdated catalog.
INSERT INTO {prefix}ledger (consumer, source, type_hash, id, hash, received_at)
SELECT :consumer, :source, :type_hash, :stored_id, :hash, :now FROM {prefix}catalog WHERE version = :catalog
ON CONFLICT (consumer, source, id) DO NOTHING
RETURNING seq, received_at;
INSERT INTO {prefix}body (seq, source, id, type, version, key, key_from, aggregate, position, headers, body, destination, cause,
                      received_at)
SELECT last_insert_rowid(), :source, :id, :type, :version, :key, :key_from, :aggregate, :position, :headers, :body, :destination, :cause, :now
WHERE changes() > 0

-- name: known
-- What is known of messages that were not inserted. Relies on the unique key of the ledger.
SELECT :ordinal, l.seq, l.hash, l.type_hash,
       q.seq IS NULL AND NOT EXISTS (SELECT 1 FROM {prefix}audit a WHERE a.seq = l.seq AND a.action = 'discard'), r.result
FROM {prefix}ledger l
LEFT JOIN {prefix}queue q ON q.seq = l.seq
LEFT JOIN {prefix}result r ON r.seq = l.seq
WHERE l.consumer = :consumer AND l.source = :source AND l.id = :stored_id

-- name: known_unplaced
-- As known, of what came under this id and type when nobody had subscribed, and is not placed yet: the first of it, whoever stored it.
-- Relies on the unique key of the ledger, from one name to the next.
SELECT :ordinal, l.seq, l.hash, l.type_hash, 0, NULL
FROM {prefix}name c
CROSS JOIN {prefix}ledger l ON l.consumer = c.id AND l.source = :source AND l.id = :stored_id
CROSS JOIN {prefix}queue w ON w.seq = l.seq
WHERE w.state = 'unhandled' AND w.type = :type AND w.subscription IS NULL
ORDER BY l.seq LIMIT 1

-- name: ages
-- How many seconds ago these were stored: a receive that is repeated, for its answer was lost, finds its own rows so.
-- Relies on the primary key of the ledger.
SELECT seq, (:now - received_at) / 1000000.0 FROM {prefix}ledger WHERE seq IN (SELECT value FROM json_each(:seqs))

-- name: outcome
-- Whether the effects of a message are committed, and what its handler returned.
SELECT q.seq IS NULL AND NOT EXISTS (SELECT 1 FROM {prefix}audit a WHERE a.seq = l.seq AND a.action = 'discard'), r.result
FROM {prefix}ledger l
LEFT JOIN {prefix}queue q ON q.seq = l.seq
LEFT JOIN {prefix}result r ON r.seq = l.seq
WHERE l.seq = :seq

-- name: count_duplicates
-- One row per message however many copies came.
INSERT INTO {prefix}duplicate (seq, copies, first_at, last_at) VALUES (:seq, :copies, :now, :now)
ON CONFLICT (seq) DO UPDATE SET copies = copies + excluded.copies, last_at = excluded.last_at

-- name: quarantine
-- Guards: unique (seq, hash, type_hash), and the ledger row is there: a fan-out may have replaced it, and a case without one is out of
-- reach. Never touches the first body; answers what an operator decided about these bytes under this type.
INSERT INTO {prefix}quarantine (seq, hash, type_hash, type, version, key, position, headers, body, copies, first_at, last_at)
SELECT seq, :hash, :type_hash, :type, :version, :key, :position, :headers, :body, 1, :now, :now FROM {prefix}ledger WHERE seq = :seq
ON CONFLICT (seq, hash, type_hash) DO UPDATE SET copies = copies + 1, last_at = excluded.last_at
RETURNING resolution, accepted_seq

-- name: sight
-- Guard: the key (source, hash). The first id keeps a body until the window is over; answers whose body it is.
INSERT INTO {prefix}sighting AS s (source, hash, id, seen_at) VALUES (:source, :hash, :id, :now)
ON CONFLICT (source, hash) DO UPDATE SET
    id = CASE WHEN s.seen_at < :now - CAST(:window * 1000000 AS integer) THEN excluded.id ELSE s.id END,
    seen_at = CASE WHEN s.seen_at < :now - CAST(:window * 1000000 AS integer) THEN excluded.seen_at ELSE s.seen_at END
RETURNING id

-- name: forget_sightings
-- Some of those whose window is over, beside each new one, so that the table stays as large as its window. Relies on sighting_seen.
DELETE FROM {prefix}sighting WHERE (source, hash) IN (
    SELECT source, hash FROM {prefix}sighting
    WHERE source = :source AND seen_at < :now - CAST(:window * 1000000 AS integer) ORDER BY seen_at LIMIT 10)

-- name: requeue_own
-- Guards: the ledger row is this very message under this very number (a number that was rolled back may be another's by now), no queue
-- row is there, no run has finished it, and nobody has discarded it. Used when a handler committed on its own in inline mode.
INSERT INTO {prefix}queue (seq, subscription, key_hash, place, sequence, state, due_at, attempts)
SELECT l.seq, :subscription, :key_hash, coalesce(:place, l.seq), :sequence, :state,
       :now + CAST(:delay * 1000000 AS integer), :attempts
FROM {prefix}ledger l
WHERE l.consumer = :consumer AND l.source = :source AND l.id = :stored_id AND l.seq = :seq
  AND NOT EXISTS (SELECT 1 FROM {prefix}queue q WHERE q.seq = l.seq)
  AND NOT EXISTS (SELECT 1 FROM {prefix}run r
                  WHERE r.first_seq <= l.seq AND r.last_seq >= l.seq AND l.seq IN (SELECT value FROM json_each(r.seqs)))
  AND NOT EXISTS (SELECT 1 FROM {prefix}audit a WHERE a.seq = l.seq AND a.action = 'discard')
RETURNING seq

-- name: key_is_free
-- The single writer holds every key.
SELECT :key_hash IS NOT NULL

-- name: key_has_rows
-- Relies on queue_key and queue_unhandled: a message that is not placed yet may be one of the key.
SELECT EXISTS (SELECT 1 FROM {prefix}queue WHERE key_hash = :key_hash)
    OR (EXISTS (SELECT 1 FROM {prefix}queue INDEXED BY {prefix}queue_unhandled WHERE state = 'unhandled') AND EXISTS (
        SELECT 1 FROM {prefix}subscription s WHERE s.consumer = :consumer AND NOT s.retired AND (
            EXISTS (SELECT 1 FROM {prefix}queue u INDEXED BY {prefix}queue_unhandled
                    WHERE u.state = 'unhandled' AND u.type = s.type AND u.subscription IS NULL AND u.postponed = 0)
            OR EXISTS (SELECT 1 FROM {prefix}queue u INDEXED BY {prefix}queue_unhandled
                    WHERE u.state = 'unhandled' AND u.type = s.type AND u.subscription = s.id AND u.postponed = 0))))

-- name: claim
-- Guards: no note yet, the worker's own row still there; the rows of keys that were just found held are passed over. Relies on queue_ready and queue_due.
UPDATE {prefix}queue
SET worker = :worker, token = :token, state = CASE state WHEN 'waiting' THEN 'retry' ELSE state END
WHERE EXISTS (SELECT 1 FROM {prefix}worker WHERE id = :worker) AND seq IN (
    SELECT seq FROM (
        SELECT seq FROM {prefix}queue
        WHERE due_at IS NOT NULL AND token IS NULL AND suspect = 0 AND NOT outgoing AND due_at <= :now
          AND subscription IN (SELECT value FROM json_each(:subscriptions))
          AND (key_hash IS NULL OR key_hash NOT IN (SELECT value FROM json_each(:held)))
        ORDER BY due_at LIMIT :again)
    UNION ALL
    SELECT seq FROM (
        SELECT seq FROM {prefix}queue
        WHERE state = 'ready' AND token IS NULL AND suspect = 0 AND NOT outgoing AND seq >= :floor
          AND subscription IN (SELECT value FROM json_each(:subscriptions))
          AND (key_hash IS NULL OR key_hash NOT IN (SELECT value FROM json_each(:held)))
        ORDER BY seq LIMIT :limit)
    LIMIT :limit);
SELECT q.seq, q.subscription, q.key_hash, q.place, q.sequence, q.attempts, b.source, b.id, b.type, b.version, b.key,
       b.headers, CASE WHEN length(b.body) <= 262144 THEN b.body END, b.destination, b.key_from, b.received_at, (:now - b.received_at) / 1000000.0
FROM {prefix}queue q JOIN {prefix}body b ON b.seq = q.seq
WHERE q.worker = :worker AND q.token = :token

-- name: claim_outgoing
-- As claim, for the messages to one destination: their indexes begin with it. New ones and those tried again come in turn. Relies on
-- queue_outgoing and queue_outgoing_due.
UPDATE {prefix}queue
SET worker = :worker, token = :token, state = CASE state WHEN 'waiting' THEN 'retry' ELSE state END
WHERE EXISTS (SELECT 1 FROM {prefix}worker WHERE id = :worker) AND seq IN (
    SELECT seq FROM (
        SELECT seq, row_number() OVER (ORDER BY due_at) AS turn FROM (
            SELECT seq, due_at FROM {prefix}queue
            WHERE due_at IS NOT NULL AND token IS NULL AND suspect = 0 AND outgoing AND due_at <= :now
              AND destination = :destination AND subscription IN (SELECT value FROM json_each(:subscriptions))
            ORDER BY due_at LIMIT :limit)
        UNION ALL
        SELECT seq, row_number() OVER (ORDER BY seq) FROM (
            SELECT seq FROM {prefix}queue
            WHERE state = 'ready' AND token IS NULL AND suspect = 0 AND outgoing AND seq >= :floor
              AND destination = :destination AND subscription IN (SELECT value FROM json_each(:subscriptions))
            ORDER BY seq LIMIT :limit)
    ) ORDER BY turn LIMIT :limit);
SELECT q.seq, q.subscription, q.key_hash, q.place, q.sequence, q.attempts, b.source, b.id, b.type, b.version, b.key,
       b.headers, CASE WHEN length(b.body) <= 262144 THEN b.body END, b.destination, b.key_from, b.received_at, (:now - b.received_at) / 1000000.0
FROM {prefix}queue q JOIN {prefix}body b ON b.seq = q.seq
WHERE q.worker = :worker AND q.token = :token

-- name: awaiting
-- Which of these destinations have a message that may be published now. Relies on queue_outgoing, queue_outgoing_due and queue_suspect.
SELECT place.value FROM json_each(:destinations) AS place
WHERE EXISTS (SELECT 1 FROM {prefix}queue WHERE state = 'ready' AND token IS NULL AND suspect = 0 AND outgoing AND destination = place.value)
   OR EXISTS (SELECT 1 FROM {prefix}queue WHERE due_at IS NOT NULL AND token IS NULL AND suspect = 0 AND outgoing
                AND destination = place.value AND due_at <= :now)
   OR EXISTS (SELECT 1 FROM {prefix}queue WHERE suspect > 0 AND token IS NULL AND destination = place.value
                AND (state = 'ready' OR due_at <= :now))

-- name: hasten
-- Guard: still due later and not noted. What failed while its destination, or what its handler calls, was away is due at once when that
-- is back; what was told when to come again (`Retry`) keeps its time. Relies on queue_due or queue_outgoing_due, and on attempt_seq.
UPDATE {prefix}queue SET due_at = :now
WHERE seq IN (
    SELECT q.seq FROM {prefix}queue q
    WHERE q.due_at IS NOT NULL AND q.token IS NULL AND q.suspect = 0 AND q.outgoing = :outgoing
      AND q.due_at > :now AND q.state = 'retry' AND q.destination IS :destination
      AND q.subscription IN (SELECT value FROM json_each(:subscriptions))
      AND (SELECT a.error NOT LIKE 'Retry:%' FROM {prefix}attempt a WHERE a.seq = q.seq ORDER BY a.id DESC LIMIT 1)
    ORDER BY q.due_at LIMIT :limit)
RETURNING seq

-- name: claim_suspects
-- As claim, for messages of one level that were in flight when a process died. Relies on queue_suspect.
UPDATE {prefix}queue
SET worker = :worker, token = :token, state = CASE state WHEN 'waiting' THEN 'retry' ELSE state END
WHERE EXISTS (SELECT 1 FROM {prefix}worker WHERE id = :worker) AND seq IN (
    SELECT seq FROM {prefix}queue
    WHERE suspect = :level AND suspect > 0 AND token IS NULL AND (state = 'ready' OR due_at <= :now)
      AND subscription IN (SELECT value FROM json_each(:subscriptions)) AND destination IS :destination
      AND (key_hash IS NULL OR key_hash NOT IN (SELECT value FROM json_each(:held)))
    ORDER BY seq LIMIT :limit);
SELECT q.seq, q.subscription, q.key_hash, q.place, q.sequence, q.attempts, b.source, b.id, b.type, b.version, b.key,
       b.headers, CASE WHEN length(b.body) <= 262144 THEN b.body END, b.destination, b.key_from, b.received_at, (:now - b.received_at) / 1000000.0
FROM {prefix}queue q JOIN {prefix}body b ON b.seq = q.seq
WHERE q.worker = :worker AND q.token = :token

-- name: body_of
-- The large body of a message, when its turn has come to run or to be placed. By the primary key.
SELECT body FROM {prefix}body WHERE seq = :seq

-- name: first_due
-- The subscriptions, of these, of the first new message that may be claimed now and of the first one that may be tried again.
-- Relies on queue_ready and queue_due.
SELECT subscription FROM (
    SELECT subscription FROM {prefix}queue
    WHERE state = 'ready' AND token IS NULL AND suspect = 0 AND NOT outgoing AND seq >= 0
      AND subscription IN (SELECT value FROM json_each(:subscriptions))
    ORDER BY seq LIMIT 1)
UNION ALL
SELECT subscription FROM (
    SELECT subscription FROM {prefix}queue
    WHERE due_at IS NOT NULL AND token IS NULL AND suspect = 0 AND NOT outgoing AND due_at <= :now
      AND subscription IN (SELECT value FROM json_each(:subscriptions))
    ORDER BY due_at LIMIT 1)

-- name: keys_in_front
-- The keys of the rows that a claim looked at in vain. No row here, where nobody locks a key: nothing is ready, or the worker's own row
-- is gone. Relies on queue_ready and queue_due.
SELECT DISTINCT key_hash FROM (
    SELECT key_hash FROM (
        SELECT key_hash FROM {prefix}queue
        WHERE state = 'ready' AND token IS NULL AND suspect = 0 AND NOT outgoing AND seq >= :floor
          AND subscription IN (SELECT value FROM json_each(:subscriptions))
          AND (key_hash IS NULL OR key_hash NOT IN (SELECT value FROM json_each(:held)))
        ORDER BY seq LIMIT :limit)
    UNION ALL
    SELECT key_hash FROM (
        SELECT key_hash FROM {prefix}queue
        WHERE due_at IS NOT NULL AND token IS NULL AND suspect = 0 AND NOT outgoing AND due_at <= :now
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
    WHERE state = 'ready' AND token IS NULL AND suspect = 0 AND NOT outgoing AND seq >= :floor
      AND subscription IN (SELECT value FROM json_each(:subscriptions))
    ORDER BY seq LIMIT :limit * (SELECT max(total(lanes), 1) FROM {prefix}worker))
) + (SELECT count(*) FROM (
    SELECT 1 FROM {prefix}queue
    WHERE due_at IS NOT NULL AND token IS NULL AND suspect = 0 AND NOT outgoing AND due_at <= :now
      AND subscription IN (SELECT value FROM json_each(:subscriptions))
    ORDER BY due_at LIMIT :limit * (SELECT max(total(lanes), 1) FROM {prefix}worker))
) + lanes - 1) / lanes
FROM (SELECT CAST(max(total(lanes), 1) AS integer) AS lanes FROM {prefix}worker)

-- name: keyless
-- The newest messages that have no key although their handler wants one, by type; not what was erased or forgotten, nor what is dead: that
-- did not run out of order. Walks the ledger's primary key backwards.
SELECT b.type, c.name, s.key_path, count(*)
FROM (SELECT seq, consumer FROM {prefix}ledger ORDER BY seq DESC LIMIT :newest) AS l
JOIN {prefix}body b ON b.seq = l.seq
JOIN {prefix}name c ON c.id = l.consumer
JOIN {prefix}subscription s ON s.consumer = l.consumer AND s.type = b.type
WHERE b.key IS NULL AND b.body IS NOT NULL AND (s.key_path IS NOT NULL OR s.key_function)
  AND NOT EXISTS (SELECT 1 FROM {prefix}queue q WHERE q.seq = l.seq AND q.state = 'dead')
GROUP BY 1, 2, 3 ORDER BY 1, 2

-- name: suspects
-- The highest level of the suspects that wait, 0 for none. Relies on queue_suspect.
SELECT coalesce((
    SELECT suspect FROM {prefix}queue
    WHERE suspect > 0 AND token IS NULL AND (state = 'ready' OR due_at <= :now)
      AND subscription IN (SELECT value FROM json_each(:subscriptions)) AND destination IS :destination
    ORDER BY suspect DESC LIMIT 1), 0)

-- name: park
-- A row stays claimed only when every earlier row of its key is in this claim and no other claim holds a row of the key. Behind an
-- earlier row it waits; behind a noted later one (which was committed first) it only loses its note, for nobody would promote it. Where
-- an earlier message that its consumer will get is not placed yet, nor set aside, and may be of its key, it waits for a moment.
-- Relies on queue_key, queue_noted and queue_unhandled; left to itself, the planner reads every row that has a key to find the few that are noted.
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
    due_at = CASE WHEN o.earlier THEN NULL WHEN o.unplaced THEN :now + 250000 ELSE q.due_at END
FROM (
    SELECT m.seq, EXISTS (
        SELECT 1 FROM {prefix}queue e
        WHERE e.key_hash = m.key_hash AND (e.place, e.seq) < (m.place, m.seq) AND NOT (e.worker IS :worker AND e.token IS :token)
    ) AS earlier, m.key_hash IN (
        SELECT n.key_hash FROM {prefix}queue n INDEXED BY {prefix}queue_noted
        WHERE n.token IS NOT NULL AND n.key_hash IS NOT NULL AND NOT (n.worker = :worker AND n.token = :token)
    ) AS busy, m.sequence IS NULL AND EXISTS (
        SELECT 1 FROM first f JOIN {prefix}subscription s ON s.consumer = f.consumer
        WHERE s.id = m.subscription AND f.seq < m.seq
    ) AS unplaced
    FROM {prefix}queue m INDEXED BY {prefix}queue_noted
    WHERE m.worker = :worker AND m.token = :token AND m.token IS NOT NULL AND m.key_hash IS NOT NULL
) AS o
WHERE q.seq = o.seq AND (o.earlier OR o.busy OR o.unplaced)
RETURNING seq, CASE WHEN state = 'waiting' AND due_at IS NOT NULL THEN 'unplaced' ELSE state END

-- name: move
-- Guard: the row still carries this claim. It is claimed anew, in its place in the key it comes to.
UPDATE {prefix}queue
SET key_hash = :key_hash, sequence = :sequence, place = coalesce(:sequence, place), worker = NULL, token = NULL
WHERE seq = :seq AND worker = :worker AND token = :token
RETURNING seq

-- name: noted
-- Which rows still carry this claim. Relies on queue_noted.
SELECT seq FROM {prefix}queue WHERE worker = :worker AND token = :token

-- name: lock_keys
-- The single writer holds every key.
SELECT :key_hashes

-- name: finish
-- Guard: every row still carries this claim; else `messages` is null, the insert fails, and everything the handlers did
-- rolls back. The deletion is "done".
INSERT INTO {prefix}run (worker, token, code_version, finished_at, first_seq, last_seq, seqs, messages, outgoing)
SELECT :worker, :token, :code_version, :now, coalesce(min(seq), 0), coalesce(max(seq), 0), :seqs,
       CASE WHEN count(*) = :expected AND :mark IS NOT NULL THEN count(*) END, coalesce(max(outgoing), 0)
FROM {prefix}queue
WHERE seq IN (SELECT value FROM json_each(:seqs)) AND worker = :worker AND token = :token;
DELETE FROM {prefix}queue
WHERE seq IN (SELECT value FROM json_each(:seqs)) AND worker = :worker AND token = :token

-- name: finish_inline
-- Guard: the ledger row of this transaction is there; else `messages` is null.
INSERT INTO {prefix}run (worker, token, code_version, finished_at, first_seq, last_seq, seqs, messages)
SELECT :worker, 0, :code_version, :now, :seq, :seq, json_array(:seq),
       CASE WHEN :mark IS NOT NULL AND EXISTS (SELECT 1 FROM {prefix}ledger WHERE seq = :seq) THEN 1 END

-- name: promote
-- After the removal, in the same transaction. Relies on queue_waiting.
UPDATE {prefix}queue SET state = 'ready', due_at = NULL
WHERE seq IN (
    SELECT (SELECT q.seq FROM {prefix}queue q WHERE q.key_hash = k.value AND q.state = 'waiting' ORDER BY q.place, q.seq LIMIT 1)
    FROM json_each(:key_hashes) AS k)

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
-- key. A suspect that has failed without killing its process is none any more, unless it has killed one before.
UPDATE {prefix}queue
SET state = :state, due_at = :now + CAST(:delay * 1000000 AS integer), attempts = attempts + 1, worker = NULL, token = NULL,
    suspect = CASE WHEN crashes > 0 THEN suspect ELSE 0 END,
    key_hash = CASE WHEN :detach THEN NULL ELSE key_hash END
WHERE seq = :seq AND worker = :worker AND token = :token
RETURNING seq

-- name: add_attempt
-- Append only: the history of what went wrong.
INSERT INTO {prefix}attempt (seq, attempt, kind, charged, error, traceback, worker, code_version, fingerprint, at)
VALUES (:seq, :attempt, :kind, :charged, :error, :traceback, :worker, :code_version, :fingerprint, :now)

-- name: postpone
-- Guards: the row still carries this claim, and was not postponed as often as it may be: then it is charged. An infrastructure error: try
-- again, uncharged, each time later.
UPDATE {prefix}queue
SET state = 'retry', worker = NULL, token = NULL, postponed = postponed + 1,
    due_at = :now + CAST(min(:delay * (1 << min(postponed, 20)), :longest) * 1000000 AS integer)
WHERE seq = :seq AND worker = :worker AND token = :token AND (:most IS NULL OR postponed < :most)
RETURNING seq, (due_at - :now) / 1000000.0

-- name: put_off
-- Guard: the row still carries this claim. Their handler pauses: nobody is charged.
UPDATE {prefix}queue
SET state = 'retry', due_at = :now + CAST(:delay * 1000000 AS integer), worker = NULL, token = NULL
WHERE seq IN (SELECT value FROM json_each(:seqs)) AND worker = :worker AND token = :token
RETURNING seq

-- name: release
-- Guard: the row still carries one of these claims. Nobody is charged.
UPDATE {prefix}queue SET worker = NULL, token = NULL
WHERE worker = :worker AND token IN (SELECT value FROM json_each(:tokens))
RETURNING seq

-- name: release_some
-- Guard: the row still carries this claim. Nobody is charged.
UPDATE {prefix}queue SET worker = NULL, token = NULL
WHERE seq IN (SELECT value FROM json_each(:seqs)) AND worker = :worker AND token = :token
RETURNING seq

-- name: add_worker
-- Guard: the name is nobody's; no row back means that it is taken. What the last process of this name left
-- was taken over in the same transaction.
INSERT INTO {prefix}worker (id, process, host, pid, code_version, handles, lanes, inline, started_at, alive_until)
VALUES (:worker, :process, :host, :pid, :code_version, :handles, :lanes, :inline, :now, :now + CAST(:lease * 1000000 AS integer))
ON CONFLICT (process) DO NOTHING
RETURNING id

-- name: beat
-- Guard: the row is still there and still this process's; no row back means that it was declared dead and must register anew.
UPDATE {prefix}worker SET alive_until = :now + CAST(:lease * 1000000 AS integer), inline = max(inline, :inline)
WHERE id = :worker AND process = :process
RETURNING id

-- name: lapsed_workers
-- The single writer keeps two processes from taking the same worker over.
SELECT id, inline, pid, host FROM {prefix}worker WHERE alive_until < :now AND id <> :worker ORDER BY id LIMIT 10

-- name: worker_of_process
-- For a supervisor that saw its child die, and for a process that begins under the name of another. With those that it registered as
-- later, after it had been declared dead.
SELECT id, inline, pid, host FROM {prefix}worker
WHERE process = :process OR substr(process, 1, length(:process) + 1) = :process || '#'

-- name: handled_elsewhere
-- Whether a worker that lives has a handler for a version. A handful of rows.
SELECT EXISTS (SELECT 1 FROM {prefix}worker WHERE NOT inline AND alive_until > :now AND instr(handles, :line) > 0)

-- name: lock_worker
-- The single writer keeps claims away meanwhile.
SELECT id FROM {prefix}worker WHERE id = :worker

-- name: noted_by
-- What a dead worker left behind. Relies on queue_noted.
SELECT q.seq, q.attempts, q.crashes, q.key_hash, s.on_dead, q.suspect
FROM {prefix}queue q JOIN {prefix}subscription s ON s.id = q.subscription
WHERE q.worker = :worker AND q.token IS NOT NULL ORDER BY q.seq

-- name: tokens_of
-- The claims whose notes a living worker has. Relies on queue_noted.
SELECT DISTINCT token FROM {prefix}queue WHERE worker = :worker AND token IS NOT NULL

-- name: take_over
-- Alone: charged, and dead at the limit; several: nobody is charged, all are suspects, in groups (of a level that is given), then apart (2),
-- then alone (1).
UPDATE {prefix}queue
SET worker = NULL, token = NULL,
    suspect = CASE WHEN :charge = 1 OR suspect IN (1, 2) THEN 1 WHEN suspect = 0 THEN :level ELSE 2 END,
    crashes = crashes + :charge,
    state = CASE WHEN crashes + :charge >= :crash_limit THEN 'dead' ELSE state END,
    due_at = CASE WHEN crashes + :charge >= :crash_limit THEN NULL ELSE due_at END
WHERE worker = :worker AND token IS NOT NULL
RETURNING seq, suspect

-- name: let_go
-- A worker that says goodbye: its notes come off uncharged.
UPDATE {prefix}queue SET worker = NULL, token = NULL WHERE worker = :worker AND token IS NOT NULL

-- name: forget_worker
-- After its notes are off, in the same transaction: from now on it cannot claim.
DELETE FROM {prefix}worker WHERE id = :worker

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
SELECT q.seq, b.source, b.id, b.type, b.version, b.key, b.headers, CASE WHEN length(b.body) <= 262144 THEN b.body END, l.consumer, l.id, l.hash, q.place, q.subscription, b.position, q.key_hash
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
SET state = CASE WHEN :unplaced IS NULL THEN 'ready' ELSE 'unhandled' END, type = :unplaced, subscription = :subscription, key_hash = :key_hash, sequence = :sequence,
    place = coalesce(:sequence, place), postponed = 0
WHERE seq = :seq AND state = 'unhandled'
RETURNING seq

-- name: bring_forward
-- Guard: state still unhandled. The same message came to another service before: it has come when that one did.
UPDATE {prefix}queue SET place = min(place, :place), sequence = min(coalesce(sequence, seq), :since)
WHERE seq = :seq AND state = 'unhandled'

-- name: set_aside
-- Guard: state still unhandled. The database refuses the rows of its consumers: it stays, and holds up no others but those of its key.
UPDATE {prefix}queue SET postponed = postponed + 1, key_hash = coalesce(:key_hash, key_hash)
WHERE seq = :seq AND state = 'unhandled'
RETURNING seq

-- name: refused
-- How many messages are set aside, and the first of them. Relies on queue_unhandled.
SELECT count(*), min(seq) FROM {prefix}queue INDEXED BY {prefix}queue_unhandled WHERE state = 'unhandled' AND postponed > 0

-- name: set_body_key
-- The key of a message that has got one, or another one; the queue row has its hash.
UPDATE {prefix}body SET key = :key, aggregate = :aggregate, key_from = coalesce(:key_from, key_from) WHERE seq = :seq

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

-- name: progress_of
-- How far a key is.
SELECT applied FROM {prefix}progress WHERE consumer = :consumer AND aggregate = :aggregate AND key = :key

-- name: hold
-- Guard: the row carries this claim. A number is missing before it: wait for that, until the deadline.
UPDATE {prefix}queue SET state = 'waiting', due_at = :now + CAST(:delay * 1000000 AS integer), worker = NULL, token = NULL
WHERE seq = :seq AND worker = :worker AND token = :token
RETURNING seq

-- name: intend
-- Guard: primary key. Committed before the call, so that whatever happens to the handler there is a trace of it.
INSERT INTO {prefix}effect (key, seq, name, worker, started_at) VALUES (:key, :seq, :name, :worker, :now)
ON CONFLICT (key) DO NOTHING
RETURNING key

-- name: effect
-- What is known of an effect, and for how long. It belongs to whoever asks now: the attempt that began it may have been inline, and
-- undone with its number.
UPDATE {prefix}effect SET seq = :seq WHERE key = :key RETURNING done, result, (:now - started_at) / 1000000.0

-- name: lock_effect
-- Whoever asks about it (effect) waits until a person's word is committed.
SELECT key FROM {prefix}effect WHERE key = :key

-- name: effect_held
-- Under lock_effect: whether its message is being run right now. One that is processed inline has no row yet: it may be running for as
-- long as its process is there and its handler may still be at it.
SELECT e.seq FROM {prefix}effect e
WHERE e.key = :key AND (
    EXISTS (SELECT 1 FROM {prefix}queue q WHERE q.seq = e.seq AND q.token IS NOT NULL)
    OR (e.started_at > :now - CAST(:patience * 1000000 AS integer)
        AND EXISTS (SELECT 1 FROM {prefix}worker w WHERE w.id = e.worker)
        AND NOT EXISTS (SELECT 1 FROM {prefix}ledger l WHERE l.seq = e.seq)))

-- name: keep_effects
-- An inline attempt was undone and its message is stored under another number: its effects stay its own. Relies on effect_seq.
UPDATE {prefix}effect SET seq = :stored WHERE seq = :seq

-- name: effect_done
-- Committed right after the call. Guard: not done before, so that the first result stands.
UPDATE {prefix}effect SET done = 1, result = :result, finished_at = :now WHERE key = :key AND NOT done RETURNING key

-- name: effect_undone
-- Guard: not done. It did not happen, so it may be tried again.
DELETE FROM {prefix}effect WHERE key = :key AND NOT done RETURNING key

-- name: effects
-- The effects of one message, or all whose outcome is not known.
SELECT e.key, e.seq, e.name, e.done, e.result, e.started_at, e.finished_at
FROM {prefix}effect e
WHERE (:seq IS NULL OR e.seq = :seq)
  AND (:seq IS NOT NULL OR (NOT e.done AND NOT EXISTS (
       SELECT 1 FROM {prefix}queue q WHERE q.seq = e.seq AND q.token IS NOT NULL)))
ORDER BY e.started_at LIMIT :limit

-- name: discard
-- Guard: no note on the row, its key is still the one that was seen, and it is the first of its key where that is counted.
DELETE FROM {prefix}queue AS q
WHERE q.seq = :seq AND q.token IS NULL AND q.key_hash IS :key_hash
  AND (q.sequence IS NULL OR NOT EXISTS (
       SELECT 1 FROM {prefix}queue e JOIN {prefix}body b ON b.seq = e.seq
       WHERE e.key_hash = q.key_hash AND (e.place, e.seq) < (q.place, q.seq)
         AND b.key = (SELECT o.key FROM {prefix}body o WHERE o.seq = q.seq)))
RETURNING seq

-- name: add_audit
-- In the transaction of the action itself: no action without its line, no line without its action.
INSERT INTO {prefix}audit (at, actor, action, seq, reason) VALUES (:now, :actor, :action, :seq, :reason)

-- name: quarantined
-- Open cases first come first.
SELECT x.id, x.seq, x.hash, x.type, x.version, x.headers, x.body, x.copies, x.first_at, x.last_at,
       n.name, l.id, l.hash, b.body, c.name, b.id, x.key, b.headers, b.type, b.version, x.position
FROM {prefix}quarantine x
JOIN {prefix}ledger l ON l.seq = x.seq
JOIN {prefix}name n ON n.id = l.source
JOIN {prefix}name c ON c.id = l.consumer
LEFT JOIN {prefix}body b ON b.seq = x.seq
WHERE x.resolution IS NULL AND (:case_id IS NULL OR x.id = :case_id)
ORDER BY x.id LIMIT :limit

-- name: resolve_quarantine
-- Guard: still open, so that two operators cannot decide differently.
UPDATE {prefix}quarantine SET resolution = :resolution, accepted_seq = :accepted_seq
WHERE id = :case_id AND resolution IS NULL
RETURNING id

-- name: keep_first_types
-- Some of the open cases of a source and a type whose bytes are the first ones, so that only the type or its version differs: decided
-- for the first, with their lines in the audit. Guard: still open.
INSERT INTO {prefix}audit (at, actor, action, seq, reason)
SELECT :now, :actor, 'keep-first', x.seq, :reason
FROM {prefix}quarantine x JOIN {prefix}ledger l ON l.seq = x.seq JOIN {prefix}name n ON n.id = l.source
WHERE x.resolution IS NULL AND x.hash = l.hash AND n.name = :source AND x.type = :type
ORDER BY x.id LIMIT :limit
RETURNING seq;
UPDATE {prefix}quarantine SET resolution = 'keep-first' WHERE id IN (
    SELECT x.id FROM {prefix}quarantine x JOIN {prefix}ledger l ON l.seq = x.seq JOIN {prefix}name n ON n.id = l.source
    WHERE x.resolution IS NULL AND x.hash = l.hash AND n.name = :source AND x.type = :type
    ORDER BY x.id LIMIT :limit)

-- name: drop_quarantine
-- Guard: still open.
DELETE FROM {prefix}quarantine WHERE id = :case_id AND resolution IS NULL RETURNING id

-- name: stats
-- Counts of the queue are counts of unfinished work, which is small; the rest are sums over groups.
SELECT
    (SELECT count(*) FROM {prefix}queue
        WHERE NOT outgoing AND token IS NULL AND (state = 'ready' OR (state = 'retry' AND due_at <= :now))),
    (SELECT count(*) FROM {prefix}queue WHERE NOT outgoing AND state = 'waiting'),
    (SELECT count(*) FROM {prefix}queue WHERE NOT outgoing AND token IS NOT NULL),
    (SELECT count(*) FROM {prefix}queue WHERE NOT outgoing AND token IS NULL AND state = 'retry' AND due_at > :now),
    (SELECT count(*) FROM {prefix}queue WHERE NOT outgoing AND state = 'dead'),
    (SELECT count(*) FROM {prefix}queue WHERE state = 'unhandled'),
    (SELECT count(*) FROM {prefix}quarantine WHERE resolution IS NULL),
    (SELECT coalesce(sum(messages), 0) FROM {prefix}run WHERE NOT outgoing),
    (SELECT count(*) FROM {prefix}audit WHERE action = 'discard'),
    (SELECT count(*) FROM {prefix}audit WHERE action = 'skip'),
    (SELECT coalesce(sum(copies), 0) FROM {prefix}duplicate),
    (SELECT count(*) FROM {prefix}attempt WHERE charged),
    (SELECT count(*) FROM {prefix}worker WHERE alive_until >= :now),
    (:now - min(
        coalesce((SELECT received_at FROM {prefix}body WHERE seq = (
            SELECT min(seq) FROM {prefix}queue WHERE state = 'ready' AND token IS NULL AND NOT outgoing)), :now),
        coalesce((SELECT min(due_at) FROM {prefix}queue
            WHERE NOT outgoing AND state = 'retry' AND token IS NULL AND due_at <= :now), :now)
    )) / 1000000.0,
    (SELECT coalesce(sum(messages), 0) FROM {prefix}run WHERE NOT outgoing AND finished_at > :now - 60000000),
    (SELECT count(*) FROM {prefix}queue WHERE outgoing AND state <> 'dead'),
    (SELECT count(*) FROM {prefix}queue WHERE outgoing AND state = 'dead'),
    (SELECT coalesce(sum(messages), 0) FROM {prefix}run WHERE outgoing),
    (SELECT count(*) FROM {prefix}poll WHERE failures > 0)

-- name: list_unfinished
-- Newest first, from the queue alone: its size is the unfinished work.
SELECT q.seq, q.status, n.name, b.id, b.type, b.version, b.key, c.name, q.attempts, q.crashes,
       b.received_at, q.due_at, (SELECT a.error FROM {prefix}attempt a WHERE a.seq = q.seq ORDER BY a.id DESC LIMIT 1)
FROM (
    SELECT *, CASE WHEN token IS NOT NULL THEN 'running'
                   WHEN state = 'ready' OR (state = 'retry' AND due_at <= :now) THEN 'due'
                   WHEN state = 'retry' THEN 'retrying'
                   ELSE state END AS status
    FROM {prefix}queue
) AS q
JOIN {prefix}body b ON b.seq = q.seq
JOIN {prefix}ledger l ON l.seq = q.seq
JOIN {prefix}name n ON n.id = l.source
JOIN {prefix}name c ON c.id = l.consumer
WHERE q.outgoing = :outgoing AND (:status IS NULL OR q.status = :status)
  AND (:type IS NULL OR b.type = :type)
  AND (:key IS NULL OR b.key = :key)
  AND (:source IS NULL OR n.name = :source)
  AND (:before IS NULL OR q.seq < :before)
  AND (:since IS NULL OR b.received_at >= :since)
  AND (:until IS NULL OR b.received_at < :until)
  AND (:fingerprint IS NULL OR :fingerprint = (
       SELECT a.fingerprint FROM {prefix}attempt a WHERE a.seq = q.seq ORDER BY a.id DESC LIMIT 1))
ORDER BY q.seq DESC LIMIT :limit

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

-- name: show
-- Everything about one message that is not a list.
SELECT l.seq, n.name, l.id, c.name, l.hash, l.received_at,
       b.id, b.type, b.version, b.key, b.headers, b.body,
       CASE WHEN q.seq IS NULL THEN coalesce((
                SELECT CASE a.action WHEN 'discard' THEN 'discarded' ELSE 'skipped' END
                FROM {prefix}audit a WHERE a.seq = l.seq AND a.action IN ('discard', 'skip') LIMIT 1), 'done')
            WHEN q.token IS NOT NULL THEN 'running'
            WHEN q.state = 'ready' OR (q.state = 'retry' AND q.due_at <= :now) THEN 'due'
            WHEN q.state = 'retry' THEN 'retrying'
            ELSE q.state END,
       coalesce(q.attempts, 0), coalesce(q.crashes, 0), q.due_at,
       q.worker, r.result, coalesce(d.copies, 0), b.destination, b.cause, d.first_at, d.last_at
FROM {prefix}ledger l
JOIN {prefix}name n ON n.id = l.source
JOIN {prefix}name c ON c.id = l.consumer
LEFT JOIN {prefix}body b ON b.seq = l.seq
LEFT JOIN {prefix}queue q ON q.seq = l.seq
LEFT JOIN {prefix}result r ON r.seq = l.seq
LEFT JOIN {prefix}duplicate d ON d.seq = l.seq
WHERE l.seq = :seq

-- name: show_run
-- When, by whom and with which code it was finished. Relies on run_seq.
SELECT finished_at, worker, code_version, messages
FROM {prefix}run
WHERE first_seq <= :seq AND last_seq >= :seq AND :seq IN (SELECT value FROM json_each(seqs))

-- name: show_attempts
-- In the order in which they failed.
SELECT attempt, kind, charged, error, traceback, worker, code_version, at, fingerprint
FROM {prefix}attempt WHERE seq = :seq ORDER BY id

-- name: show_sent
-- What the handler of this message sent. Relies on body_cause.
SELECT seq, id, type, destination FROM {prefix}body WHERE cause = :seq ORDER BY seq

-- name: show_audit
-- What people did to it.
SELECT at, actor, action, reason FROM {prefix}audit WHERE seq = :seq ORDER BY id

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

-- name: ahead
-- The first unfinished message of its key, if that is another one. Relies on queue_key.
SELECT e.seq, CASE WHEN e.token IS NOT NULL THEN 'running' ELSE e.state END, b.type
FROM {prefix}queue q JOIN {prefix}queue e ON e.key_hash = q.key_hash AND (e.place, e.seq) < (q.place, q.seq)
JOIN {prefix}body b ON b.seq = e.seq
WHERE q.seq = :seq
ORDER BY e.place, e.seq LIMIT 1

-- name: show_cases
-- The other bodies that came under its id, and what became of them. Relies on quarantine_copy.
SELECT x.id, CASE WHEN x.hash = l.hash THEN 'type' ELSE 'body' END, x.type, x.version, x.copies, x.first_at, x.last_at,
       x.resolution, x.accepted_seq
FROM {prefix}quarantine x JOIN {prefix}ledger l ON l.seq = x.seq
WHERE x.seq = :seq ORDER BY x.id

-- name: dead_groups
-- The dead, by how their last attempt failed. Relies on queue_aside and attempt_seq.
SELECT coalesce(a.fingerprint, ''), b.type, c.name, q.outgoing, count(*), min(q.seq), max(q.seq),
       min(b.received_at), max(b.received_at), max(coalesce(a.error, ''))
FROM {prefix}queue q
JOIN {prefix}body b ON b.seq = q.seq
JOIN {prefix}ledger l ON l.seq = q.seq
JOIN {prefix}name c ON c.id = l.consumer
LEFT JOIN {prefix}attempt a ON a.id = (SELECT max(x.id) FROM {prefix}attempt x WHERE x.seq = q.seq)
WHERE q.state = 'dead'
GROUP BY 1, 2, 3, 4 ORDER BY 5 DESC, 6 LIMIT :limit

-- name: blocked_keys
-- Dead messages that hold their key, and unhandled ones (of the first that came) with others behind them that could run; and how much
-- waits behind each. Relies on queue_aside and queue_key.
SELECT q.seq, b.type, b.key, c.name, q.outgoing, b.received_at,
       (SELECT count(*) FROM {prefix}queue w
        WHERE w.key_hash = q.key_hash AND (w.place, w.seq) > (q.place, q.seq)) AS behind,
       (SELECT w.seq FROM {prefix}queue w
        WHERE w.key_hash = q.key_hash AND (w.place, w.seq) > (q.place, q.seq) ORDER BY w.place, w.seq LIMIT 1), q.state
FROM (
    SELECT seq, key_hash, place, outgoing, state FROM {prefix}queue WHERE state = 'dead' AND key_hash IS NOT NULL
    UNION ALL
    SELECT * FROM (SELECT seq, key_hash, place, outgoing, state FROM {prefix}queue u
    WHERE u.state = 'unhandled' AND u.key_hash IS NOT NULL AND EXISTS (
        SELECT 1 FROM {prefix}queue w
        WHERE w.key_hash = u.key_hash AND (w.place, w.seq) > (u.place, u.seq) AND w.state <> 'unhandled')
    ORDER BY u.seq LIMIT 1000)
) AS q
JOIN {prefix}body b ON b.seq = q.seq
JOIN {prefix}ledger l ON l.seq = q.seq
JOIN {prefix}name c ON c.id = l.consumer
ORDER BY behind DESC, q.seq LIMIT :limit

-- name: failing
-- Messages that are tried again and have failed so often; keys that such a message has held for so many seconds, with others
-- behind it. Unfinished work only, which is small. Relies on attempt_seq and queue_key.
SELECT
    (SELECT count(*) FROM {prefix}queue WHERE state = 'retry' AND attempts >= :times),
    (SELECT count(*) FROM {prefix}queue q WHERE q.state = 'retry' AND q.key_hash IS NOT NULL
        AND EXISTS (SELECT 1 FROM {prefix}queue w
            WHERE w.key_hash = q.key_hash AND (w.place, w.seq) > (q.place, q.seq))
        AND EXISTS (SELECT 1 FROM {prefix}attempt a
            WHERE a.seq = q.seq AND a.at <= :now - CAST(:held * 1000000 AS integer)))

-- name: running
-- What is noted, and by whom. Relies on queue_noted.
SELECT q.seq, q.worker, b.type, b.key, c.name, q.outgoing, q.attempts + 1
FROM {prefix}queue q
JOIN {prefix}body b ON b.seq = q.seq
JOIN {prefix}ledger l ON l.seq = q.seq
JOIN {prefix}name c ON c.id = l.consumer
WHERE q.token IS NOT NULL ORDER BY q.seq LIMIT :limit

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

-- name: oldest
-- Since when messages are remembered, and since when with their bodies. Relies on the primary keys, whose order is that of time.
SELECT (SELECT received_at FROM {prefix}ledger ORDER BY seq LIMIT 1),
       (SELECT received_at FROM {prefix}body ORDER BY seq LIMIT 1),
       (SELECT nullif(due_at, 0) FROM {prefix}upkeep WHERE task = 'prune')

-- name: audit
-- What people did, newest first. Walks the primary key backwards.
SELECT id, at, actor, action, seq, reason FROM {prefix}audit
WHERE :before IS NULL OR id < :before ORDER BY id DESC LIMIT :limit

-- name: traffic
-- By the minute: 0 received, 1 done, 2 failed; not what goes out. From the newest rows alone, backwards in the primary keys: the cost has an end
-- however busy the last hour was.
SELECT 0, (received_at - :now) / 60000000 AS minute, count(*) FROM (
    SELECT received_at, consumer FROM {prefix}ledger ORDER BY seq DESC LIMIT :newest)
WHERE consumer IS NOT (SELECT id FROM {prefix}name WHERE name = :outbox) AND received_at > :now - :minutes * 60000000 GROUP BY minute
UNION ALL
SELECT 1, (finished_at - :now) / 60000000 AS minute, sum(messages) FROM (
    SELECT finished_at, messages, outgoing FROM {prefix}run ORDER BY id DESC LIMIT :newest)
WHERE NOT outgoing AND finished_at > :now - :minutes * 60000000 GROUP BY minute
UNION ALL
SELECT 2, (at - :now) / 60000000 AS minute, count(*) FROM (
    SELECT at FROM {prefix}attempt ORDER BY id DESC LIMIT :newest)
WHERE at > :now - :minutes * 60000000 GROUP BY minute

-- name: workers
-- Who is running, and how much of it.
SELECT w.id, w.process, w.host, w.pid, w.code_version, w.inline, w.started_at, (w.alive_until - :now) / 1000000.0,
       (SELECT count(*) FROM {prefix}queue q WHERE q.worker = w.id AND q.token IS NOT NULL)
FROM {prefix}worker w ORDER BY w.started_at, w.id

-- name: unserved
-- Due work by subscription and destination, and how old the oldest of each is: for the doctor to compare with who is running.
SELECT s.type, n.name, g.destination, g.number, (:now - b.received_at) / 1000000.0
FROM (
    SELECT subscription, destination, count(*) AS number, min(seq) AS oldest FROM {prefix}queue
    WHERE state = 'ready' AND token IS NULL GROUP BY subscription, destination
) AS g
JOIN {prefix}subscription s ON s.id = g.subscription
JOIN {prefix}name n ON n.id = s.consumer
JOIN {prefix}body b ON b.seq = g.oldest
ORDER BY 1, 2, 3

-- name: illegal
-- Rows that nobody would ever move again; always none, or something outside onceward has written here.
SELECT count(*) FROM {prefix}queue q
WHERE (q.state = 'waiting' AND NOT EXISTS (
           SELECT 1 FROM {prefix}queue e
           WHERE e.key_hash = q.key_hash AND (e.state <> 'waiting' OR e.due_at IS NOT NULL)))
   OR (q.token IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {prefix}worker w WHERE w.id = q.worker))

-- name: settings
-- What the library really uses, for the doctor.
SELECT sqlite_version(), (SELECT journal_mode FROM pragma_journal_mode), (SELECT synchronous FROM pragma_synchronous)

-- name: ring
-- The file itself tells: its change counter is watched.
SELECT 1

-- name: declare_source
-- How late a source may redeliver, as the newest program says.
INSERT INTO {prefix}source AS s (source, redelivers_seconds)
SELECT id, :seconds FROM {prefix}name WHERE name = :name
ON CONFLICT (source) DO UPDATE SET redelivers_seconds = excluded.redelivers_seconds
WHERE s.redelivers_seconds <> excluded.redelivers_seconds

-- name: latest_source
-- The source that redelivers latest, for whoever is about to forget ids.
SELECT n.name, s.redelivers_seconds
FROM {prefix}source s JOIN {prefix}name n ON n.id = s.source
ORDER BY s.redelivers_seconds DESC, n.name LIMIT 1

-- name: take_turn
-- Guard: the turn is due; whoever moves it on has it, everybody else gets no row.
UPDATE {prefix}upkeep SET due_at = :now + CAST(:every * 1000000 AS integer)
WHERE task = :task AND due_at <= :now RETURNING task

-- name: give_turn
-- There is more to do: whoever looks next goes on.
UPDATE {prefix}upkeep SET due_at = :now WHERE task = :task

-- name: turn_page
-- Bodies are in one table here, from which old ones are deleted; a page would be a second file.
SELECT :seconds

-- name: old_pages
-- There are none.
SELECT NULL WHERE :keep IS NULL

-- name: drop_page
-- There are none.
SELECT :archive_first WHERE :page IS NULL

-- name: next_bodies
-- The next numbers, and whether they are old. Relies on the primary key of body, whose order is that of time.
SELECT seq, received_at < :now - CAST(:keep * 1000000 AS integer)
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

-- name: next_ledger
-- The next numbers, and whether they are old. Relies on the primary key of the ledger, whose order is that of time.
SELECT seq, received_at < :now - CAST(:keep * 1000000 AS integer)
FROM {prefix}ledger WHERE seq > :after ORDER BY seq LIMIT :limit

-- name: forget_messages
-- Guard: nothing unfinished, dead, in an open case, with an effect of unknown outcome, or with a second body that was accepted and is
-- itself still remembered (or not archived yet, where that comes first); nothing that was finished, or that a person did something to,
-- within the retention, however long ago it came. Everything about the message goes with it, but for the lines about erasure. Relies on
-- run_seq (once, for the range of the batch) and audit_seq.
DELETE FROM {prefix}ledger
WHERE seq IN (SELECT value FROM json_each(:seqs))
  AND seq NOT IN (SELECT s.value FROM {prefix}run r, json_each(r.seqs) s
                  WHERE r.first_seq <= :highest AND r.last_seq >= :lowest
                    AND r.finished_at >= :now - CAST(:keep * 1000000 AS integer))
  AND NOT EXISTS (SELECT 1 FROM {prefix}audit a
                  WHERE a.seq = {prefix}ledger.seq AND a.at >= :now - CAST(:keep * 1000000 AS integer))
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

-- name: next_runs
-- The next runs, and whether they are old. Relies on the primary key of run, whose order is that of time.
SELECT id, finished_at < :now - CAST(:keep * 1000000 AS integer)
FROM {prefix}run WHERE id > :after ORDER BY id LIMIT :limit

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
    WHERE done AND finished_at < :now - CAST(:keep * 1000000 AS integer)
      AND seq < coalesce((SELECT min(seq) FROM {prefix}ledger), 9223372036854775807));
DELETE FROM {prefix}effect
WHERE done AND finished_at < :now - CAST(:keep * 1000000 AS integer)
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

-- name: cases_after
-- The bodies in quarantine, open or decided, under the number of the message whose id they came with.
SELECT x.id, x.seq, x.type, n.name, x.key, x.headers, x.body,
       CASE WHEN q.seq IS NULL THEN 'finished' WHEN q.token IS NOT NULL THEN 'running' ELSE q.state END
FROM {prefix}quarantine x JOIN {prefix}ledger l ON l.seq = x.seq JOIN {prefix}name n ON n.id = l.source
LEFT JOIN {prefix}queue q ON q.seq = x.seq
WHERE x.id > :after
ORDER BY x.id LIMIT :limit

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
WHERE b.seq > :after AND b.received_at < :now - CAST(:keep * 1000000 AS integer)
  AND NOT EXISTS (SELECT 1 FROM {prefix}queue q WHERE q.seq = b.seq)
  AND NOT EXISTS (SELECT 1 FROM {prefix}quarantine x WHERE x.seq = b.seq AND x.resolution IS NULL)
ORDER BY b.seq LIMIT :limit

-- name: add_poll
-- The row of a polled API, due at once; fine when it is there.
INSERT INTO {prefix}poll (source, number, due_at, failures) VALUES (:source, 0, :now, 0) ON CONFLICT (source) DO NOTHING

-- name: take_poll
-- Guard: the turn is due (what a process that is gone had is due after its patience), or nobody has it. Relies on the primary key.
UPDATE {prefix}poll SET token = :token, due_at = :now + CAST(:patience * 1000000 AS integer)
WHERE source = :source AND (due_at <= :now OR (:early AND token IS NULL))
RETURNING cursor, number, hash, failures

-- name: poll_left
-- For how many seconds the turn is not due.
SELECT (due_at - :now) / 1000000.0 FROM {prefix}poll WHERE source = :source

-- name: keep_poll
-- Guard: the turn is still ours, and nothing was stored since we looked. In the transaction that stores the response.
UPDATE {prefix}poll SET cursor = :cursor, number = :next, hash = :hash, due_at = :now + CAST(:patience * 1000000 AS integer)
WHERE source = :source AND token = :token AND number = :number
RETURNING number

-- name: poll_state
-- How far our own turn has come; no row when it is not ours any more.
SELECT number FROM {prefix}poll WHERE source = :source AND token = :token

-- name: end_poll
-- Guard: the turn is still ours.
UPDATE {prefix}poll SET token = NULL, due_at = :now + CAST(:wait * 1000000 AS integer), ended_at = :now,
       failures = :failures, error = :error
WHERE source = :source AND token = :token

-- name: polls
-- Every polled API: how far it is, when it is due, and how it went last. A handful of rows.
SELECT n.name, p.cursor, p.number, p.token IS NOT NULL, (p.due_at - :now) / 1000000.0, p.ended_at, p.failures, p.error
FROM {prefix}poll p JOIN {prefix}name n ON n.id = p.source ORDER BY n.name

-- name: debris
-- The commands that remove every table of this prefix, and with it its indexes: for inboxes that were made to be measured. Reads
-- SQLite's own catalog; guard: only what begins with the prefix.
SELECT 'DROP TABLE "' || name || '"' FROM sqlite_master
WHERE type = 'table' AND substr(name, 1, length('{prefix}')) = '{prefix}'

-- name: blob_folder
-- The part of a blob store that belongs to these tables, so that several may share one.
SELECT folder FROM {prefix}catalog

-- name: referred
-- Which of these blobs are referred to. Relies on body_blob, whose condition and expression are these.
SELECT DISTINCT substr(headers, 19, 56) FROM {prefix}body
WHERE substr(headers, 1, 18) = '{"onceward-blob":"' AND substr(headers, 19, 56) IN (SELECT value FROM json_each(:names))

-- name: sign_out
-- Guard: the primary key; a session ends once.
INSERT INTO {prefix}ended_session (session, until) VALUES (:session, :now + CAST(:seconds * 1000000 AS integer))
ON CONFLICT (session) DO NOTHING

-- name: forget_sessions
-- Beside each new one, so that the table holds what ended within one session's time: a handful of rows, read as they are.
DELETE FROM {prefix}ended_session WHERE until < :now

-- name: signed_out
-- Relies on the primary key.
SELECT 1 FROM {prefix}ended_session WHERE session = :session
