-- pgbench: a transaction for each message of a backlog: take it off the queue, apply it, write its run.
BEGIN;
WITH next AS MATERIALIZED (
    SELECT seq FROM onceward_queue
    WHERE state = 'ready' AND token IS NULL AND isolation = 0 AND NOT outgoing
    ORDER BY seq LIMIT 1 FOR UPDATE SKIP LOCKED
), done AS (
    DELETE FROM onceward_queue q USING next WHERE q.seq = next.seq RETURNING q.seq
)
SELECT done.seq AS seq, b.body AS body FROM done JOIN onceward_body b USING (seq) \gset
UPDATE target SET n = n + 1 WHERE id = (:seq)::bigint % 1000;
INSERT INTO onceward_run (worker, token, code_version, finished_at, first_seq, last_seq, seqs, messages)
VALUES (:client_id, (:seq)::bigint, 'limit', (date_part('epoch', clock_timestamp()) * 1000000)::bigint, (:seq)::bigint, (:seq)::bigint, ARRAY[:seq]::bigint[], 1);
END;
