-- pgbench: the same as handle.sql in one statement, so that each message costs one round trip.
WITH next AS MATERIALIZED (
    SELECT seq FROM onceward_queue
    WHERE state = 'ready' AND token IS NULL AND isolation = 0 AND NOT outgoing
    ORDER BY seq LIMIT 1 FOR UPDATE SKIP LOCKED
), done AS (
    DELETE FROM onceward_queue q USING next WHERE q.seq = next.seq RETURNING q.seq
), applied AS (
    UPDATE target SET n = n + 1 FROM done WHERE id = done.seq % 1000
)
INSERT INTO onceward_run (worker, token, code_version, finished_at, first_seq, last_seq, seqs, messages)
SELECT :client_id, seq, 'limit', (date_part('epoch', clock_timestamp()) * 1000000)::bigint, seq, seq, ARRAY[seq], 1 FROM done;
