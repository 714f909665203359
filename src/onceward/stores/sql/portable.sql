-- The statements that every dialect shares. Each section says which guard it carries and which index it relies on. What a database has to
-- say in its own words stands in its own file (postgres.sql, sqlite.sql), which also holds what it must say differently of these.
-- Parameters are :name, with :name::type where PostgreSQL cannot tell the type; the tokens are in stores/statements.py. A name that is
-- a reserved word somewhere is quoted.

-- name: savepoint
-- Between two handlers of a group: what was done until here stays when a later one fails.
SAVEPOINT onceward_savepoint

-- name: rollback_to_savepoint
-- Also after an error. What it undoes runs again in a later transaction, without the one that failed.
ROLLBACK TO SAVEPOINT onceward_savepoint

-- name: release_savepoint
-- Guard: the transaction is still the one in which the savepoint was made; else it is not there, and nothing that follows is sent.
RELEASE SAVEPOINT onceward_savepoint

-- name: begin_inside
-- In the transaction of a caller: what stands for its beginning. What is done from here on stays or goes as one.
SAVEPOINT onceward_inside

-- name: commit_inside
-- Guard: as release_savepoint. What was done is the caller's to commit.
RELEASE SAVEPOINT onceward_inside

-- name: rollback_inside
-- Guard: as release_savepoint. The caller's transaction is as it was before the call.
ROLLBACK TO SAVEPOINT onceward_inside

-- name: dequeue
-- Of messages that this very transaction has received and queued, which no other sees: it is done with them, or queues them anew as they are
-- by now. Guard: none is claimed, as after a commit that this transaction does not know of.
DELETE FROM {prefix}queue WHERE seq {in bigint seqs} AND token IS NULL

-- name: catalog
-- One row; the version changes whenever names a receiver relies on have changed.
SELECT version,
       coalesce(({clock} - last_crash_at) / {second}, 1e9)
FROM {prefix}catalog

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

-- name: subscribed
-- What a consumer is or was subscribed to, and how much of it is unfinished. Reads the whole queue, for an operator.
SELECT s.type, (SELECT count(*) FROM {prefix}queue q WHERE q.subscription = s.id), s.retired, s.id
FROM {prefix}subscription s JOIN {prefix}name n ON n.id = s.consumer
WHERE n.name = :consumer AND (:type::text IS NULL OR s.type = :type)
ORDER BY s.type

-- name: retire
-- Under lock_catalog. The row stays, for messages that were stored for it by receives that are under way.
UPDATE {prefix}subscription SET retired = true WHERE id {in integer subscriptions} AND NOT retired RETURNING id

-- name: unfinished_of
-- What is unfinished of some subscriptions, in order. Walks the primary key.
SELECT seq FROM {prefix}queue
WHERE subscription {in integer subscriptions} AND seq > :after ORDER BY seq LIMIT :limit

-- name: pauses
-- What is paused, and what was: a handful of rows, read as they are.
SELECT kind, name, began_at, ended_at, actor, reason, {clock} FROM {prefix}pause ORDER BY began_at

-- name: paused
-- Under the lock of the catalog's row (touch_catalog), in a new statement. Relies on the primary key.
SELECT 1 FROM {prefix}pause WHERE kind = :kind AND name = :name AND ended_at IS NULL

-- name: pause
-- Guard: there is none of it that goes on (paused).
INSERT INTO {prefix}pause (kind, name, began_at, actor, reason) VALUES (:kind, :name, {clock}, :actor, :reason)

-- name: resume
-- Guard: there is one that goes on. Relies on the primary key.
UPDATE {prefix}pause SET ended_at = {clock} WHERE kind = :kind AND name = :name AND ended_at IS NULL

-- name: forget_pauses
-- A handful of rows, read as they are.
DELETE FROM {prefix}pause WHERE ended_at < {now} - {microseconds keep}

-- name: record_use
-- Whether the handler of a type has its effects elsewhere, for people. That it uses its transaction is never taken back. A handful of rows.
UPDATE {prefix}subscription SET apart = :apart::boolean
WHERE type = :type AND consumer = (SELECT id FROM {prefix}name WHERE name = :consumer)
  AND (apart IS NULL OR (apart AND NOT :apart::boolean))

