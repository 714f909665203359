-- Finished messages, as receiving and handling them would have left them: {count} of them, from number {first} on.
WITH loaded AS MATERIALIZED (
    SELECT g, {id} AS id FROM generate_series({first}::bigint, {first}::bigint + {count} - 1) AS g
), remembered AS (
    INSERT INTO onceward_ledger (seq, consumer, source, slot, type_hash, id, hash, received_at)
    SELECT g, {consumer}, {source}, 0, 1, decode('01' || id, 'hex'), decode(repeat('ab', 32), 'hex'), (date_part('epoch', now()) * 1000000)::bigint - 3600000000 FROM loaded
)
INSERT INTO onceward_body (seq, source, id, type, version, body, received_at)
SELECT g, {source}, id, 'nothing', 1, convert_to(repeat('x', 300), 'UTF8'), (date_part('epoch', now()) * 1000000)::bigint - 3600000000 FROM loaded;
INSERT INTO onceward_run (worker, token, code_version, finished_at, first_seq, last_seq, seqs, messages)
SELECT 1, 0, 'loaded', (date_part('epoch', now()) * 1000000)::bigint - 3600000000, g, g + 99, ARRAY(SELECT generate_series(g, g + 99)), 100
FROM generate_series({first}::bigint, {first}::bigint + {count} - 1, 100) AS g;
SELECT setval('onceward_seq', {first}::bigint + {count} - 1);
