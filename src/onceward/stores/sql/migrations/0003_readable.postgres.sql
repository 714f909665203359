-- deploy: before
-- For people: each table that has times, with readable times, names in place of their numbers, and bytes as text. Onceward itself reads
-- none of these. See docs/schema.md.

CREATE VIEW {prefix}catalog_readable AS
SELECT one, version, to_timestamp(last_crash_at / 1000000.0) AS last_crash_at, folder
FROM {prefix}catalog;

CREATE VIEW {prefix}ledger_readable AS
SELECT seq, (SELECT n.name FROM {prefix}name n WHERE n.id = consumer) AS consumer,
       (SELECT n.name FROM {prefix}name n WHERE n.id = source) AS source, type_hash, slot,
       CASE get_byte(id, 0) WHEN 117 THEN encode(substr(id, 2, 16), 'hex')::uuid::text
            WHEN 100 THEN 'sha256:' || encode(substr(id, 2, 32), 'hex') ELSE encode(substr(id, 2), 'escape') END AS id,
       encode(hash, 'hex') AS hash, to_timestamp(received_at / 1000000.0) AS received_at
FROM {prefix}ledger;

CREATE VIEW {prefix}body_readable AS
SELECT seq, (SELECT n.name FROM {prefix}name n WHERE n.id = source) AS source, id, type, version, key, key_from, aggregate, position, headers,
       encode(body, 'escape') AS body, destination, cause, to_timestamp(received_at / 1000000.0) AS received_at,
       to_timestamp(due_at / 1000000.0) AS due_at
FROM {prefix}body;

CREATE VIEW {prefix}queue_readable AS
SELECT seq, subscription, slot, key_hash, place, sequence, outgoing, destination, state, to_timestamp(due_at / 1000000.0) AS due_at, worker, token,
       attempts, crashes, isolation, type, postponed
FROM {prefix}queue;

CREATE VIEW {prefix}run_readable AS
SELECT id, worker, token, code_version, to_timestamp(finished_at / 1000000.0) AS finished_at, first_seq, last_seq, seqs, messages, outgoing
FROM {prefix}run;

CREATE VIEW {prefix}attempt_readable AS
SELECT id, seq, attempt, kind, charged, error, traceback, worker, code_version, fingerprint, to_timestamp(at / 1000000.0) AS at
FROM {prefix}attempt;

CREATE VIEW {prefix}worker_readable AS
SELECT id, process, host, pid, code_version, handles, lanes, inline, to_timestamp(started_at / 1000000.0) AS started_at,
       to_timestamp(alive_until / 1000000.0) AS alive_until, circuits
FROM {prefix}worker;

CREATE VIEW {prefix}duplicate_readable AS
SELECT seq, copies, to_timestamp(first_at / 1000000.0) AS first_at, to_timestamp(last_at / 1000000.0) AS last_at
FROM {prefix}duplicate;

CREATE VIEW {prefix}first_seen_readable AS
SELECT (SELECT n.name FROM {prefix}name n WHERE n.id = source) AS source, encode(hash, 'hex') AS hash, id,
       to_timestamp(seen_at / 1000000.0) AS seen_at
FROM {prefix}first_seen;

CREATE VIEW {prefix}quarantine_readable AS
SELECT id, seq, encode(hash, 'hex') AS hash, type_hash, type, version, key, position, to_timestamp(due_at / 1000000.0) AS due_at, headers,
       encode(body, 'escape') AS body, copies,
       to_timestamp(first_at / 1000000.0) AS first_at, to_timestamp(last_at / 1000000.0) AS last_at, resolution, accepted_seq
FROM {prefix}quarantine;

CREATE VIEW {prefix}audit_readable AS
SELECT id, to_timestamp(at / 1000000.0) AS at, actor, action, seq, reason
FROM {prefix}audit;

CREATE VIEW {prefix}effect_readable AS
SELECT key, seq, name, result, done, worker, to_timestamp(started_at / 1000000.0) AS started_at,
       to_timestamp(finished_at / 1000000.0) AS finished_at
FROM {prefix}effect;

CREATE VIEW {prefix}poll_readable AS
SELECT (SELECT n.name FROM {prefix}name n WHERE n.id = source) AS source, cursor, number, encode(hash, 'hex') AS hash, token,
       to_timestamp(due_at / 1000000.0) AS due_at, to_timestamp(ended_at / 1000000.0) AS ended_at, failures, error
FROM {prefix}poll;

CREATE VIEW {prefix}position_readable AS
SELECT (SELECT n.name FROM {prefix}name n WHERE n.id = source) AS source, part, position, to_timestamp(read_at / 1000000.0) AS read_at
FROM {prefix}position;

CREATE VIEW {prefix}partition_readable AS
SELECT number, to_timestamp(opened_at / 1000000.0) AS opened_at, to_timestamp(closed_at / 1000000.0) AS closed_at
FROM {prefix}partition;

CREATE VIEW {prefix}maintenance_readable AS
SELECT task, to_timestamp(due_at / 1000000.0) AS due_at
FROM {prefix}maintenance;

CREATE VIEW {prefix}ended_session_readable AS
SELECT session, to_timestamp(ends_at / 1000000.0) AS ends_at
FROM {prefix}ended_session;