-- name: apart
-- Whose handlers have their effects elsewhere. A handful of rows.
SELECT n.name, s.type FROM {prefix}subscription s JOIN {prefix}name n ON n.id = s.consumer WHERE s.apart

-- name: ages
-- How many seconds ago these were stored: a receive that is repeated, for its answer was lost, finds its own rows so.
-- Relies on the primary key of the ledger.
SELECT seq, ({clock} - received_at) / {second} FROM {prefix}ledger WHERE seq {in bigint seqs}

-- name: outcome
-- Whether the effects of a message are committed, and what its handler returned.
SELECT q.seq IS NULL AND NOT EXISTS (SELECT 1 FROM {prefix}audit a WHERE a.seq = l.seq AND a.action = 'discard'), r.result
FROM {prefix}ledger l
LEFT JOIN {prefix}queue q ON q.seq = l.seq
LEFT JOIN {prefix}result r ON r.seq = l.seq
WHERE l.seq = :seq

-- name: first_seen
-- Guard: the key (source, hash). The first id keeps a body until the window is over; answers whose body it is.
INSERT INTO {prefix}first_seen AS s (source, hash, id, seen_at) VALUES (:source, :hash, :id, {clock})
ON CONFLICT (source, hash) DO UPDATE SET
    id = CASE WHEN s.seen_at < {now} - {microseconds window} THEN excluded.id ELSE s.id END,
    seen_at = CASE WHEN s.seen_at < {now} - {microseconds window} THEN excluded.seen_at
                   ELSE s.seen_at END
RETURNING id

-- name: body_of
-- The large body of a message, when its turn has come to run or to be placed. By the primary key.
SELECT body FROM {prefix}body WHERE seq = :seq

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

-- name: still_claimed
-- Which rows still carry one of these claims. Relies on queue_claimed.
SELECT seq FROM {prefix}queue WHERE worker = :worker AND token {in bigint tokens}

-- name: add_attempt
-- Append only: the history of what went wrong.
INSERT INTO {prefix}attempt (seq, attempt, kind, charged, error, traceback, worker, code_version, fingerprint, at)
VALUES (:seq, :attempt, :kind, :charged, :error, :traceback, :worker, :code_version,
        :fingerprint, {clock})

-- name: unclaim_tokens
-- Guard: the row still carries one of these claims. Nobody is charged.
UPDATE {prefix}queue SET worker = NULL, token = NULL
WHERE worker = :worker AND token {in bigint tokens}
RETURNING seq

-- name: add_worker
-- Guard: the name is nobody's; no row back means that it is taken. What the last process of this name left
-- was taken over in the same transaction.
INSERT INTO {prefix}worker (id, process, host, pid, code_version, handles, lanes, inline, started_at, alive_until)
VALUES (:worker, :process, :host, :pid, :code_version, :handles, :lanes, :inline, {clock},
        {clock} + {microseconds lease})
ON CONFLICT (process) DO NOTHING
RETURNING id

-- name: tokens_of
-- The tokens of the claims that a living worker has. Relies on queue_claimed.
SELECT DISTINCT token FROM {prefix}queue WHERE worker = :worker AND token IS NOT NULL

-- name: take_over
-- Guard: the worker row is locked by this transaction. Alone: charged, and dead at the limit; several: nobody is charged, all are isolated, in
-- groups (of a level that is given), then apart (2), then alone (1).
UPDATE {prefix}queue
SET worker = NULL, token = NULL,
    isolation = CASE WHEN :charge = 1 OR isolation IN (1, 2) THEN 1 WHEN isolation = 0 THEN :level ELSE 2 END,
    crashes = crashes + :charge,
    state = CASE WHEN crashes + :charge >= :crash_limit THEN 'dead' ELSE state END,
    due_at = CASE WHEN crashes + :charge >= :crash_limit THEN NULL ELSE due_at END
WHERE worker = :worker AND token IS NOT NULL
RETURNING seq, isolation

-- name: unclaim_all
-- A worker that deregisters: its claims come off uncharged.
UPDATE {prefix}queue SET worker = NULL, token = NULL WHERE worker = :worker AND token IS NOT NULL

