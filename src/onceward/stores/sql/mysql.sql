-- What onceward says to MySQL, MariaDB and TiDB in its own words: what all of them understand. portable.sql has what all databases share;
-- sqlite.sql has the same names. Each section says which guard it carries and which index it relies on.
--
-- Statements go several in one packet, each with a fresh view (READ COMMITTED); a section's answer is the rows of all its statements. Nothing
-- here answers what it has changed, so a change is looked at before, under lock, with the same condition, or counted after (ROW_COUNT). Where
-- what is read decides what is sent next, stores/mysql/programs.py goes on from one statement of a section to another.
--
-- :x is a parameter, and a list of them in parentheses; {rows (...)} and {union ...} are a text for each record, with commas or UNION ALL;
-- {fresh (...)} as rows, for the records that the statements before have answered; {values x} a list as rows; {identifier x} a name. No guard
-- relies on CHECK (TiDB has none): a claim is a condition of each statement that needs it. An assignment sees those before it, but not on
-- TiDB: what is counted up comes last.
--
-- TiDB has no shared locks, and reads past SKIP LOCKED without locking anything. So {shared} is held alone there, {skipping} waits, and {tried}
-- fails where a row is locked (stores/mysql/programs.py goes on then): what was answered is locked everywhere.

-- name: begin_limits
-- At the beginning of a transaction, where they are not what the connection has already.
SET SESSION innodb_lock_wait_timeout = :lock_limit /*M! , max_statement_time = :statement_limit */ /*!80000 , max_execution_time = :statement_milliseconds */

-- name: touch_catalog
-- Tells every receiver to read the catalog again before it stores anything. The version is random: a counter that a restore or a
-- failover takes back would come to a number that receivers know, for another catalog.
UPDATE {prefix}catalog
SET version = floor(rand() * 9007199254740992), last_crash_at = CASE WHEN :crash THEN {clock} ELSE last_crash_at END

-- name: hold_catalog
-- For a receive inside the caller's transaction, in a statement before it: who wants what stays as it is until that ends, for
-- lock_catalog waits. Answers whether the transaction keeps to a view of its own, which may be older. Where nothing can be shared (TiDB),
-- each tries to hold a row that no other has.
SELECT :keeps_view FROM {prefix}catalog_lock WHERE place = :place {tried};
SELECT :keeps_view FROM {prefix}catalog_lock WHERE place = :place {shared}

-- name: lock_catalog
-- Before who wants what is changed: waits for callers' transactions that have received under hold_catalog.
SELECT place FROM {prefix}catalog_lock ORDER BY place FOR UPDATE

-- name: catalog_holders
-- Who holds a row is told to administrators alone.
SELECT 0, '', 0.0 FROM DUAL WHERE FALSE

-- name: add_name
-- Guard: unique (name). Two processes adding the same name get the same number when they read it again.
INSERT INTO {prefix}name (name) SELECT :name FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM {prefix}name WHERE name = :name)
ON DUPLICATE KEY UPDATE name = {prefix}name.name

-- name: retire
-- Under lock_catalog. The row stays, for messages that were stored for it by receives that are under way.
SELECT id FROM {prefix}subscription WHERE id IN :subscriptions AND NOT retired FOR UPDATE;
UPDATE {prefix}subscription SET retired = true WHERE id IN :subscriptions AND NOT retired

-- name: subscribe
-- Guard: unique (consumer, type), under lock_catalog.
INSERT INTO {prefix}subscription (consumer, type, key_path, key_function, sequence, on_dead, aggregate)
VALUES (:consumer, :type, :key_path, :key_function, :sequence, :on_dead, :aggregate)
ON DUPLICATE KEY UPDATE key_path = :key_path, key_function = :key_function, sequence = :sequence, on_dead = :on_dead,
    aggregate = :aggregate, retired = false

-- name: receive
-- Guard: unique (consumer, source, id); a duplicate changes nothing, and what this call has inserted has its receipt. The number is never named
-- where a duplicate is met: MariaDB then loses rows. Whoever asked looks up what was not inserted, and begins again where nothing is found, so a
-- row that met another's number instead of its own id is not lost either. Inserts nothing under an outdated catalog (outgoing messages need none): it
-- marks such rows by the receipt 0, and whoever asked removes them at once. Were the rows those of a query, MariaDB would hold the lock of the
-- table's counter while one of them waits for a copy, and all that come would wait with it (innodb_autoinc_lock_mode 1). The catalog is read by a
-- plain SELECT: by SET it would be locked until the end of a caller's transaction that keeps to a view of its own.
SELECT @onceward_current := ((:catalog IS NULL OR (SELECT version FROM {prefix}catalog) = :catalog)
    AND (:worker IS NULL OR EXISTS (SELECT 1 FROM {prefix}worker WHERE id = :worker)));
INSERT INTO {prefix}ledger (consumer, source, slot, type_hash, id, hash, received_at, receipt)
VALUES {rows (:consumer, :source, :slot, :type_hash, :stored_id, :hash, {clock}, CASE WHEN @onceward_current THEN :receipt ELSE 0 END)}
ON DUPLICATE KEY UPDATE receipt = {prefix}ledger.receipt;
SELECT i.ordinal, l.seq, l.received_at, l.receipt = 0
FROM ({union SELECT :ordinal AS ordinal, :consumer AS consumer, :source AS source, :stored_id AS id}) AS i
STRAIGHT_JOIN {prefix}ledger l ON l.consumer = i.consumer AND l.source = i.source AND l.id = i.id
WHERE l.receipt IN (:receipt, 0);
DELETE FROM {prefix}ledger WHERE seq IN :outdated AND receipt = 0;
INSERT INTO {prefix}body (seq, source, id, type, version, `key`, key_from, aggregate, position, headers, body, destination, cause, received_at,
                      due_at)
VALUES {fresh (:seq, :source, :id, :type, :version, :key, :key_from, :aggregate, :position, :headers, :body, :destination, :cause, :received_at,
       coalesce(:due_at, :received_at + :due_in))};
INSERT INTO {prefix}queue (seq, subscription, key_hash, slot, place, sequence, outgoing, destination, state, due_at, worker, token,
                           attempts, isolation, type)
VALUES {fresh (:seq, :subscription, :key_hash, :slot, coalesce(:place, :seq), :sequence, :outgoing,
       CASE WHEN :outgoing THEN coalesce(:destination, 'default') END,
       CASE WHEN :unplaced IS NOT NULL THEN 'unhandled' WHEN :due_at IS NULL AND :due_in IS NULL THEN :state ELSE 'scheduled' END,
       CASE WHEN :unplaced IS NULL THEN coalesce(:due_at, :received_at + :due_in, {clock} + {microseconds delay}) END,
       :worker, :token, :attempts, :isolation, :unplaced)}

-- name: receive_direct
-- Guard: unique (consumer, source, id), as for receive. Messages that this very transaction handles, or queues when it is known which.
-- Inserts nothing under an outdated catalog.
SELECT @onceward_current := (:catalog IS NULL OR (SELECT version FROM {prefix}catalog) = :catalog);
INSERT INTO {prefix}ledger (consumer, source, slot, type_hash, id, hash, received_at, receipt)
VALUES {rows (:consumer, :source, :slot, :type_hash, :stored_id, :hash, {clock}, CASE WHEN @onceward_current THEN :receipt ELSE 0 END)}
ON DUPLICATE KEY UPDATE receipt = {prefix}ledger.receipt;
SELECT i.ordinal, l.seq, l.received_at, l.receipt = 0
FROM ({union SELECT :ordinal AS ordinal, :consumer AS consumer, :source AS source, :stored_id AS id}) AS i
STRAIGHT_JOIN {prefix}ledger l ON l.consumer = i.consumer AND l.source = i.source AND l.id = i.id
WHERE l.receipt IN (:receipt, 0);
DELETE FROM {prefix}ledger WHERE seq IN :outdated AND receipt = 0;
INSERT INTO {prefix}body (seq, source, id, type, version, `key`, key_from, aggregate, position, headers, body, destination, cause,
                      received_at, due_at)
VALUES {fresh (:seq, :source, :id, :type, :version, :key, :key_from, :aggregate, :position, :headers, :body, :destination, :cause, :received_at,
       coalesce(:due_at, :received_at + :due_in))}

-- name: enqueue
-- In the transaction that has received it, and has found that it does not run in it, or saw it fail.
INSERT INTO {prefix}queue (seq, subscription, key_hash, slot, place, sequence, outgoing, state, due_at, attempts, type)
VALUES {rows (:seq, :subscription, :key_hash, :slot, :place, :sequence, 0, CASE WHEN :unplaced IS NULL THEN :state ELSE 'unhandled' END,
        {clock} + :after, :attempts, :unplaced)}

