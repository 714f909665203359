-- Unfinished messages, as receiving them (and parking or giving them up) would have left them: {count}, from number {first} on.
INSERT INTO onceward_ledger (seq, consumer, source, slot, type_hash, id, hash, received_at)
SELECT g, {consumer}, {source}, 0, 1, decode('01' || md5(g::text), 'hex'), decode(repeat('ab', 32), 'hex'), (date_part('epoch', now()) * 1000000)::bigint
FROM generate_series({first}::bigint, {first}::bigint + {count} - 1) AS g;
INSERT INTO onceward_body (seq, source, id, type, version, key, body, received_at)
SELECT g, {source}, md5(g::text), '{type}', 1, {key}, convert_to('{{"number": 1, "pad": "' || repeat('x', 280) || '"}}', 'UTF8'),
       (date_part('epoch', now()) * 1000000)::bigint
FROM generate_series({first}::bigint, {first}::bigint + {count} - 1) AS g;
INSERT INTO onceward_queue (seq, subscription, key_hash, slot, place, state)
SELECT g, {subscription}, {key_hash}, 0, g, {state} FROM generate_series({first}::bigint, {first}::bigint + {count} - 1) AS g;
SELECT setval('onceward_seq', {first}::bigint + {count} - 1);