-- name: forget_worker
-- After its claims are off, in the same transaction: from now on it cannot claim.
DELETE FROM {prefix}worker WHERE id = :worker

-- name: set_body_key
-- The key of a message that has got one, or another one; the queue row has its hash.
UPDATE {prefix}body SET "key" = :key, aggregate = :aggregate, key_from = coalesce(:key_from, key_from) WHERE seq = :seq

-- name: progress_of
-- How far a key is. Under its key lock.
SELECT applied FROM {prefix}progress WHERE consumer = :consumer AND aggregate = :aggregate AND "key" = :key

-- name: intend
-- Guard: primary key. Committed before the call, so that whatever happens to the handler there is a trace of it.
INSERT INTO {prefix}effect ("key", seq, name, worker, started_at)
VALUES (:key, :seq, :name, :worker, {clock})
ON CONFLICT ("key") DO NOTHING
RETURNING "key"

-- name: effect
-- What is known of an effect, and for how long. It belongs to whoever asks now: the attempt that began it may have been inline, and
-- undone with its number.
UPDATE {prefix}effect SET seq = :seq WHERE "key" = :key
RETURNING done, result, ({clock} - started_at) / {second}

-- name: keep_effects
-- An inline attempt was undone and its message is stored under another number: its effects stay its own. Relies on effect_seq.
UPDATE {prefix}effect SET seq = :stored WHERE seq = :seq

-- name: effect_undone
-- Guard: not done. It did not happen, so it may be tried again.
DELETE FROM {prefix}effect WHERE "key" = :key AND NOT done RETURNING "key"

-- name: effects
-- The effects of one message, or all whose outcome is not known.
SELECT e.key, e.seq, e.name, e.done, e.result, e.started_at,
       e.finished_at
FROM {prefix}effect e
WHERE (:seq::bigint IS NULL OR e.seq = :seq)
  AND (:seq::bigint IS NOT NULL OR (NOT e.done AND NOT EXISTS (
       SELECT 1 FROM {prefix}queue q WHERE q.seq = e.seq AND q.token IS NOT NULL)))
ORDER BY e.started_at LIMIT :limit

-- name: add_audit
-- In the transaction of the action itself: no action without its line, no line without its action.
INSERT INTO {prefix}audit (at, actor, action, seq, reason)
VALUES ({clock}, :actor, :action, :seq, :reason)

-- name: retry_revised
-- Guard: waits for another try, and is not claimed; an operator has corrected its body, so the budget starts anew.
UPDATE {prefix}queue SET state = 'ready', due_at = NULL, attempts = 0, crashes = 0, postponed = 0
WHERE seq = :seq AND token IS NULL AND state = 'retry'
RETURNING seq

-- name: revise_body
-- Guard: the body is the one that was seen, so that of two operators the second sees what the first has written. By the primary key.
UPDATE {prefix}body SET body = :body, headers = :headers
WHERE seq = :seq AND body = :seen_body AND coalesce(headers, '') = :seen_headers
RETURNING seq

-- name: keep_revision
-- After quarantine, which counts a copy: these bytes are the message's own. What was decided about them stays. Relies on quarantine_copy.
UPDATE {prefix}quarantine SET resolution = coalesce(resolution, 'revision'), copies = copies - 1
WHERE seq = :seq AND hash = :hash AND type_hash = :type_hash

-- name: make_due
-- Guard: still due later and not claimed; a person wants it now. What waits for a number has a deadline, which stays.
UPDATE {prefix}queue SET due_at = {clock}
WHERE seq = :seq AND token IS NULL AND state IN ('retry', 'scheduled') AND due_at > {now}
RETURNING seq

-- name: make_body_due
-- After make_due: from now on it counts how long the message has taken.
UPDATE {prefix}body SET due_at = {clock} WHERE seq = :seq AND due_at IS NOT NULL

-- name: quarantined
-- Open cases first come first.
SELECT x.id, x.seq, x.hash, x.type, x.version, x.headers, x.body, x.copies,
       x.first_at, x.last_at,
       n.name, l.id, l.hash, b.body, c.name, b.id, x.key, b.headers, b.type, b.version, x.position, x.due_at
