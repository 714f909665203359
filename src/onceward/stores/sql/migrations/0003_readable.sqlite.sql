-- deploy: before
-- For people: each table that has times, with readable times (UTC), names in place of their numbers, and bytes as text. Onceward itself reads
-- none of these. See docs/schema.md.

CREATE VIEW {prefix}catalog_readable AS
SELECT one, version, strftime('%Y-%m-%d %H:%M:%f', last_crash_at / 1000000.0, 'unixepoch') AS last_crash_at, folder
FROM {prefix}catalog;

CREATE VIEW {prefix}ledger_readable AS
SELECT seq, (SELECT n.name FROM {prefix}name n WHERE n.id = consumer) AS consumer,
       (SELECT n.name FROM {prefix}name n WHERE n.id = source) AS source, type_hash, slot,
       CASE substr(id, 1, 1) WHEN x'75' THEN lower(hex(substr(id, 2, 16)))
            WHEN x'64' THEN 'sha256:' || lower(hex(substr(id, 2, 32))) ELSE CAST(substr(id, 2) AS text) END AS id,
       lower(hex(hash)) AS hash, strftime('%Y-%m-%d %H:%M:%f', received_at / 1000000.0, 'unixepoch') AS received_at
FROM {prefix}ledger;

CREATE VIEW {prefix}body_readable AS
SELECT seq, (SELECT n.name FROM {prefix}name n WHERE n.id = source) AS source, id, type, version, key, key_from, aggregate, position, headers,
       CAST(body AS text) AS body, destination, cause, strftime('%Y-%m-%d %H:%M:%f', received_at / 1000000.0, 'unixepoch') AS received_at,
       strftime('%Y-%m-%d %H:%M:%f', due_at / 1000000.0, 'unixepoch') AS due_at
FROM {prefix}body;

CREATE VIEW {prefix}queue_readable AS
SELECT seq, subscription, slot, key_hash, place, sequence, outgoing, destination, state,
       strftime('%Y-%m-%d %H:%M:%f', due_at / 1000000.0, 'unixepoch') AS due_at, worker, token, attempts, crashes, isolation, type, postponed
FROM {prefix}queue;

CREATE VIEW {prefix}run_readable AS
SELECT id, worker, token, code_version, strftime('%Y-%m-%d %H:%M:%f', finished_at / 1000000.0, 'unixepoch') AS finished_at, first_seq, last_seq,
       seqs, messages, outgoing
FROM {prefix}run;

CREATE VIEW {prefix}attempt_readable AS
SELECT id, seq, attempt, kind, charged, error, traceback, worker, code_version, fingerprint,
       strftime('%Y-%m-%d %H:%M:%f', at / 1000000.0, 'unixepoch') AS at
FROM {prefix}attempt;

CREATE VIEW {prefix}worker_readable AS
SELECT id, process, host, pid, code_version, handles, lanes, inline,
       strftime('%Y-%m-%d %H:%M:%f', started_at / 1000000.0, 'unixepoch') AS started_at,
       strftime('%Y-%m-%d %H:%M:%f', alive_until / 1000000.0, 'unixepoch') AS alive_until, circuits
FROM {prefix}worker;

CREATE VIEW {prefix}duplicate_readable AS
SELECT seq, copies, strftime('%Y-%m-%d %H:%M:%f', first_at / 1000000.0, 'unixepoch') AS first_at,
       strftime('%Y-%m-%d %H:%M:%f', last_at / 1000000.0, 'unixepoch') AS last_at
FROM {prefix}duplicate;

CREATE VIEW {prefix}first_seen_readable AS
SELECT (SELECT n.name FROM {prefix}name n WHERE n.id = source) AS source, lower(hex(hash)) AS hash, id,
       strftime('%Y-%m-%d %H:%M:%f', seen_at / 1000000.0, 'unixepoch') AS seen_at
FROM {prefix}first_seen;

CREATE VIEW {prefix}quarantine_readable AS
SELECT id, seq, lower(hex(hash)) AS hash, type_hash, type, version, key, position,
       strftime('%Y-%m-%d %H:%M:%f', due_at / 1000000.0, 'unixepoch') AS due_at, headers, CAST(body AS text) AS body, copies,
       strftime('%Y-%m-%d %H:%M:%f', first_at / 1000000.0, 'unixepoch') AS first_at,
       strftime('%Y-%m-%d %H:%M:%f', last_at / 1000000.0, 'unixepoch') AS last_at, resolution, accepted_seq
FROM {prefix}quarantine;

CREATE VIEW {prefix}audit_readable AS
SELECT id, strftime('%Y-%m-%d %H:%M:%f', at / 1000000.0, 'unixepoch') AS at, actor, action, seq, reason
FROM {prefix}audit;

CREATE VIEW {prefix}effect_readable AS
SELECT key, seq, name, result, done, worker, strftime('%Y-%m-%d %H:%M:%f', started_at / 1000000.0, 'unixepoch') AS started_at,
       strftime('%Y-%m-%d %H:%M:%f', finished_at / 1000000.0, 'unixepoch') AS finished_at
FROM {prefix}effect;

CREATE VIEW {prefix}poll_readable AS
SELECT (SELECT n.name FROM {prefix}name n WHERE n.id = source) AS source, cursor, number, lower(hex(hash)) AS hash, token,
       strftime('%Y-%m-%d %H:%M:%f', due_at / 1000000.0, 'unixepoch') AS due_at,
       strftime('%Y-%m-%d %H:%M:%f', ended_at / 1000000.0, 'unixepoch') AS ended_at, failures, error
FROM {prefix}poll;

CREATE VIEW {prefix}maintenance_readable AS
SELECT task, strftime('%Y-%m-%d %H:%M:%f', due_at / 1000000.0, 'unixepoch') AS due_at
FROM {prefix}maintenance;

CREATE VIEW {prefix}ended_session_readable AS
SELECT session, strftime('%Y-%m-%d %H:%M:%f', ends_at / 1000000.0, 'unixepoch') AS ends_at
FROM {prefix}ended_session;

CREATE VIEW {prefix}position_readable AS
SELECT (SELECT n.name FROM {prefix}name n WHERE n.id = source) AS source, part, position,
       strftime('%Y-%m-%d %H:%M:%f', read_at / 1000000.0, 'unixepoch') AS read_at
FROM {prefix}position;