-- name: known
-- What is known of messages that were not inserted, as it is now. Relies on the unique key of the ledger.
SELECT i.ordinal, l.seq, l.hash, l.type_hash,
       NOT EXISTS (SELECT 1 FROM {prefix}queue q WHERE q.seq = l.seq)
           AND NOT EXISTS (SELECT 1 FROM {prefix}audit a WHERE a.seq = l.seq AND a.action = 'discard'),
       (SELECT r.result FROM {prefix}result r WHERE r.seq = l.seq), ({now} - l.received_at) / {second}
FROM ({union SELECT :ordinal AS ordinal, :consumer AS consumer, :source AS source, :stored_id AS id}) AS i
STRAIGHT_JOIN {prefix}ledger l ON l.consumer = i.consumer AND l.source = i.source AND l.id = i.id {latest}

-- name: known_unplaced
-- As known, of what came under this id and type when nobody had subscribed, and is not placed yet: the first of it, whoever stored it.
-- Relies on the unique key of the ledger, from one name to the next, and on the primary key of queue.
SELECT i.ordinal, min(l.seq), min(l.hash), min(l.type_hash), 0, NULL, max({now} - l.received_at) / {second}
FROM ({union SELECT :ordinal AS ordinal, :source AS source, :stored_id AS id, :type AS type}) AS i
STRAIGHT_JOIN {prefix}name c STRAIGHT_JOIN {prefix}ledger l ON l.consumer = c.id AND l.source = i.source AND l.id = i.id
STRAIGHT_JOIN {prefix}queue w ON w.seq = l.seq
WHERE w.state = 'unhandled' AND w.type = i.type AND w.subscription IS NULL
  AND NOT EXISTS (SELECT 1 FROM {prefix}name d JOIN {prefix}ledger e ON e.consumer = d.id AND e.source = i.source AND e.id = i.id
                  JOIN {prefix}queue v ON v.seq = e.seq
                  WHERE e.seq < l.seq AND v.state = 'unhandled' AND v.type = i.type AND v.subscription IS NULL)
GROUP BY i.ordinal

-- name: import_ids
-- Guard: unique (consumer, source, id): what is known stays as it is. An id that was handled elsewhere is a finished message without a body:
-- it gets no row in the queue, and of its bytes and its type nothing is known.
INSERT INTO {prefix}ledger (consumer, source, type_hash, slot, id, hash, received_at, receipt)
VALUES {rows (:consumer, :source, 0, :slot, :stored_id, repeat(char(0), 32), {clock} - :age, :receipt)}
ON DUPLICATE KEY UPDATE receipt = {prefix}ledger.receipt;
SELECT l.seq FROM ({union SELECT :consumer AS consumer, :source AS source, :stored_id AS id}) AS i
STRAIGHT_JOIN {prefix}ledger l ON l.consumer = i.consumer AND l.source = i.source AND l.id = i.id
WHERE l.receipt = :receipt

-- name: count_duplicates
-- One row per message however many copies came; records arrive sorted by seq, so that batches cannot deadlock.
INSERT INTO {prefix}duplicate (seq, copies, first_at, last_at) VALUES {rows (:seq, :copies, {clock}, {clock})}
ON DUPLICATE KEY UPDATE copies = copies + VALUES(copies), last_at = VALUES(last_at)

-- name: quarantine
-- Guards: unique (seq, hash, type_hash), and the ledger row is there and stays until the commit: a fan-out may have replaced it, and a
-- case without one is out of reach. Never touches the first body; answers what an operator decided about these bytes under this type.
INSERT INTO {prefix}quarantine (seq, hash, type_hash, type, version, `key`, position, due_at, headers, body, copies, first_at, last_at)
SELECT l.seq, :hash, :type_hash, :type, :version, :key, :position, coalesce(:due_at, {clock} + :due_in), :headers, :body, 1, {clock}, {clock}
FROM {prefix}ledger l WHERE l.seq = :seq {shared}
ON DUPLICATE KEY UPDATE last_at = {clock}, copies = {prefix}quarantine.copies + 1;
SELECT resolution, accepted_seq FROM {prefix}quarantine WHERE seq = :seq AND hash = :hash AND type_hash = :type_hash

-- name: first_seen
-- Guard: the key (source, hash). The first id keeps a body until the window is over; answers whose body it is.
INSERT INTO {prefix}first_seen (source, hash, id, seen_at) VALUES (:source, :hash, :id, {clock})
ON DUPLICATE KEY UPDATE id = CASE WHEN seen_at < {now} - {microseconds window} THEN VALUES(id) ELSE id END,
    seen_at = CASE WHEN seen_at < {now} - {microseconds window} THEN VALUES(seen_at) ELSE seen_at END;
SELECT id FROM {prefix}first_seen WHERE source = :source AND hash = :hash

-- name: forget_first_seen
-- Some of those whose window is over, beside each new one, so that the table stays as large as its window. Relies on first_seen_at.
DELETE FROM {prefix}first_seen WHERE source = :source AND seen_at < {now} - {microseconds window} ORDER BY seen_at LIMIT 10

-- name: requeue_own
-- Guards: the ledger row is this very message under this very number, no queue row is there, no run has finished it, and it was not
-- discarded. Used when a handler that runs as messages come has committed on its own. Relies on run_seq.
INSERT INTO {prefix}queue (seq, subscription, key_hash, slot, place, sequence, state, due_at, attempts, type)
SELECT l.seq, :subscription, :key_hash, l.slot, coalesce(:place, l.seq), :sequence,
       CASE WHEN :unplaced IS NULL THEN :state ELSE 'unhandled' END, {clock} + :after, :attempts, :unplaced
FROM {prefix}ledger l
WHERE l.consumer = :consumer AND l.source = :source AND l.id = :stored_id AND l.seq = :seq
  AND NOT EXISTS (SELECT 1 FROM {prefix}queue q WHERE q.seq = l.seq)
  AND NOT EXISTS (SELECT 1 FROM {prefix}run r
                  WHERE r.first_seq <= l.seq AND r.last_seq >= l.seq AND json_contains(r.seqs, cast(l.seq AS char)))
  AND NOT EXISTS (SELECT 1 FROM {prefix}audit a WHERE a.seq = l.seq AND a.action = 'discard')
{shared};
SELECT :seq FROM DUAL WHERE ROW_COUNT() > 0

-- name: lock_free_keys
-- Guard of messages that run as they come: the locks of their keys (tried) are held. The rows are there before the transaction begins, and
-- committed: what this transaction had made would keep others waiting that only try. Look for unfinished rows in the next statement.
INSERT INTO {prefix}key_lock (key_hash) SELECT i.key_hash FROM ({union SELECT :key_hash AS key_hash}) AS i
WHERE NOT EXISTS (SELECT 1 FROM {prefix}key_lock k WHERE k.key_hash = i.key_hash)
ON DUPLICATE KEY UPDATE uses = {prefix}key_lock.uses;
SELECT key_hash FROM {prefix}key_lock WHERE key_hash IN :keys {tried};
UPDATE {prefix}key_lock SET uses = uses + 1 WHERE key_hash IN :keys

-- name: busy_keys
-- A new statement, so that it sees what was committed before the key locks were taken. Relies on queue_key, as park does, and on
-- queue_unhandled: a message that is not placed yet may be one of the key. What is scheduled holds nothing.
SELECT i.key_hash FROM ({union SELECT :key_hash AS key_hash, :consumer AS consumer}) AS i
WHERE EXISTS (SELECT 1 FROM {prefix}queue q WHERE q.key_hash = i.key_hash AND q.place < 9223372036854775807)
    OR (EXISTS (SELECT 1 FROM {prefix}queue WHERE unhandled_type IS NOT NULL) AND EXISTS (
        SELECT 1 FROM {prefix}subscription s WHERE s.consumer = i.consumer AND NOT s.retired AND (
            EXISTS (SELECT 1 FROM {prefix}queue u WHERE u.unhandled_type = s.type AND u.subscription IS NULL AND u.postponed = 0)
            OR EXISTS (SELECT 1 FROM {prefix}queue u WHERE u.unhandled_type = s.type AND u.subscription = s.id AND u.postponed = 0))))

