-- deploy: before
-- For people: each table that has times, with readable times, names in place of their numbers, and bytes as text. Onceward itself reads
-- none of these. See docs/schema.md.

CREATE OR REPLACE VIEW {prefix}catalog_readable AS
SELECT one, version, from_unixtime(last_crash_at / 1000000) AS last_crash_at, folder
FROM {prefix}catalog;

CREATE OR REPLACE VIEW {prefix}ledger_readable AS
SELECT seq, (SELECT n.name FROM {prefix}name n WHERE n.id = consumer) AS consumer,
       (SELECT n.name FROM {prefix}name n WHERE n.id = source) AS source, type_hash, slot,
       CASE substr(id, 1, 1) WHEN 'u' THEN lower(hex(substr(id, 2, 16)))
            WHEN 'd' THEN concat('sha256:', lower(hex(substr(id, 2, 32)))) ELSE convert(substr(id, 2) USING utf8mb4) END AS id,
       lower(hex(hash)) AS hash, from_unixtime(received_at / 1000000) AS received_at, receipt
FROM {prefix}ledger;

CREATE OR REPLACE VIEW {prefix}body_readable AS
SELECT seq, (SELECT n.name FROM {prefix}name n WHERE n.id = source) AS source, id, type, version, `key`, key_from, aggregate, position, headers,
       convert(body USING utf8mb4) AS body, destination, cause, from_unixtime(received_at / 1000000) AS received_at,
       from_unixtime(due_at / 1000000) AS due_at, blob_name
FROM {prefix}body;

CREATE OR REPLACE VIEW {prefix}queue_readable AS
SELECT seq, subscription, slot, key_hash, place, sequence, outgoing, destination, state,
       from_unixtime(due_at / 1000000) AS due_at, worker, token, attempts, crashes, isolation, type, postponed,
       free_seq, free_due, apart, waiting_key, unhandled_type, unhandled_from
FROM {prefix}queue;

CREATE OR REPLACE VIEW {prefix}run_readable AS
SELECT id, worker, token, code_version, from_unixtime(finished_at / 1000000) AS finished_at, first_seq, last_seq,
       seqs, messages, outgoing
FROM {prefix}run;

CREATE OR REPLACE VIEW {prefix}attempt_readable AS
SELECT id, seq, attempt, kind, charged, error, traceback, worker, code_version, fingerprint,
       from_unixtime(at / 1000000) AS at
FROM {prefix}attempt;

CREATE OR REPLACE VIEW {prefix}worker_readable AS
SELECT id, process, host, pid, code_version, handles, lanes, inline,
       from_unixtime(started_at / 1000000) AS started_at,
       from_unixtime(alive_until / 1000000) AS alive_until, circuits
FROM {prefix}worker;

CREATE OR REPLACE VIEW {prefix}duplicate_readable AS
SELECT seq, copies, from_unixtime(first_at / 1000000) AS first_at,
       from_unixtime(last_at / 1000000) AS last_at
FROM {prefix}duplicate;

CREATE OR REPLACE VIEW {prefix}first_seen_readable AS
SELECT (SELECT n.name FROM {prefix}name n WHERE n.id = source) AS source, lower(hex(hash)) AS hash, id,
       from_unixtime(seen_at / 1000000) AS seen_at
FROM {prefix}first_seen;

CREATE OR REPLACE VIEW {prefix}quarantine_readable AS
SELECT id, seq, lower(hex(hash)) AS hash, type_hash, type, version, `key`, position, from_unixtime(due_at / 1000000) AS due_at, headers,
       convert(body USING utf8mb4) AS body, copies,
       from_unixtime(first_at / 1000000) AS first_at,
       from_unixtime(last_at / 1000000) AS last_at, resolution, accepted_seq
FROM {prefix}quarantine;

CREATE OR REPLACE VIEW {prefix}audit_readable AS
SELECT id, from_unixtime(at / 1000000) AS at, actor, action, seq, reason
FROM {prefix}audit;

CREATE OR REPLACE VIEW {prefix}effect_readable AS
SELECT `key`, seq, name, result, done, worker, from_unixtime(started_at / 1000000) AS started_at,
       from_unixtime(finished_at / 1000000) AS finished_at
FROM {prefix}effect;

CREATE OR REPLACE VIEW {prefix}poll_readable AS
SELECT (SELECT n.name FROM {prefix}name n WHERE n.id = source) AS source, `cursor`, number, lower(hex(hash)) AS hash, token,
       from_unixtime(due_at / 1000000) AS due_at,
       from_unixtime(ended_at / 1000000) AS ended_at, failures, error
FROM {prefix}poll;

CREATE OR REPLACE VIEW {prefix}maintenance_readable AS
SELECT task, from_unixtime(due_at / 1000000) AS due_at
FROM {prefix}maintenance;

CREATE OR REPLACE VIEW {prefix}ended_session_readable AS
SELECT session, from_unixtime(ends_at / 1000000) AS ends_at
FROM {prefix}ended_session;

CREATE OR REPLACE VIEW {prefix}position_readable AS
SELECT (SELECT n.name FROM {prefix}name n WHERE n.id = source) AS source, part, position, from_unixtime(read_at / 1000000) AS read_at
FROM {prefix}position;
