-- pgbench: 500 messages for each transaction, with the writes of onceward's `receive_many`. One in eleven is a copy, and is counted.
\set first :n
\set n :n + 500
BEGIN;
WITH input AS MATERIALIZED (
    SELECT nextval('onceward_seq') AS seq, decode('01' || md5(:client_id || '-' || g), 'hex') AS id,
           md5(:client_id || '-' || g) AS name
    FROM (SELECT CASE WHEN n % 11 = 0 AND n > 1100 THEN n - 1099 ELSE n END AS g
          FROM generate_series(:first + 1, :first + 500) AS n) AS numbers
), fresh AS (
    INSERT INTO onceward_ledger (seq, consumer, source, slot, type_hash, id, hash, received_at)
    SELECT seq, :consumer, :source, 0, 1, id, sha256(id), (date_part('epoch', clock_timestamp()) * 1000000)::bigint FROM input ORDER BY id
    ON CONFLICT (consumer, source, id) DO NOTHING RETURNING seq, received_at
), stored AS (
    INSERT INTO onceward_body (seq, source, id, type, version, body, received_at)
    SELECT seq, :source, name, 'nothing', 1, convert_to(repeat('x', 300), 'UTF8'), received_at FROM input JOIN fresh USING (seq)
), queued AS (
    INSERT INTO onceward_queue (seq, subscription, slot, place, state) SELECT seq, :subscription, 0, seq, 'ready' FROM fresh
), copies AS (
    SELECT l.seq FROM input i JOIN onceward_ledger l ON (l.consumer, l.source, l.id) = (:consumer, :source, i.id)
)
INSERT INTO onceward_duplicate AS d (seq, copies, first_at, last_at)
SELECT seq, 1, (date_part('epoch', clock_timestamp()) * 1000000)::bigint, (date_part('epoch', clock_timestamp()) * 1000000)::bigint FROM copies ORDER BY seq
ON CONFLICT (seq) DO UPDATE SET copies = d.copies + 1, last_at = excluded.last_at;
END;