FROM {prefix}quarantine x
JOIN {prefix}ledger l ON l.seq = x.seq
JOIN {prefix}name n ON n.id = l.source
JOIN {prefix}name c ON c.id = l.consumer
LEFT JOIN {prefix}body b ON b.seq = x.seq
WHERE x.resolution IS NULL AND (:case_id::bigint IS NULL OR x.id = :case_id)
ORDER BY x.id LIMIT :limit

-- name: resolve_quarantine
-- Guard: still open, so that two operators cannot decide differently.
UPDATE {prefix}quarantine SET resolution = :resolution, accepted_seq = :accepted_seq
WHERE id = :case_id AND resolution IS NULL
RETURNING id

-- name: drop_quarantine
-- Guard: still open.
DELETE FROM {prefix}quarantine WHERE id = :case_id AND resolution IS NULL RETURNING id

-- name: list_unfinished
-- Newest first, from the queue alone: its size is the unfinished work.
SELECT q.seq, q.status, n.name, b.id, b.type, b.version, b.key, c.name, q.attempts, q.crashes,
       b.received_at, q.due_at,
       (SELECT a.error FROM {prefix}attempt a WHERE a.seq = q.seq ORDER BY a.id DESC LIMIT 1)
FROM (
    SELECT *, CASE WHEN token IS NOT NULL THEN 'running'
                   WHEN state = 'ready' OR (state IN ('retry', 'scheduled') AND due_at <= {now}) THEN 'due'
                   WHEN state = 'retry' THEN 'retrying'
                   ELSE state END AS status
    FROM {prefix}queue
) AS q
JOIN {prefix}body b ON b.seq = q.seq
JOIN {prefix}ledger l ON l.seq = q.seq
JOIN {prefix}name n ON n.id = l.source
JOIN {prefix}name c ON c.id = l.consumer
WHERE q.outgoing = :outgoing::boolean AND (:status::text IS NULL OR q.status = :status)
  AND (:type::text IS NULL OR b.type = :type)
  AND (:key::text IS NULL OR b.key = :key)
  AND (:source::text IS NULL OR n.name = :source)
  AND (:before::bigint IS NULL OR q.seq < :before)
  AND (:since::bigint IS NULL OR b.received_at >= :since::bigint)
  AND (:until::bigint IS NULL OR b.received_at < :until::bigint)
  AND (:fingerprint::text IS NULL OR :fingerprint = (
       SELECT a.fingerprint FROM {prefix}attempt a WHERE a.seq = q.seq ORDER BY a.id DESC LIMIT 1))
ORDER BY q.seq DESC LIMIT :limit

-- name: show
-- Everything about one message that is not a list.
SELECT l.seq, n.name, l.id, c.name, l.hash, l.received_at,
       b.id, b.type, b.version, b.key, b.headers, b.body,
       CASE WHEN q.seq IS NULL THEN coalesce((
                SELECT CASE a.action WHEN 'discard' THEN 'discarded' ELSE 'skipped' END
                FROM {prefix}audit a WHERE a.seq = l.seq AND a.action IN ('discard', 'skip') LIMIT 1), 'done')
            WHEN q.token IS NOT NULL THEN 'running'
            WHEN q.state = 'ready' OR (q.state IN ('retry', 'scheduled') AND q.due_at <= {now}) THEN 'due'
            WHEN q.state = 'retry' THEN 'retrying'
            ELSE q.state END,
       coalesce(q.attempts, 0), coalesce(q.crashes, 0), q.due_at,
       q.worker, r.result, coalesce(d.copies, 0), b.destination, b.cause,
       d.first_at, d.last_at, b.due_at
FROM {prefix}ledger l
JOIN {prefix}name n ON n.id = l.source
JOIN {prefix}name c ON c.id = l.consumer
LEFT JOIN {prefix}body b ON b.seq = l.seq
LEFT JOIN {prefix}queue q ON q.seq = l.seq
LEFT JOIN {prefix}result r ON r.seq = l.seq
LEFT JOIN {prefix}duplicate d ON d.seq = l.seq
WHERE l.seq = :seq

-- name: show_attempts
-- In the order in which they failed.
SELECT attempt, kind, charged, error, traceback, worker, code_version, at, fingerprint
FROM {prefix}attempt WHERE seq = :seq ORDER BY id