-- name: claim
-- Guards: not claimed yet, the worker's own row still there and kept from take-over until commit, key lock held; the rows of keys that were
-- just found held are passed over. What was scheduled gets its place in its key here: the next number, drawn by rows that are gone at once. What others have locked is skipped where the server can do that, and waited for where it cannot. The lock of
-- a key is a row that is there (tried), or one that is made here. On TiDB a row among those of the keys keeps the worker from take-over: its
-- own would be held alone, and its heartbeat would wait for that. A larger body stays behind, to be fetched by itself (body_of). Relies on
-- queue_ready and queue_due.
SELECT id FROM {prefix}worker WHERE id = :worker {shared};
SELECT seq, key_hash, place, due_at FROM {prefix}queue FORCE INDEX ({prefix}queue_due)
WHERE destination IS NULL AND free_due <= {now} AND subscription IN :subscriptions AND (key_hash IN :held) IS NOT TRUE
ORDER BY free_due LIMIT :retries {skipping};
SELECT seq, key_hash, place, due_at FROM {prefix}queue FORCE INDEX ({prefix}queue_ready)
WHERE destination IS NULL AND free_seq >= :cursor AND subscription IN :subscriptions AND (key_hash IN :held) IS NOT TRUE
ORDER BY free_seq LIMIT :limit {skipping};
SELECT key_hash FROM {prefix}key_lock WHERE key_hash IN :keys {tried};
SELECT key_hash FROM {prefix}key_lock WHERE key_hash IN :keys;
INSERT INTO {prefix}key_lock (key_hash) VALUES {values keys} ON DUPLICATE KEY UPDATE uses = uses + 1;
UPDATE {prefix}queue SET worker = :worker, token = :token, state = CASE WHEN state IN ('waiting', 'scheduled') THEN 'retry' ELSE state END
WHERE seq IN :seqs AND token IS NULL AND (state IN ('ready', 'retry') OR due_at IS NOT NULL);
SELECT q.seq, q.subscription, q.key_hash, q.place, q.sequence, q.attempts, b.source, b.id, b.type, b.version, b.key,
       b.headers, CASE WHEN length(b.body) <= 262144 THEN b.body END, b.destination, b.key_from, b.received_at, ({clock} - coalesce(b.due_at, b.received_at)) / {second}
FROM {prefix}queue q STRAIGHT_JOIN {prefix}body b ON b.seq = q.seq
WHERE q.seq IN :seqs AND q.worker = :worker AND q.token = :token;
INSERT INTO {prefix}ledger (consumer, source, slot, type_hash, id, hash, received_at, receipt)
VALUES {rows (0, 0, 0, 0, :stored_id, repeat(char(0), 32), {clock}, :receipt)};
SELECT seq FROM {prefix}ledger WHERE consumer = 0 AND source = 0 AND receipt = :receipt ORDER BY seq;
DELETE FROM {prefix}ledger WHERE consumer = 0 AND source = 0 AND receipt = :receipt;
UPDATE {prefix}queue SET place = :place WHERE seq = :seq AND worker = :worker AND token = :token;
SELECT seq, key_hash, due_at FROM {prefix}queue WHERE key_hash IN :keys AND place = 9223372036854775807 AND free_due <= {now};
INSERT INTO {prefix}key_lock (key_hash) VALUES (:worker) ON DUPLICATE KEY UPDATE uses = uses + 1;
SELECT id FROM {prefix}worker WHERE id = :worker

-- name: claim_outgoing
-- As claim, for the messages to one destination: their indexes begin with it. New ones and those tried again come in turn. Relies on
-- queue_ready and queue_due.
SELECT seq, key_hash, place, due_at FROM {prefix}queue FORCE INDEX ({prefix}queue_due)
WHERE destination = :destination AND free_due <= {now} AND subscription IN :subscriptions
ORDER BY free_due LIMIT :limit {skipping};
SELECT seq, key_hash, place, due_at FROM {prefix}queue FORCE INDEX ({prefix}queue_ready)
WHERE destination = :destination AND free_seq >= :cursor AND subscription IN :subscriptions
ORDER BY free_seq LIMIT :limit {skipping}

-- name: claim_isolated
-- As claim, for messages of one level that were in flight when a process died. Relies on queue_apart.
SELECT seq, key_hash, place, due_at FROM {prefix}queue FORCE INDEX ({prefix}queue_apart)
WHERE apart = :level AND token IS NULL AND (state = 'ready' OR due_at <= {now})
  AND subscription IN :subscriptions AND destination <=> :destination AND (key_hash IN :held) IS NOT TRUE
ORDER BY seq LIMIT 200 {skipping}

-- name: awaiting
-- Which of these destinations have a message that may be published now. Relies on queue_ready, queue_due and queue_apart.
SELECT n.name FROM ({union SELECT :destination AS name}) AS n
WHERE EXISTS (SELECT 1 FROM {prefix}queue WHERE destination = n.name AND free_seq >= 0)
   OR EXISTS (SELECT 1 FROM {prefix}queue WHERE destination = n.name AND free_due <= {now})
   OR EXISTS (SELECT 1 FROM {prefix}queue WHERE apart > 0 AND token IS NULL AND destination = n.name AND (state = 'ready' OR due_at <= {now}))

-- name: hasten
-- Guard: still due later and not claimed; locked ones are skipped. What failed while its destination, or what its handler calls, was away
-- is due at once when that is back; what was told when to come again (`Retry`) keeps its time. Relies on queue_due and on attempt_seq.
SELECT q.seq FROM {prefix}queue q FORCE INDEX ({prefix}queue_due)
WHERE q.destination <=> :destination AND q.free_due > {now} AND q.state = 'retry' AND q.outgoing = :outgoing AND q.subscription IN :subscriptions
  AND (SELECT a.error NOT LIKE 'Retry:%' FROM {prefix}attempt a WHERE a.seq = q.seq ORDER BY a.id DESC LIMIT 1)
ORDER BY q.free_due LIMIT :limit {skipping};
UPDATE {prefix}queue SET due_at = {clock} WHERE seq IN :seqs AND state = 'retry' AND token IS NULL

-- name: first_due
-- The subscriptions, of these, of the first new message that may be claimed now and of the first one that may be tried again.
-- Relies on queue_ready and queue_due.
(SELECT subscription FROM {prefix}queue FORCE INDEX ({prefix}queue_ready)
 WHERE destination IS NULL AND free_seq >= 0 AND subscription IN :subscriptions ORDER BY free_seq, seq LIMIT 1)
UNION ALL
(SELECT subscription FROM {prefix}queue FORCE INDEX ({prefix}queue_due)
 WHERE destination IS NULL AND free_due <= {now} AND subscription IN :subscriptions ORDER BY free_due, seq LIMIT 1)

-- name: keys_in_front
-- The keys of the rows that a claim looked at in vain, because others hold them (inline work holds its key while its handler runs): the next
-- claim passes over them. No row: nothing is ready, or the worker's own row is gone. Relies on queue_ready and queue_due.
SELECT DISTINCT key_hash FROM (
    (SELECT key_hash FROM {prefix}queue FORCE INDEX ({prefix}queue_ready)
     WHERE destination IS NULL AND free_seq >= :cursor AND subscription IN :subscriptions AND (key_hash IN :held) IS NOT TRUE
     ORDER BY free_seq, seq LIMIT :limit)
    UNION ALL
    (SELECT key_hash FROM {prefix}queue FORCE INDEX ({prefix}queue_due)
     WHERE destination IS NULL AND free_due <= {now} AND subscription IN :subscriptions AND (key_hash IN :held) IS NOT TRUE
     ORDER BY free_due, seq LIMIT :limit)
) AS looked_at
WHERE key_hash IS NOT NULL AND EXISTS (SELECT 1 FROM {prefix}worker WHERE id = :worker)

-- name: fair_share
-- How many of the messages that may be claimed now each lane of every process would have, counted up to what all of them would take.
-- Relies on queue_ready and queue_due; there is a handful of workers.
SELECT greatest(coalesce(sum(lanes), 0), 1) FROM {prefix}worker;
SELECT count(*) FROM (
    SELECT 1 FROM {prefix}queue FORCE INDEX ({prefix}queue_ready)
    WHERE destination IS NULL AND free_seq >= :cursor AND subscription IN :subscriptions ORDER BY free_seq, seq LIMIT :most
) AS fresh;
SELECT count(*) FROM (
    SELECT 1 FROM {prefix}queue FORCE INDEX ({prefix}queue_due)
    WHERE destination IS NULL AND free_due <= {now} AND subscription IN :subscriptions ORDER BY free_due, seq LIMIT :most
) AS due

-- name: isolation_level
-- The highest level of the isolated messages that wait, 0 for none. Relies on queue_apart.
SELECT coalesce((
    SELECT isolation FROM {prefix}queue
    WHERE apart > 0 AND token IS NULL AND (state = 'ready' OR due_at <= {now})
      AND subscription IN :subscriptions AND destination <=> :destination
    ORDER BY apart DESC, seq DESC LIMIT 1), 0)

