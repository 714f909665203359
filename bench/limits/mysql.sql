-- MySQL and MariaDB: procedures with the writes of onceward, so that no client takes part in them. A line of slashes ends each.
CREATE TABLE numbers (n integer PRIMARY KEY);
////
INSERT INTO numbers WITH RECURSIVE counted (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted WHERE n < 1000) SELECT n FROM counted;
////
CREATE TABLE target (id integer PRIMARY KEY, n integer NOT NULL);
////
INSERT INTO target SELECT n - 1, 0 FROM numbers;
////
CREATE TABLE textbook (id varchar(64) PRIMARY KEY, payload json, processed_at datetime(6));
////
-- Unfinished messages, as receiving them (and parking or giving them up) would have left them: a thousand, from a number on.
CREATE PROCEDURE fill (beginning bigint, of_source integer, of_consumer integer, wanted integer, kind varchar(20), row_key varchar(20), hashed bigint, head varchar(10), others varchar(10))
BEGIN
    DECLARE now bigint DEFAULT timestampdiff(MICROSECOND, '1970-01-01', utc_timestamp(6));
    START TRANSACTION;
    INSERT INTO onceward_ledger (seq, consumer, source, slot, type_hash, id, hash, received_at, receipt)
    SELECT beginning + n, of_consumer, of_source, 0, 1, unhex(concat('72', md5(beginning + n))), repeat('h', 32), now, 0 FROM numbers;
    INSERT INTO onceward_body (seq, source, id, type, version, `key`, body, received_at)
    SELECT beginning + n, of_source, md5(beginning + n), kind, 1, row_key,
           concat('{"number": 1, "row": ', (beginning + n) % 1000, ', "pad": "', repeat('x', 260), '"}'), now FROM numbers;
    INSERT INTO onceward_queue (seq, subscription, key_hash, slot, place, state)
    SELECT beginning + n, wanted, hashed, 0, beginning + n, CASE WHEN beginning + n = 1 THEN head ELSE others END FROM numbers;
    COMMIT;
END;
////
-- Finish the next messages of a claim, and with the last of them claim the next ones, with the writes of onceward's workers; the bodies travel.
CREATE PROCEDURE drain (me bigint, last bigint, following bigint, part integer, most integer)
BEGIN
    DECLARE now bigint DEFAULT timestampdiff(MICROSECOND, '1970-01-01', utc_timestamp(6));
    SET SESSION group_concat_max_len = 1000000;
    START TRANSACTION;
    SELECT min(seq), max(seq), concat('[', group_concat(seq ORDER BY seq SEPARATOR ', '), ']'), count(*) INTO @first, @last, @seqs, @found FROM (
        SELECT seq FROM onceward_queue WHERE worker = me AND token = last ORDER BY seq LIMIT part) AS taken;
    IF @found > 0 THEN
        DELETE FROM onceward_queue WHERE seq BETWEEN @first AND @last AND worker = me AND token = last;
        INSERT INTO onceward_run (worker, token, code_version, finished_at, first_seq, last_seq, seqs, messages)
        VALUES (me, last, 'limit', now, @first, @last, @seqs, @found);
    END IF;
    IF following > last THEN
        DROP TEMPORARY TABLE IF EXISTS mine;
        CREATE TEMPORARY TABLE mine (seq bigint PRIMARY KEY) ENGINE = MEMORY
        SELECT seq FROM onceward_queue FORCE INDEX (onceward_queue_ready)
        WHERE destination IS NULL AND free_seq >= 0 ORDER BY free_seq LIMIT most FOR UPDATE SKIP LOCKED;
        UPDATE onceward_queue q JOIN mine ON mine.seq = q.seq SET q.worker = me, q.token = following WHERE q.token IS NULL;
        COMMIT;
        SELECT b.seq, b.source, b.id, b.type, b.body FROM mine JOIN onceward_body b ON b.seq = mine.seq;
    ELSE
        COMMIT;
        SELECT @found FROM DUAL WHERE @found > 0;
    END IF;
END;
////
-- 500 messages in a transaction, with the writes of onceward's `receive_many`. One in eleven is a copy, and is counted.
CREATE PROCEDURE receive_many (who integer, beginning integer, of_source integer, of_consumer integer, wanted integer)
BEGIN
    DECLARE now bigint DEFAULT timestampdiff(MICROSECOND, '1970-01-01', utc_timestamp(6));
    DECLARE mine bigint DEFAULT floor(rand() * 9007199254740992);
    DROP TEMPORARY TABLE IF EXISTS given;
    CREATE TEMPORARY TABLE given (name char(32) PRIMARY KEY) ENGINE = MEMORY
    SELECT DISTINCT md5(concat(who, '-', CASE WHEN (beginning + n) % 11 = 0 AND beginning + n > 1100 THEN beginning + n - 1099 ELSE beginning + n END)) AS name
    FROM numbers WHERE n <= 500;
    START TRANSACTION;
    INSERT INTO onceward_ledger (consumer, source, slot, type_hash, id, hash, received_at, receipt)
    SELECT of_consumer, of_source, 0, 1, concat('r', name), unhex(sha2(name, 256)), now, mine FROM given ORDER BY name
    ON DUPLICATE KEY UPDATE receipt = onceward_ledger.receipt;
    INSERT INTO onceward_body (seq, source, id, type, version, body, received_at)
    SELECT l.seq, of_source, g.name, 'nothing', 1, repeat('x', 300), now
    FROM given g STRAIGHT_JOIN onceward_ledger l ON l.consumer = of_consumer AND l.source = of_source AND l.id = concat('r', g.name) WHERE l.receipt = mine;
    INSERT INTO onceward_queue (seq, subscription, slot, place, state)
    SELECT l.seq, wanted, 0, l.seq, 'ready'
    FROM given g STRAIGHT_JOIN onceward_ledger l ON l.consumer = of_consumer AND l.source = of_source AND l.id = concat('r', g.name) WHERE l.receipt = mine;
    INSERT INTO onceward_duplicate (seq, copies, first_at, last_at)
    SELECT l.seq, 1, now, now
    FROM given g STRAIGHT_JOIN onceward_ledger l ON l.consumer = of_consumer AND l.source = of_source AND l.id = concat('r', g.name) WHERE l.receipt <> mine ORDER BY l.seq
    ON DUPLICATE KEY UPDATE copies = copies + 1, last_at = VALUES(last_at);
    COMMIT;
END;
