-- pgbench: finish the next :group messages of a claim, and with the last of them claim the next :claim, with the writes of onceward's workers; the bodies travel.
\set part (:part + 1) % :groups
BEGIN;
WITH next AS MATERIALIZED (
    SELECT seq FROM onceward_queue WHERE worker = :client_id AND token = :token ORDER BY seq LIMIT :group
), done AS (
    DELETE FROM onceward_queue q USING next WHERE q.seq = next.seq RETURNING q.seq
)
INSERT INTO onceward_run (worker, token, code_version, finished_at, first_seq, last_seq, seqs, messages)
SELECT :client_id, :token, 'limit', (date_part('epoch', clock_timestamp()) * 1000000)::bigint, min(seq), max(seq), array_agg(seq), count(*) FROM done HAVING count(*) > 0;
\if :part = 0
\set token :token + 1
WITH mine AS MATERIALIZED (
    SELECT seq FROM onceward_queue
    WHERE state = 'ready' AND token IS NULL AND isolation = 0 AND NOT outgoing
    ORDER BY seq LIMIT :claim FOR UPDATE SKIP LOCKED
)
UPDATE onceward_queue q SET worker = :client_id, token = :token
FROM mine JOIN onceward_body b USING (seq)
WHERE q.seq = mine.seq RETURNING q.seq, q.attempts, b.source, b.id, b.type, b.body;
\endif
END;