-- name: park
-- Guard: the key lock is held since the statement before, so this view is newer than the lock. A row stays claimed only when every
-- earlier row of its key is in this claim and no other claim holds a row of the key. Behind an earlier row it waits; behind a claimed
-- later one (which was committed first) it only loses its claim, for nobody would promote it. Where an earlier message that its consumer
-- will get is not placed yet, nor refused, and may be of its key, it waits for a moment. Relies on queue_key, queue_claimed (all of it:
-- what the workers have in hand) and queue_unhandled. The first row of the key outside this claim says what is earlier.
SELECT m.seq, m.state, (
        SELECT (e.place, e.seq) < (m.place, m.seq) FROM {prefix}queue e
        WHERE e.key_hash = m.key_hash AND NOT (e.worker <=> :worker AND e.token <=> :token)
        ORDER BY e.place, e.seq LIMIT 1
    ), m.key_hash IN (
        SELECT n.key_hash FROM {prefix}queue n WHERE n.worker IS NOT NULL AND n.key_hash IS NOT NULL AND NOT (n.worker = :worker AND n.token = :token)
    ), EXISTS (SELECT 1 FROM {prefix}queue WHERE unhandled_type IS NOT NULL) AND m.sequence IS NULL AND EXISTS (
        SELECT 1 FROM {prefix}subscription mine JOIN {prefix}subscription s ON s.consumer = mine.consumer AND NOT s.retired
        WHERE mine.id = m.subscription AND (
            (SELECT u.unhandled_from FROM {prefix}queue u WHERE u.unhandled_type = s.type AND u.subscription IS NULL AND u.postponed = 0
             ORDER BY u.unhandled_from, u.seq LIMIT 1) < m.seq
            OR (SELECT u.unhandled_from FROM {prefix}queue u WHERE u.unhandled_type = s.type AND u.subscription = s.id AND u.postponed = 0
                ORDER BY u.unhandled_from, u.seq LIMIT 1) < m.seq)
    )
FROM {prefix}queue m WHERE m.worker = :worker AND m.token = :token AND m.key_hash IS NOT NULL;
UPDATE {prefix}queue SET worker = NULL, token = NULL, state = 'waiting', due_at = NULL
WHERE seq IN :earlier AND worker = :worker AND token = :token;
UPDATE {prefix}queue SET worker = NULL, token = NULL, state = 'waiting', due_at = {clock} + 250000
WHERE seq IN :unplaced AND worker = :worker AND token = :token;
UPDATE {prefix}queue SET worker = NULL, token = NULL WHERE seq IN :busy AND worker = :worker AND token = :token

-- name: move
-- Guard: the row still carries this claim; under the locks of the key it leaves and the key it comes to. It is claimed anew, in its place.
UPDATE {prefix}queue
SET key_hash = :key_hash, slot = :slot, sequence = :sequence, place = coalesce(:sequence, place), worker = NULL, token = NULL
WHERE seq = :seq AND worker = :worker AND token = :token;
SELECT :seq FROM DUAL WHERE ROW_COUNT() > 0

-- name: lock_keys
-- The last blocking lock of whoever removes rows of a key, taken in sorted order; a write, see key_lock.
INSERT INTO {prefix}key_lock (key_hash) VALUES {values key_hashes} ON DUPLICATE KEY UPDATE uses = uses + 1

-- name: finish
-- Guard: the transaction still has its fence (a savepoint, which is gone with the transaction), and every row still carries this claim; else
-- the release, or the insert of a null into `messages`, fails, and everything the handlers did rolls back. The deletion is "done".
RELEASE SAVEPOINT {identifier fence};
SET @onceward_outgoing = (SELECT coalesce(max(outgoing), 0) FROM {prefix}queue WHERE seq IN :seqs);
DELETE FROM {prefix}queue WHERE seq IN :seqs AND worker = :worker AND token = :token;
INSERT INTO {prefix}run (worker, token, code_version, finished_at, first_seq, last_seq, seqs, messages, outgoing)
VALUES (:worker, :token, :code_version, {clock}, :first, :last, :numbers, CASE WHEN ROW_COUNT() = :expected THEN :expected END, @onceward_outgoing)

-- name: finish_direct
-- Guard: the transaction still has its fence, and the ledger rows that it inserted; else the release fails, or `messages` is null.
RELEASE SAVEPOINT {identifier fence};
INSERT INTO {prefix}run (worker, token, code_version, finished_at, first_seq, last_seq, seqs, messages)
VALUES (:worker, 0, :code_version, {clock}, :first, :last, :numbers,
        CASE WHEN (SELECT count(*) FROM {prefix}ledger WHERE seq IN :seqs) = :expected THEN :expected END)

-- name: promote
-- Guard: the key locks are held and the removal is in an earlier statement. The rows of the locks go: whoever waits for one makes it anew.
-- Relies on queue_waiting.
SELECT q.subscription FROM {prefix}queue q JOIN (
    SELECT (SELECT w.seq FROM {prefix}queue w WHERE w.waiting_key = k.key_hash ORDER BY w.place, w.seq LIMIT 1) AS seq
    FROM ({union SELECT :key_hash AS key_hash}) AS k LIMIT 10000
) AS next ON next.seq = q.seq;
UPDATE {prefix}queue q JOIN (
    SELECT (SELECT w.seq FROM {prefix}queue w WHERE w.waiting_key = k.key_hash ORDER BY w.place, w.seq LIMIT 1) AS seq
    FROM ({union SELECT :key_hash AS key_hash}) AS k LIMIT 10000
) AS next ON next.seq = q.seq
SET q.state = 'ready', q.due_at = NULL WHERE q.state = 'waiting';
DELETE FROM {prefix}key_lock WHERE key_hash IN :key_hashes

-- name: store_results
-- In the handler's transaction: a result exists exactly when its effects do.
INSERT INTO {prefix}result (seq, result) VALUES {rows (:seq, :result)}

-- name: forget_bodies
-- For handlers with keep_body=False, in the handler's transaction; the hash stays in the ledger.
-- A large one is forgotten with the reference to it, which comes first.
UPDATE {prefix}body SET body = NULL,
    headers = CASE WHEN blob_name IS NOT NULL THEN concat('{', trim(LEADING ',' FROM substr(headers, 76))) ELSE headers END
WHERE seq IN :seqs

-- name: settle
-- Guard: the row still carries this claim; no row back means that it was taken over. A dead row that is detached no longer holds its
-- key; then the key lock is held. An isolated message that has failed without killing its process is isolated no more, unless it has killed one before.
UPDATE {prefix}queue
SET state = :state, due_at = {clock} + {microseconds delay}, attempts = attempts + 1, worker = NULL, token = NULL,
    isolation = CASE WHEN crashes > 0 THEN isolation ELSE 0 END, key_hash = CASE WHEN :detach THEN NULL ELSE key_hash END
WHERE seq = :seq AND worker = :worker AND token = :token;
SELECT :seq FROM DUAL WHERE ROW_COUNT() > 0

-- name: postpone
-- Guards: the row still carries this claim, and was not postponed as often as it may be: then it is charged. An infrastructure error: try
-- again, uncharged, each time later.
UPDATE {prefix}queue
SET state = 'retry', worker = NULL, token = NULL,
    due_at = {clock} + cast(least(:delay * pow(2, least(postponed, 20)), :longest) * 1000000 AS signed), postponed = postponed + 1
WHERE seq = :seq AND worker = :worker AND token = :token AND (:most IS NULL OR postponed < :most);
SELECT seq, (due_at - {clock}) / {second} FROM {prefix}queue WHERE seq = :seq AND ROW_COUNT() > 0

-- name: put_off
-- Guard: the row still carries this claim. Their handler pauses: nobody is charged.
SELECT seq FROM {prefix}queue WHERE seq IN :seqs AND worker = :worker AND token = :token FOR UPDATE;
UPDATE {prefix}queue SET state = 'retry', due_at = {clock} + {microseconds delay}, worker = NULL, token = NULL
WHERE seq IN :seqs AND worker = :worker AND token = :token

-- name: unclaim
-- Guard: the row still carries this claim. Nobody is charged.
SELECT seq FROM {prefix}queue WHERE seq IN :seqs AND worker = :worker AND token = :token FOR UPDATE;
UPDATE {prefix}queue SET worker = NULL, token = NULL WHERE seq IN :seqs AND worker = :worker AND token = :token

-- name: unclaim_tokens
-- Guard: the row still carries one of these claims. Nobody is charged. Relies on queue_claimed.
SELECT seq FROM {prefix}queue WHERE worker = :worker AND token IN :tokens FOR UPDATE;
UPDATE {prefix}queue SET worker = NULL, token = NULL WHERE worker = :worker AND token IN :tokens

-- name: add_worker
-- Guard: the name is nobody's; no row back means that it is taken. What the last process of this name left
-- was taken over in the same transaction.
INSERT INTO {prefix}worker (id, process, host, pid, code_version, handles, lanes, inline, started_at, alive_until)
VALUES (:worker, :process, :host, :pid, :code_version, :handles, :lanes, :inline, {clock}, {clock} + {microseconds lease})
ON DUPLICATE KEY UPDATE pid = {prefix}worker.pid;
SELECT id FROM {prefix}worker WHERE id = :worker

-- name: heartbeat
-- Guard: the row is still there and still this process's; no row back means that it was declared dead and must register anew.
UPDATE {prefix}worker SET alive_until = {clock} + {microseconds lease}, inline = inline OR :inline, circuits = :circuits WHERE id = :worker AND process = :process;
SELECT id FROM {prefix}worker WHERE id = :worker AND process = :process