-- name: show_sent
-- What the handler of this message sent. Relies on body_cause.
SELECT seq, id, type, destination FROM {prefix}body WHERE cause = :seq ORDER BY seq

-- name: show_audit
-- What people did to it.
SELECT at, actor, action, reason
FROM {prefix}audit WHERE seq = :seq ORDER BY id

-- name: ahead
-- The first unfinished message of its key, if that is another one. Relies on queue_key.
SELECT e.seq, CASE WHEN e.token IS NOT NULL THEN 'running' ELSE e.state END, b.type
FROM {prefix}queue q JOIN {prefix}queue e ON e.key_hash = q.key_hash AND (e.place, e.seq) < (q.place, q.seq)
JOIN {prefix}body b ON b.seq = e.seq
WHERE q.seq = :seq
ORDER BY e.place, e.seq LIMIT 1

-- name: show_cases
-- The other bodies that came under its id, and what became of them. Relies on quarantine_copy.
SELECT x.id, CASE WHEN x.hash = l.hash THEN 'type' ELSE 'body' END, x.type, x.version, x.copies,
       x.first_at, x.last_at,
       x.resolution, x.accepted_seq
FROM {prefix}quarantine x JOIN {prefix}ledger l ON l.seq = x.seq
WHERE x.seq = :seq ORDER BY x.id

-- name: dead_groups
-- The dead, by how their last attempt failed. Relies on the index of what is dead and on attempt_seq.
SELECT coalesce(a.fingerprint, ''), b.type, c.name, q.outgoing, count(*), min(q.seq), max(q.seq),
       min(b.received_at), max(b.received_at),
       max(coalesce(a.error, ''))
FROM {prefix}queue q
JOIN {prefix}body b ON b.seq = q.seq
JOIN {prefix}ledger l ON l.seq = q.seq
JOIN {prefix}name c ON c.id = l.consumer
LEFT JOIN {prefix}attempt a ON a.id = (SELECT max(x.id) FROM {prefix}attempt x WHERE x.seq = q.seq)
WHERE q.state = 'dead'
GROUP BY 1, 2, 3, 4 ORDER BY 5 DESC, 6 LIMIT :limit

-- name: failing
-- Messages that are tried again and have failed so often; keys that such a message has held for so many seconds, with others
-- behind it. Without what is paused. Unfinished work only, which is small. Relies on attempt_seq and queue_key.
SELECT
    (SELECT count(*) FROM {prefix}queue WHERE state = 'retry' AND attempts >= :times
        AND NOT (subscription {in integer subscriptions}) AND (destination IS NULL OR NOT (destination {in text destinations}))),
    (SELECT count(*) FROM {prefix}queue q WHERE q.state = 'retry' AND q.key_hash IS NOT NULL
        AND NOT (q.subscription {in integer subscriptions})
        AND (q.destination IS NULL OR NOT (q.destination {in text destinations}))
        AND EXISTS (SELECT 1 FROM {prefix}queue w
            WHERE w.key_hash = q.key_hash AND (w.place, w.seq) > (q.place, q.seq) AND w.place < 9223372036854775807)
        AND EXISTS (SELECT 1 FROM {prefix}attempt a
            WHERE a.seq = q.seq AND a.at <= {now} - {microseconds held}))

-- name: running
-- What is claimed, and by whom. Relies on queue_claimed.
SELECT q.seq, q.worker, b.type, b.key, c.name, q.outgoing, q.attempts + 1
FROM {prefix}queue q
JOIN {prefix}body b ON b.seq = q.seq
JOIN {prefix}ledger l ON l.seq = q.seq
JOIN {prefix}name c ON c.id = l.consumer
WHERE q.token IS NOT NULL ORDER BY q.seq LIMIT :limit

-- name: oldest
-- Since when messages are remembered, and since when with their bodies. Relies on the primary keys, whose order is that of time.
SELECT (SELECT received_at FROM {prefix}ledger ORDER BY seq LIMIT 1),
       (SELECT received_at FROM {prefix}body ORDER BY seq LIMIT 1),
       (SELECT nullif(due_at, 0) FROM {prefix}maintenance WHERE task = 'prune')

