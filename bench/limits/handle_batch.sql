-- pgbench: as drain.sql, with their effects in one UPDATE: what a set-based handler could reach at most.
\set last :token
\set token :token + 1
BEGIN;
UPDATE target SET n = target.n + i.n
FROM (SELECT seq % 1000 AS row, count(*) AS n FROM onceward_queue WHERE worker = :client_id AND token = :last GROUP BY 1) AS i
WHERE target.id = i.row;
WITH done AS (
    DELETE FROM onceward_queue WHERE worker = :client_id AND token = :last RETURNING seq
)
INSERT INTO onceward_run (worker, token, code_version, finished_at, first_seq, last_seq, seqs, messages)
SELECT :client_id, :last, 'limit', (date_part('epoch', clock_timestamp()) * 1000000)::bigint, min(seq), max(seq), array_agg(seq), count(*) FROM done HAVING count(*) > 0;
WITH mine AS MATERIALIZED (
    SELECT seq FROM onceward_queue
    WHERE state = 'ready' AND token IS NULL AND isolation = 0 AND NOT outgoing
    ORDER BY seq LIMIT :group FOR UPDATE SKIP LOCKED
)
UPDATE onceward_queue q SET worker = :client_id, token = :token
FROM mine JOIN onceward_body b USING (seq)
WHERE q.seq = mine.seq RETURNING q.seq, q.attempts, b.source, b.id, b.type, b.body;
END;