-- name: lapsed_workers
-- Locked, so that one process at a time takes a worker over; one that is claiming right now is skipped. With them those that have claims and
-- no row any more: in a cluster of several writers a claim on one server may have passed by the take-over on another.
SELECT id, inline, pid, host FROM {prefix}worker
WHERE alive_until < {now} AND id <> :worker ORDER BY id LIMIT 10 {skipping};
SELECT DISTINCT q.worker, 0, 0, '' FROM {prefix}queue q
WHERE q.worker IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {prefix}worker w WHERE w.id = q.worker) LIMIT 10

-- name: worker_of_process
-- For a supervisor that saw its child die, and for a process that begins under the name of another. With those that it registered as
-- later, after it had been declared dead. Waits for a claim that is being committed.
SELECT id, inline, pid, host FROM {prefix}worker
WHERE process = :process OR left(process, char_length(:process) + 1) = concat(:process, '#') FOR UPDATE

-- name: handled_elsewhere
-- Whether a worker that lives has a handler for a version. A handful of rows.
SELECT EXISTS (SELECT 1 FROM {prefix}worker WHERE NOT inline AND alive_until > {now} AND instr(handles, :line) > 0)

-- name: lock_worker
-- Before its claims come off: waits for a claim that is being committed and keeps the next one from beginning.
SELECT id FROM {prefix}worker WHERE id = :worker FOR UPDATE

-- name: claimed_by
-- What a dead worker left behind, locked. Relies on queue_claimed.
SELECT q.seq, q.attempts, q.crashes, q.key_hash, s.on_dead, q.isolation
FROM {prefix}queue q JOIN {prefix}subscription s ON s.id = q.subscription
WHERE q.worker = :worker AND q.token IS NOT NULL ORDER BY q.seq FOR UPDATE

-- name: take_over
-- Guard: the worker row is locked by this transaction, and so are its messages. Alone: charged, and dead at the limit; several: nobody is
-- charged, all are isolated, in groups (of a level that is given), then apart (2), then alone (1).
SELECT seq, CASE WHEN :charge = 1 OR isolation IN (1, 2) THEN 1 WHEN isolation = 0 THEN :level ELSE 2 END
FROM {prefix}queue WHERE worker = :worker AND token IS NOT NULL;
UPDATE {prefix}queue
SET isolation = CASE WHEN :charge = 1 OR isolation IN (1, 2) THEN 1 WHEN isolation = 0 THEN :level ELSE 2 END,
    state = CASE WHEN crashes + :charge >= :crash_limit THEN 'dead' ELSE state END,
    due_at = CASE WHEN crashes + :charge >= :crash_limit THEN NULL ELSE due_at END,
    crashes = crashes + :charge, worker = NULL, token = NULL
WHERE worker = :worker AND token IS NOT NULL

-- name: unhandled_types
-- Types that wait for somebody who knows them, and those of a subscription that wait for its key function. Relies on queue_unhandled:
-- from one type to the next, however many messages wait. TiDB, which does not take the smallest in a recursive query, reads that index.
WITH RECURSIVE waiting (type) AS (
    SELECT min(unhandled_type) FROM {prefix}queue
    UNION ALL
    SELECT (SELECT min(q.unhandled_type) FROM {prefix}queue q WHERE q.unhandled_type > w.type) FROM waiting w WHERE w.type IS NOT NULL
)
SELECT w.type, NULL FROM waiting w WHERE EXISTS (
    SELECT 1 FROM {prefix}queue q WHERE q.unhandled_type = w.type AND q.subscription IS NULL)
UNION ALL
SELECT w.type, s.id FROM waiting w JOIN {prefix}subscription s ON s.type = w.type WHERE EXISTS (
    SELECT 1 FROM {prefix}queue q WHERE q.unhandled_type = w.type AND q.subscription = s.id);
SELECT DISTINCT unhandled_type, subscription FROM {prefix}queue FORCE INDEX ({prefix}queue_unhandled) WHERE unhandled_type IS NOT NULL

-- name: unhandled
-- Guard: rows locked, state still unhandled. Waits for another fan-out instead of passing it by: the rows it makes come first in their keys.
-- The ledger row too, so that no case of quarantine is opened under a number that goes. Relies on queue_unhandled: what others wait for is
-- not looked at; nor is what was refused a moment ago. A larger body stays behind, to be fetched by itself (body_of).
SELECT seq FROM {prefix}queue FORCE INDEX ({prefix}queue_unhandled)
WHERE unhandled_type = :type AND subscription IS NULL AND (seq IN :passed) IS NOT TRUE ORDER BY unhandled_from LIMIT :limit;
SELECT q.seq FROM {prefix}subscription s STRAIGHT_JOIN {prefix}queue q FORCE INDEX ({prefix}queue_unhandled)
  ON q.unhandled_type = s.type AND q.subscription = s.id
WHERE s.id = :subscription AND (q.seq IN :passed) IS NOT TRUE ORDER BY q.unhandled_from LIMIT :limit;
SELECT q.seq, b.source, b.id, b.type, b.version, b.key, b.headers, CASE WHEN length(b.body) <= 262144 THEN b.body END, l.consumer, l.id, l.hash, q.place, q.subscription, b.position, q.key_hash, b.due_at
FROM {prefix}queue q JOIN {prefix}ledger l ON l.seq = q.seq JOIN {prefix}body b ON b.seq = q.seq
WHERE q.seq IN :seqs AND q.state = 'unhandled' ORDER BY q.seq FOR UPDATE

-- name: adopt
-- Guard: state still unhandled. The row keeps its number, so it keeps its place in the order. Where its key is still not to be found, it
-- goes on waiting, for its subscription alone.
UPDATE {prefix}queue
SET state = CASE WHEN :unplaced IS NOT NULL THEN 'unhandled' WHEN :due_at IS NULL THEN 'ready' ELSE 'scheduled' END, type = :unplaced,
    due_at = CASE WHEN :unplaced IS NULL THEN :due_at END, subscription = :subscription, key_hash = :key_hash,
    slot = coalesce(:slot, slot), sequence = :sequence, place = coalesce(:place, place), postponed = 0
WHERE seq = :seq AND state = 'unhandled';
SELECT :seq FROM DUAL WHERE ROW_COUNT() > 0

-- name: bring_forward
-- Guard: state still unhandled. The same message came to another service before: it has come when that one did.
UPDATE {prefix}queue SET place = least(place, :place), sequence = least(coalesce(sequence, seq), :since)
WHERE seq = :seq AND state = 'unhandled'

-- name: mark_refused
-- Guard: state still unhandled. The database refuses the rows of its consumers: it stays, and holds up no others but those of its key.
UPDATE {prefix}queue SET postponed = postponed + 1, key_hash = coalesce(:key_hash, key_hash) WHERE seq = :seq AND state = 'unhandled';
SELECT :seq FROM DUAL WHERE ROW_COUNT() > 0

-- name: refused
-- How many messages are marked as refused, and the first of them. Relies on queue_unhandled.
SELECT count(*), min(seq) FROM {prefix}queue WHERE unhandled_type IS NOT NULL AND postponed > 0

-- name: hand_on
-- Before an unhandled row goes: its copies, its cases in quarantine and what people did to it belong to the row that replaces it.
INSERT INTO {prefix}duplicate (seq, copies, first_at, last_at)
SELECT :heir, d.copies, d.first_at, d.last_at FROM {prefix}duplicate d WHERE d.seq = :seq
ON DUPLICATE KEY UPDATE copies = {prefix}duplicate.copies + VALUES(copies), first_at = VALUES(first_at);
DELETE FROM {prefix}duplicate WHERE seq = :seq;
DELETE x FROM {prefix}quarantine x JOIN (SELECT hash, type_hash FROM {prefix}quarantine WHERE seq = :heir LIMIT 10000) AS h
  ON h.hash = x.hash AND h.type_hash = x.type_hash WHERE x.seq = :seq;
UPDATE {prefix}quarantine SET seq = :heir WHERE seq = :seq;
UPDATE {prefix}quarantine SET accepted_seq = :heir WHERE accepted_seq = :seq;
UPDATE {prefix}audit SET seq = :heir WHERE seq = :seq

-- name: remove_unhandled
-- The service's own row of a type that only other consumers want; they have rows of their own by now.
DELETE FROM {prefix}body WHERE seq = :seq AND EXISTS (SELECT 1 FROM {prefix}queue WHERE seq = :seq AND state = 'unhandled');
DELETE FROM {prefix}ledger WHERE seq = :seq AND EXISTS (SELECT 1 FROM {prefix}queue WHERE seq = :seq AND state = 'unhandled');
DELETE FROM {prefix}queue WHERE seq = :seq AND state = 'unhandled'

