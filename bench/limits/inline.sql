-- pgbench: the transaction of onceward's `process`: remember the message, apply it, write its run. One in eleven is a copy.
\set n :n + 1
\set number CASE WHEN :n % 11 = 0 AND :n > 110 THEN :n - 109 ELSE :n END
BEGIN;
WITH fresh AS (
    INSERT INTO onceward_ledger (seq, consumer, source, slot, type_hash, id, hash, received_at)
    SELECT nextval('onceward_seq'), :consumer, :source, 0, 1, id, sha256(id), (date_part('epoch', clock_timestamp()) * 1000000)::bigint
    FROM (SELECT decode('01' || md5(:client_id || '-' || :number), 'hex') AS id) AS input
    ON CONFLICT (consumer, source, id) DO NOTHING RETURNING seq, received_at
), stored AS (
    INSERT INTO onceward_body (seq, source, id, type, version, body, received_at)
    SELECT seq, :source, md5(:client_id || '-' || :number), 'update', 1, convert_to(repeat('x', 300), 'UTF8'), received_at FROM fresh
)
SELECT coalesce(max(seq), 0) AS seq FROM fresh \gset
\if :seq
UPDATE target SET n = n + 1 WHERE id = (:number)::bigint % 1000;
INSERT INTO onceward_run (worker, token, code_version, finished_at, first_seq, last_seq, seqs, messages)
VALUES (:client_id, 0, 'limit', (date_part('epoch', clock_timestamp()) * 1000000)::bigint, (:seq)::bigint, (:seq)::bigint, ARRAY[:seq]::bigint[], 1);
\else
INSERT INTO onceward_duplicate AS d (seq, copies, first_at, last_at)
SELECT seq, 1, (date_part('epoch', clock_timestamp()) * 1000000)::bigint, (date_part('epoch', clock_timestamp()) * 1000000)::bigint FROM onceward_ledger
WHERE (consumer, source, id) = (:consumer, :source, decode('01' || md5(:client_id || '-' || :number), 'hex'))
ON CONFLICT (seq) DO UPDATE SET copies = d.copies + 1, last_at = excluded.last_at;
\endif
END;
