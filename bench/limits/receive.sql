-- pgbench: one message for each transaction, in one statement, with the writes of onceward's `receive`. One in eleven is a copy.
\set n :n + 1
\set number CASE WHEN :n % 11 = 0 AND :n > 1100 THEN :n - 1099 ELSE :n END
WITH input AS MATERIALIZED (
    SELECT nextval('onceward_seq') AS seq, decode('01' || md5(:client_id || '-' || :number), 'hex') AS id
), fresh AS (
    INSERT INTO onceward_ledger (seq, consumer, source, slot, type_hash, id, hash, received_at)
    SELECT seq, :consumer, :source, 0, 1, id, sha256(id), (date_part('epoch', clock_timestamp()) * 1000000)::bigint FROM input
    ON CONFLICT (consumer, source, id) DO NOTHING RETURNING seq, received_at
), stored AS (
    INSERT INTO onceward_body (seq, source, id, type, version, body, received_at)
    SELECT seq, :source, md5(:client_id || '-' || :number), 'nothing', 1, convert_to(repeat('x', 300), 'UTF8'), received_at FROM fresh
)
INSERT INTO onceward_queue (seq, subscription, slot, place, state) SELECT seq, :subscription, 0, seq, 'ready' FROM fresh;