-- name: redrive
-- Guard: state is dead, so a second click changes nothing, and its key is as it was seen. The budget starts anew, the history stays.
UPDATE {prefix}queue SET state = 'ready', attempts = 0, crashes = 0, postponed = 0, key_hash = :key_hash
WHERE seq = :seq AND state = 'dead' AND key_hash <=> :seen_key;
SELECT :seq FROM DUAL WHERE ROW_COUNT() > 0

-- name: key_of
-- Read without a lock: the key lock comes before any row lock of whoever removes a row.
SELECT q.key_hash, b.key, b.aggregate, c.name, q.outgoing, b.destination, q.sequence
FROM {prefix}queue q JOIN {prefix}body b ON b.seq = q.seq JOIN {prefix}ledger l ON l.seq = q.seq JOIN {prefix}name c ON c.id = l.consumer
WHERE q.seq = :seq

-- name: detach
-- Guard: dead, and the first of its key where that is counted (giving up a later number would give up the earlier ones too). Under the
-- key lock; the row stays dead and its key goes on without it.
UPDATE {prefix}queue q JOIN (
    SELECT o.seq FROM {prefix}queue o
    WHERE o.seq = :seq AND o.state = 'dead' AND o.key_hash IS NOT NULL
      AND (o.sequence IS NULL OR NOT EXISTS (
           SELECT 1 FROM {prefix}queue e JOIN {prefix}body b ON b.seq = e.seq JOIN {prefix}body mine ON mine.seq = :seq
           WHERE e.key_hash = o.key_hash AND (e.place, e.seq) < (o.place, o.seq) AND b.key = mine.key))
    LIMIT 1
) AS first ON first.seq = q.seq
SET q.key_hash = NULL WHERE q.state = 'dead';
SELECT :seq FROM DUAL WHERE ROW_COUNT() > 0

-- name: advance
-- The numbers of a key that are applied, in the transaction that applies or gives them up.
INSERT INTO {prefix}progress (consumer, aggregate, `key`, applied)
SELECT l.consumer, coalesce(b.aggregate, ''), b.key, max(q.sequence)
FROM {prefix}queue q JOIN {prefix}body b ON b.seq = q.seq JOIN {prefix}ledger l ON l.seq = q.seq
WHERE q.seq IN :seqs AND q.sequence IS NOT NULL AND b.key IS NOT NULL
GROUP BY l.consumer, coalesce(b.aggregate, ''), b.key ORDER BY 1, 2, 3
ON DUPLICATE KEY UPDATE applied = greatest({prefix}progress.applied, VALUES(applied))

-- name: retreat
-- Guard: the number of this message was the last one given up, and nobody runs a later one of its key. Under the key lock.
UPDATE {prefix}progress p JOIN {prefix}ledger l ON l.consumer = p.consumer JOIN {prefix}body b ON b.seq = l.seq JOIN {prefix}queue q ON q.seq = l.seq
SET p.applied = p.applied - 1
WHERE l.seq = :seq AND p.aggregate = coalesce(b.aggregate, '') AND p.key = b.key AND q.sequence = p.applied
  AND NOT EXISTS (SELECT 1 FROM {prefix}queue n JOIN {prefix}body o ON o.seq = n.seq
                  WHERE n.key_hash = :key_hash AND n.token IS NOT NULL AND o.key = b.key);
SELECT :seq FROM DUAL WHERE ROW_COUNT() > 0

-- name: advance_inline
-- As advance, for a message that never had a queue row.
INSERT INTO {prefix}progress (consumer, aggregate, `key`, applied) VALUES (:consumer, :aggregate, :key, :sequence)
ON DUPLICATE KEY UPDATE applied = greatest(applied, VALUES(applied))

-- name: progress
-- How far the keys of these rows are. Under their key locks, so it stays true until the commit.
SELECT q.seq, coalesce(p.applied, 0)
FROM {prefix}queue q JOIN {prefix}body b ON b.seq = q.seq JOIN {prefix}ledger l ON l.seq = q.seq
LEFT JOIN {prefix}progress p ON p.consumer = l.consumer AND p.aggregate = coalesce(b.aggregate, '') AND p.key = b.key
WHERE q.seq IN :seqs

-- name: hold
-- Guard: the row carries this claim. A number is missing before it: wait for that, until the deadline.
UPDATE {prefix}queue SET state = 'waiting', due_at = {clock} + {microseconds delay}, worker = NULL, token = NULL
WHERE seq = :seq AND worker = :worker AND token = :token;
SELECT :seq FROM DUAL WHERE ROW_COUNT() > 0

-- name: intend
-- Guard: primary key. Committed before the call, so that whatever happens to the handler there is a trace of it.
INSERT INTO {prefix}effect (`key`, seq, name, worker, started_at) VALUES (:key, :seq, :name, :worker, {clock})
ON DUPLICATE KEY UPDATE name = {prefix}effect.name;
SELECT :key FROM DUAL WHERE ROW_COUNT() = 1

-- name: effect
-- What is known of an effect, and for how long. It belongs to whoever asks now: the attempt that began it may have been inline, and
-- undone with its number.
UPDATE {prefix}effect SET seq = :seq WHERE `key` = :key;
SELECT done, result, ({clock} - started_at) / {second} FROM {prefix}effect WHERE `key` = :key

-- name: effect_undone
-- Guard: not done. It did not happen, so it may be tried again.
DELETE FROM {prefix}effect WHERE `key` = :key AND NOT done;
SELECT :key FROM DUAL WHERE ROW_COUNT() > 0

-- name: lock_effect
-- Whoever asks about it (effect) waits until a person's word is committed.
SELECT `key` FROM {prefix}effect WHERE `key` = :key FOR UPDATE

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
UPDATE {prefix}effect SET done = true, result = :result, finished_at = {clock} WHERE `key` = :key AND NOT done;
SELECT :key FROM DUAL WHERE ROW_COUNT() > 0

-- name: retry_revised
-- Guard: waits for another try, and is not claimed; an operator has corrected its body, so the budget starts anew.
UPDATE {prefix}queue SET state = 'ready', due_at = NULL, attempts = 0, crashes = 0, postponed = 0
WHERE seq = :seq AND token IS NULL AND state = 'retry';
SELECT :seq FROM DUAL WHERE ROW_COUNT() > 0

-- name: revise_body
-- Guard: the body is the one that was seen, so that of two operators the second sees what the first has written. By the primary key.
UPDATE {prefix}body SET body = :body, headers = :headers
WHERE seq = :seq AND body = :seen_body AND coalesce(headers, '') = :seen_headers;
SELECT :seq FROM DUAL WHERE ROW_COUNT() > 0

-- name: make_due
-- Guard: still due later and not claimed; a person wants it now. What waits for a number has a deadline, which stays.
UPDATE {prefix}queue SET due_at = {clock}
WHERE seq = :seq AND token IS NULL AND state IN ('retry', 'scheduled') AND due_at > {now};
SELECT :seq FROM DUAL WHERE ROW_COUNT() > 0

-- name: resolve_quarantine
-- Guard: still open, so that two operators cannot decide differently.
UPDATE {prefix}quarantine SET resolution = :resolution, accepted_seq = :accepted_seq WHERE id = :case_id AND resolution IS NULL;
SELECT :case_id FROM DUAL WHERE ROW_COUNT() > 0

-- name: drop_quarantine
-- Guard: still open.
DELETE FROM {prefix}quarantine WHERE id = :case_id AND resolution IS NULL;
SELECT :case_id FROM DUAL WHERE ROW_COUNT() > 0

-- name: discard
-- Guard: the row is not claimed, its key is still the one whose lock is held, it is the first of its key where that is counted, and
-- still scheduled where only that is meant.
DELETE q FROM {prefix}queue q JOIN (
    SELECT o.seq FROM {prefix}queue o
    WHERE o.seq = :seq AND o.token IS NULL AND o.key_hash <=> :key_hash AND (o.state = 'scheduled' OR NOT :scheduled)
      AND (o.sequence IS NULL OR NOT EXISTS (
           SELECT 1 FROM {prefix}queue e JOIN {prefix}body b ON b.seq = e.seq JOIN {prefix}body mine ON mine.seq = :seq
           WHERE e.key_hash = o.key_hash AND (e.place, e.seq) < (o.place, o.seq) AND b.key = mine.key))
    LIMIT 1
) AS first ON first.seq = q.seq
WHERE q.token IS NULL AND q.key_hash <=> :key_hash;
SELECT :seq FROM DUAL WHERE ROW_COUNT() > 0

-- name: keep_first_types
-- Some of the open cases of a source and a type whose bytes are the first ones, so that only the type or its version differs: decided
-- for the first, with their lines in the audit. Guard: still open.
SELECT x.seq, x.id FROM {prefix}quarantine x JOIN {prefix}ledger l ON l.seq = x.seq JOIN {prefix}name n ON n.id = l.source
WHERE x.resolution IS NULL AND x.hash = l.hash AND n.name = :source AND x.type = :type
ORDER BY x.id LIMIT :limit FOR UPDATE;
INSERT INTO {prefix}audit (at, actor, action, seq, reason)
SELECT {clock}, :actor, 'keep-first', x.seq, :reason FROM {prefix}quarantine x WHERE x.id IN :cases AND x.resolution IS NULL;
UPDATE {prefix}quarantine SET resolution = 'keep-first' WHERE id IN :cases AND resolution IS NULL