-- name: audit
-- What people did, newest first. Walks the primary key backwards.
SELECT id, at, actor, action, seq, reason FROM {prefix}audit
WHERE :before::bigint IS NULL OR id < :before ORDER BY id DESC LIMIT :limit

-- name: workers
-- Who is running, and how much of it.
SELECT w.id, w.process, w.host, w.pid, w.code_version, w.inline, w.started_at,
       (w.alive_until - {clock}) / {second},
       (SELECT count(*) FROM {prefix}queue q WHERE q.worker = w.id AND q.token IS NOT NULL),
       w.lanes, w.handles, coalesce(w.circuits, '')
FROM {prefix}worker w ORDER BY w.started_at, w.id

-- name: unserved
-- Due work by subscription and destination, and how old the oldest of each is: for the doctor to compare with who is running.
SELECT s.type, n.name, g.destination, g.number, ({clock} - coalesce(b.due_at, b.received_at)) / {second}
FROM (
    SELECT subscription, destination, count(*) AS number, min(seq) AS oldest FROM {prefix}queue
    WHERE (state = 'ready' OR (state = 'scheduled' AND due_at <= {now})) AND token IS NULL GROUP BY subscription, destination
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
           WHERE e.key_hash = q.key_hash AND e.place < 9223372036854775807 AND (e.state <> 'waiting' OR e.due_at IS NOT NULL)))
   OR (q.token IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {prefix}worker w WHERE w.id = q.worker))

-- name: declare_source
-- How late a source may redeliver, as the newest program says.
INSERT INTO {prefix}source AS s (source, redelivers_seconds)
SELECT id, :seconds::float8 FROM {prefix}name WHERE name = :name
ON CONFLICT (source) DO UPDATE SET redelivers_seconds = excluded.redelivers_seconds
WHERE s.redelivers_seconds <> excluded.redelivers_seconds

-- name: latest_source
-- The source that redelivers latest, for whoever is about to forget ids.
SELECT n.name, s.redelivers_seconds
FROM {prefix}source s JOIN {prefix}name n ON n.id = s.source
ORDER BY s.redelivers_seconds DESC, n.name LIMIT 1

-- name: take_turn
-- Guard: the turn is due; whoever moves it on has it, everybody else gets no row.
UPDATE {prefix}maintenance SET due_at = {clock} + {microseconds every}
WHERE task = :task AND due_at <= {now}
RETURNING task

-- name: give_turn
-- There is more to do: whoever looks next goes on.
UPDATE {prefix}maintenance SET due_at = {clock} WHERE task = :task

-- name: next_ledger
-- The next numbers, and whether they are old. Relies on the primary key of the ledger, whose order is nearly that of time.
SELECT seq, received_at < {now} - {microseconds keep}
FROM {prefix}ledger WHERE seq > :after ORDER BY seq LIMIT :limit

-- name: next_runs
-- The next runs, and whether they are old. Relies on the primary key of run, whose order is nearly that of time.
SELECT id, finished_at < {now} - {microseconds keep}
FROM {prefix}run WHERE id > :after ORDER BY id LIMIT :limit

-- name: cases_after
-- The bodies in quarantine, open or decided, under the number of the message whose id they came with.
SELECT x.id, x.seq, x.type, n.name, x.key, x.headers, x.body,
       CASE WHEN q.seq IS NULL THEN 'finished' WHEN q.token IS NOT NULL THEN 'running' ELSE q.state END
FROM {prefix}quarantine x JOIN {prefix}ledger l ON l.seq = x.seq JOIN {prefix}name n ON n.id = l.source
LEFT JOIN {prefix}queue q ON q.seq = x.seq
WHERE x.id > :after
ORDER BY x.id LIMIT :limit

-- name: add_poll
-- The row of a polled API, due at once; fine when it is there.
INSERT INTO {prefix}poll (source, number, due_at, failures) VALUES (:source, 0, {clock}, 0)
ON CONFLICT (source) DO NOTHING

-- name: take_poll
-- Guard: the turn is due (what a process that is gone had is due after its patience), or nobody has it. Relies on the primary key.
UPDATE {prefix}poll SET token = :token, due_at = {clock} + {microseconds patience}
WHERE source = :source AND (due_at <= {now} OR (:early::boolean AND token IS NULL))
RETURNING "cursor", number, hash, failures