-- name: declare_source
-- How late a source may redeliver, as the newest program says.
INSERT INTO {prefix}source (source, redelivers_seconds) SELECT id, :seconds FROM {prefix}name WHERE name = :name
ON DUPLICATE KEY UPDATE redelivers_seconds = :seconds

-- name: take_turn
-- Guard: the turn is due; whoever moves it on has it, everybody else gets no row.
UPDATE {prefix}maintenance SET due_at = {clock} + {microseconds every} WHERE task = :task AND due_at <= {now};
SELECT :task FROM DUAL WHERE ROW_COUNT() > 0

-- name: add_poll
-- The row of a polled API, due at once; fine when it is there.
INSERT INTO {prefix}poll (source, number, due_at, failures) VALUES (:source, 0, {clock}, 0)
ON DUPLICATE KEY UPDATE number = {prefix}poll.number

-- name: take_poll
-- Guard: the turn is due (what a process that is gone had is due after its patience), or nobody has it. Relies on the primary key.
UPDATE {prefix}poll SET due_at = {clock} + {microseconds patience}, token = :token
WHERE source = :source AND (due_at <= {now} OR (:early AND token IS NULL));
SELECT `cursor`, number, hash, failures FROM {prefix}poll WHERE source = :source AND token = :token AND ROW_COUNT() > 0

-- name: keep_poll
-- Guard: the turn is still ours, and nothing was stored since we looked. In the transaction that stores the response.
UPDATE {prefix}poll SET `cursor` = :cursor, number = :next, hash = :hash, due_at = {clock} + {microseconds patience}
WHERE source = :source AND token = :token AND number = :number;
SELECT :next FROM DUAL WHERE ROW_COUNT() > 0

-- name: referred
-- Which of these blobs are referred to. Relies on body_blob.
SELECT DISTINCT blob_name FROM {prefix}body WHERE blob_name IN :names