-- name: poll_left
-- For how many seconds the turn is not due.
SELECT (due_at - {clock}) / {second} FROM {prefix}poll WHERE source = :source

-- name: keep_poll
-- Guard: the turn is still ours, and nothing was stored since we looked. In the transaction that stores the response.
UPDATE {prefix}poll SET "cursor" = :cursor, number = :next, hash = :hash,
       due_at = {clock} + {microseconds patience}
WHERE source = :source AND token = :token AND number = :number
RETURNING number

-- name: poll_state
-- How far our own turn has come; no row when it is not ours any more.
SELECT number FROM {prefix}poll WHERE source = :source AND token = :token

-- name: end_poll
-- Guard: the turn is still ours.
UPDATE {prefix}poll SET token = NULL, due_at = {clock} + {microseconds wait},
       ended_at = {clock}, failures = :failures, error = :error
WHERE source = :source AND token = :token

-- name: polls
-- Every polled API: how far it is, when it is due, and how it went last. A handful of rows.
SELECT n.name, p.cursor, p.number, p.token IS NOT NULL, (p.due_at - {clock}) / {second},
       p.ended_at, p.failures, p.error
FROM {prefix}poll p JOIN {prefix}name n ON n.id = p.source ORDER BY n.name

-- name: blob_folder
-- The part of a blob store that belongs to these tables, so that several may share one.
SELECT folder FROM {prefix}catalog

-- name: referred
-- Which of these blobs are referred to. Relies on body_blob, whose condition and expression are these.
SELECT DISTINCT substr(headers, 19, 56) FROM {prefix}body
WHERE substr(headers, 1, 18) = '{"onceward-blob":"' AND substr(headers, 19, 56) {in text names}

-- name: sign_out
-- Guard: the primary key; a session ends once.
INSERT INTO {prefix}ended_session (session, ends_at)
VALUES (:session, {clock} + {microseconds seconds})
ON CONFLICT (session) DO NOTHING

-- name: forget_sessions
-- Beside each new one, so that the table holds what ended within one session's time: a handful of rows, read as they are.
DELETE FROM {prefix}ended_session WHERE ends_at < {now}

-- name: signed_out
-- Relies on the primary key.
SELECT 1 FROM {prefix}ended_session WHERE session = :session

-- name: drop_history
-- Of rows that are locked, and folded into others in the same transaction. Relies on the primary key.
DELETE FROM {prefix}history WHERE id {in bigint ids}

-- name: forget_history
-- Relies on history_start.
DELETE FROM {prefix}history WHERE level = :level AND starts_at < {now} - {microseconds keep}

-- name: history
-- What lies in the same width of time, added up, so that a quarter is read by day: a row for each day and series, not for each minute. Relies
-- on history_start.
SELECT level, starts_at / :width::bigint * :width::bigint, consumer, source, type, sum(received), sum(duplicates), sum(mismatches), sum(done),
       sum(failed), sum(dead), max(backlog), max(oldest), {joined lateness}, {joined wait}, {joined run}
FROM {prefix}history WHERE level = :level AND starts_at >= :since AND starts_at < :until GROUP BY 1, 2, 3, 4, 5

-- name: keep_position
-- Guard: the database knows the part to be where the reader believes. After a failover that lost commits it does not, and then nothing is
-- kept: the reader looks, and goes back. By the primary key; one row for each part, which has one reader.
INSERT INTO {prefix}position AS p (source, part, position, read_at)
SELECT n.id, :part::text, :position::text, {clock} FROM {prefix}name n
WHERE n.name = :source AND (:since::text IS NULL OR EXISTS (SELECT 1 FROM {prefix}position o WHERE o.source = n.id AND o.part = :part))
ON CONFLICT (source, part) DO UPDATE SET position = excluded.position, read_at = excluded.read_at
WHERE p.position = :since

-- name: positions
-- How far the parts of a source were read: a handful of rows, by the primary key.
SELECT p.part, p.position FROM {prefix}position p
WHERE p.source = (SELECT id FROM {prefix}name WHERE name = :source)