-- name: sign_out
-- Guard: the primary key; a session ends once.
INSERT INTO {prefix}ended_session (session, ends_at) VALUES (:session, {clock} + {microseconds seconds})
ON DUPLICATE KEY UPDATE ends_at = {prefix}ended_session.ends_at

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
    ({now} - least(
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
  AND (:type IS NULL OR b.type = :type)
  AND (:key IS NULL OR b.key = :key)
  AND (:source IS NULL OR n.name = :source)
  AND (:before IS NULL OR l.seq < :before)
  AND (:since IS NULL OR l.received_at >= :since)
  AND (:until IS NULL OR l.received_at < :until)
  AND (:fingerprint IS NULL OR :fingerprint = (
       SELECT a.fingerprint FROM {prefix}attempt a WHERE a.seq = l.seq ORDER BY a.id DESC LIMIT 1))
HAVING (:status IS NULL OR status = :status)
ORDER BY l.seq DESC LIMIT :limit

-- name: show_run
-- When, by whom and with which code it was finished. Relies on run_seq.
SELECT finished_at, worker, code_version, messages
FROM {prefix}run
WHERE first_seq <= :seq AND last_seq >= :seq AND json_contains(seqs, cast(:seq AS char))

-- name: find
-- Relies on the unique key of the ledger, once for each consumer.
SELECT l.seq FROM {prefix}ledger l JOIN {prefix}name n ON n.id = l.source
WHERE n.name = :source AND l.id >= :from_id AND l.id < :below_id
  AND l.consumer IN (SELECT consumer FROM {prefix}subscription UNION SELECT id FROM {prefix}name WHERE name = :consumer)
ORDER BY l.seq

-- name: find_id
-- An id from whatever source, for whatever consumer. Relies on the unique key of the ledger, once for each pair of names.
SELECT l.seq FROM {prefix}name c CROSS JOIN {prefix}name s STRAIGHT_JOIN {prefix}ledger l ON l.consumer = c.id AND l.source = s.id
WHERE l.id >= :from_id AND l.id < :below_id
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
-- waits behind each. Relies on queue_apart, queue_unhandled and queue_key.
SELECT q.seq, b.type, b.key, c.name, q.outgoing, b.received_at,
       (SELECT count(*) FROM {prefix}queue w
        WHERE w.key_hash = q.key_hash AND (w.place, w.seq) > (q.place, q.seq) AND w.place < 9223372036854775807) AS behind,
       (SELECT w.seq FROM {prefix}queue w
        WHERE w.key_hash = q.key_hash AND (w.place, w.seq) > (q.place, q.seq) AND w.place < 9223372036854775807 ORDER BY w.place, w.seq LIMIT 1), q.state
FROM (
    (SELECT seq, key_hash, place, outgoing, state FROM {prefix}queue WHERE apart = 0 AND key_hash IS NOT NULL)
    UNION ALL
    (SELECT seq, key_hash, place, outgoing, state FROM {prefix}queue u
    WHERE u.unhandled_type IS NOT NULL AND u.key_hash IS NOT NULL AND EXISTS (
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
-- Rows as the server estimates them, bytes with indexes.
SELECT substr(table_name, char_length('{prefix}') + 1), table_rows, data_length + index_length
FROM information_schema.tables
WHERE table_schema = database() AND table_type = 'BASE TABLE' AND left(table_name, char_length('{prefix}')) = '{prefix}'
ORDER BY 3 DESC

-- name: traffic
-- By the minute: 0 received, 1 done, 2 failed; not what goes out. From the newest rows alone, backwards in the primary keys: the cost has an end
-- however busy the last hour was.
SELECT 0, (received_at - {now}) DIV 60000000 AS minute_ago, count(*) FROM (
    SELECT received_at, consumer FROM {prefix}ledger ORDER BY seq DESC LIMIT :newest) AS received
WHERE NOT (consumer <=> (SELECT id FROM {prefix}name WHERE name = :outbox)) AND received_at > {now} - :minutes * 60000000 GROUP BY minute_ago
UNION ALL
SELECT 1, (finished_at - {now}) DIV 60000000 AS minute_ago, sum(messages) FROM (
    SELECT finished_at, messages, outgoing FROM {prefix}run ORDER BY id DESC LIMIT :newest) AS done
WHERE NOT outgoing AND finished_at > {now} - :minutes * 60000000 GROUP BY minute_ago
UNION ALL
SELECT 2, (at - {now}) DIV 60000000 AS minute_ago, count(*) FROM (
    SELECT at FROM {prefix}attempt ORDER BY id DESC LIMIT :newest) AS failed
WHERE at > {now} - :minutes * 60000000 GROUP BY minute_ago

-- name: settings
-- What the server really uses, for the doctor.
SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version', 'innodb_flush_log_at_trx_commit', 'sync_binlog', 'log_bin', 'binlog_format', 'tx_isolation',
    'transaction_isolation', 'sql_mode', 'max_allowed_packet', 'max_connections', 'read_only', 'wsrep_on', 'innodb_doublewrite',
    'lower_case_table_names', 'collation_server', 'group_replication_group_name',
    'group_replication_single_primary_mode', 'group_replication_consistency', 'tidb_txn_mode', 'tidb_enable_check_constraint');
SHOW GLOBAL STATUS WHERE Variable_name IN ('Threads_connected', 'wsrep_cluster_size')

-- name: notify
-- Nobody can be told here: whoever waits looks, and often while there is work.
SELECT 1

-- name: rotate_partition
-- Bodies are in one table here, from which old ones are deleted.
SELECT :seconds

-- name: old_partitions
-- There are none.
SELECT NULL FROM DUAL WHERE :keep IS NULL

-- name: drop_partition
-- There are none.
SELECT :archive_first FROM DUAL WHERE :partition IS NULL

-- name: next_bodies
-- The next numbers, and whether they are old. Relies on the primary key of body, whose order is that of time.
SELECT seq, received_at < {now} - {microseconds keep} FROM {prefix}body WHERE seq > :after ORDER BY seq LIMIT :limit

-- name: lock_ledger
-- What a copy with other bytes is being compared with right now is skipped; what is locked here gets no new case until the commit.
SELECT seq FROM {prefix}ledger WHERE seq IN :seqs ORDER BY seq {tried}

-- name: drop_bodies
-- Guard: nothing unfinished, dead or in an open case, looked at in a new statement after lock_ledger.
SELECT b.seq FROM {prefix}body b
WHERE b.seq IN :seqs AND NOT EXISTS (SELECT 1 FROM {prefix}queue q WHERE q.seq = b.seq)
  AND NOT EXISTS (SELECT 1 FROM {prefix}quarantine x WHERE x.seq = b.seq AND x.resolution IS NULL);
DELETE FROM {prefix}body
WHERE seq IN :seqs AND NOT EXISTS (SELECT 1 FROM {prefix}queue q WHERE q.seq = {prefix}body.seq)
  AND NOT EXISTS (SELECT 1 FROM {prefix}quarantine x WHERE x.seq = {prefix}body.seq AND x.resolution IS NULL)

-- name: forget_messages
-- Guard: nothing unfinished, dead, in an open case, with an effect of unknown outcome, or with a second body that was accepted and is
-- itself still remembered (or not archived yet, where that comes first); nothing that was finished, or that a person did something to,
-- within the retention, however long ago it came. Looked at in a new statement after lock_ledger. Everything about the message goes
-- with it, but for the lines about erasure. Relies on run_seq and audit_seq.
SELECT l.seq FROM {prefix}ledger l
WHERE l.seq IN :seqs
  AND NOT EXISTS (SELECT 1 FROM {prefix}run r
                  WHERE r.first_seq <= :highest AND r.last_seq >= :lowest AND r.finished_at >= {now} - {microseconds keep}
                    AND r.first_seq <= l.seq AND r.last_seq >= l.seq AND json_contains(r.seqs, cast(l.seq AS char)))
  AND NOT EXISTS (SELECT 1 FROM {prefix}audit a WHERE a.seq = l.seq AND a.at >= {now} - {microseconds keep})
  AND NOT (:archive_first AND EXISTS (SELECT 1 FROM {prefix}body b WHERE b.seq = l.seq))
  AND NOT EXISTS (SELECT 1 FROM {prefix}queue q WHERE q.seq = l.seq)
  AND NOT EXISTS (SELECT 1 FROM {prefix}effect e WHERE e.seq = l.seq AND NOT e.done)
  AND NOT EXISTS (SELECT 1 FROM {prefix}quarantine x WHERE x.seq = l.seq AND (
        x.resolution IS NULL OR EXISTS (SELECT 1 FROM {prefix}ledger a WHERE a.seq = x.accepted_seq)));
DELETE FROM {prefix}ledger WHERE seq IN :gone;
DELETE FROM {prefix}body WHERE seq IN :gone;
DELETE FROM {prefix}result WHERE seq IN :gone;
DELETE FROM {prefix}attempt WHERE seq IN :gone;
DELETE FROM {prefix}duplicate WHERE seq IN :gone;
DELETE FROM {prefix}quarantine WHERE seq IN :gone;
DELETE FROM {prefix}effect WHERE seq IN :gone;
DELETE FROM {prefix}audit WHERE seq IN :gone AND action <> 'erase'

-- name: forget_runs
-- Guard: none of its messages is remembered. A copy that was counted while its message was forgotten goes too.
DELETE FROM {prefix}duplicate WHERE seq < (SELECT min(seq) FROM {prefix}ledger);
SELECT r.id FROM {prefix}run r WHERE r.id IN :seqs AND NOT EXISTS (
    SELECT 1 FROM {prefix}ledger l WHERE l.seq BETWEEN r.first_seq AND r.last_seq AND json_contains(r.seqs, cast(l.seq AS char)));
DELETE FROM {prefix}run WHERE id IN :seqs AND NOT EXISTS (
    SELECT 1 FROM {prefix}ledger l WHERE l.seq BETWEEN {prefix}run.first_seq AND {prefix}run.last_seq
      AND json_contains({prefix}run.seqs, cast(l.seq AS char)))

-- name: forget_effects
-- Guard: done, long ago, and older than every message that is remembered: those take their effects along when they go. What is left was
-- processed inline, rolled back, and never came again. Relies on effect_seq. Beside them, the locks of
-- keys that only inline work has had, tried as in lock_free_keys.
DELETE FROM {prefix}audit WHERE action <> 'erase' AND seq IN (
    SELECT e.seq FROM {prefix}effect e
    WHERE e.done AND e.finished_at < {now} - {microseconds keep}
      AND e.seq < coalesce((SELECT min(l.seq) FROM {prefix}ledger l), 9223372036854775807));
DELETE FROM {prefix}effect
WHERE done AND finished_at < {now} - {microseconds keep}
  AND seq < coalesce((SELECT min(l.seq) FROM {prefix}ledger l), 9223372036854775807);
SELECT k.key_hash FROM {prefix}key_lock k WHERE NOT EXISTS (SELECT 1 FROM {prefix}queue q WHERE q.key_hash = k.key_hash) LIMIT 10000;
DELETE FROM {prefix}key_lock
WHERE key_hash IN :keys AND NOT EXISTS (SELECT 1 FROM {prefix}queue q WHERE q.key_hash = {prefix}key_lock.key_hash)

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
SELECT l.seq, (SELECT b.blob_name FROM {prefix}body b WHERE b.seq = l.seq)
FROM {prefix}ledger l
WHERE l.seq = :seq AND NOT EXISTS (SELECT 1 FROM {prefix}queue q WHERE q.seq = l.seq)
FOR UPDATE

-- name: erase
-- Under lock_finished. What says something about a person goes: body, headers, key, result, errors, results of effects, bodies in
-- quarantine (an open case is decided for the first body), also that in which this message came before it was accepted. Id and hashes stay,
-- so copies are still recognised. Relies on quarantine_copy and quarantine_accepted.
UPDATE {prefix}body SET body = NULL, headers = NULL, `key` = NULL WHERE seq = :seq;
DELETE FROM {prefix}result WHERE seq = :seq;
UPDATE {prefix}attempt SET error = '(erased)', traceback = NULL WHERE seq = :seq;
UPDATE {prefix}effect SET result = NULL WHERE seq = :seq;
UPDATE {prefix}quarantine SET body = '', headers = NULL, `key` = NULL, resolution = coalesce(resolution, 'keep-first')
WHERE seq = :seq OR accepted_seq = :seq

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
-- The commands that remove every view and table of this prefix, and with it its indexes: for inboxes that were made to be measured. Guard: only
-- what begins with the prefix.
SELECT concat('DROP ', CASE table_type WHEN 'VIEW' THEN 'VIEW' ELSE 'TABLE' END, ' `', table_name, '`') FROM information_schema.tables
WHERE table_schema = database() AND left(table_name, char_length('{prefix}')) = '{prefix}' ORDER BY table_type DESC

-- name: record_history
-- Only ever added: no process changes another one's counts.
INSERT INTO {prefix}history (level, starts_at, consumer, source, type, received, duplicates, mismatches, done, failed, dead, backlog, oldest, lateness, wait, run)
VALUES {rows (:level, coalesce(:starts_at, {clock}), :consumer, :source, :type, :received, :duplicates, :mismatches, :done, :failed, :dead,
        :backlog, :oldest, :lateness, :wait, :run)}

-- name: lock_history
-- The oldest rows of a level whose next longer time is over by so much, locked: who else would fold them waits, and finds them gone. Relies on
-- history_start.
SELECT id, level, starts_at, consumer, source, type, received, duplicates, mismatches, done, failed, dead, backlog, oldest, lateness, wait, run
FROM {prefix}history WHERE level = :level AND starts_at < ({now} - {microseconds keep}) DIV :longer * :longer
ORDER BY starts_at LIMIT :limit FOR UPDATE

-- name: history
-- What lies in the same width of time, added up, so that a quarter is read by day: a row for each day and series, not for each minute. Joined
-- texts are cut where they are longer than group_concat_max_len, for which each server has another way to set it for one statement. Relies on
-- history_start.
/*M! SET STATEMENT group_concat_max_len = 4294967295 FOR */
SELECT /*+ SET_VAR(group_concat_max_len = 4294967295) */ level, starts_at DIV :width * :width, consumer, source, type, sum(received),
       sum(duplicates), sum(mismatches), sum(done), sum(failed), sum(dead), max(backlog), max(oldest), group_concat(lateness SEPARATOR ' '),
       group_concat(wait SEPARATOR ' '), group_concat(run SEPARATOR ' ')
FROM {prefix}history WHERE level = :level AND starts_at >= :since AND starts_at < :until GROUP BY 1, 2, 3, 4, 5

-- name: keep_position
-- Guard: the database knows the part to be where the reader believes. After a failover that lost commits it does not, and then nothing is
-- kept: the reader looks, and goes back. By the primary key; one row for each part, which has one reader.
INSERT INTO {prefix}position (source, part, position, read_at)
SELECT n.id, :part, :position, {clock} FROM {prefix}name n
WHERE n.name = :source AND (:since IS NULL OR EXISTS (SELECT 1 FROM {prefix}position o WHERE o.source = n.id AND o.part = :part))
ON DUPLICATE KEY UPDATE read_at = CASE WHEN {prefix}position.position = :since THEN VALUES(read_at) ELSE {prefix}position.read_at END,
    position = CASE WHEN {prefix}position.position = :since THEN VALUES(position) ELSE {prefix}position.position END
