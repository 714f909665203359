-- deploy: before
-- Retention: bodies by partition, whose turn it is, and how late each source may redeliver. See docs/retention.md.

-- A partition is a range of ten thousand million numbers, used for a day; then the sequence goes on with the next partition. So the number alone
-- says where a body is: the primary key stays what it was, a join by number looks into one partition, and old bodies go by dropping a partition.
ALTER TABLE {prefix}body RENAME TO {prefix}body_0;
ALTER INDEX {prefix}body_pkey RENAME TO {prefix}body_0_pkey;
ALTER INDEX {prefix}body_cause RENAME TO {prefix}body_0_cause;
CREATE TABLE {prefix}body (LIKE {prefix}body_0) PARTITION BY RANGE (seq);
ALTER TABLE {prefix}body ADD PRIMARY KEY (seq);
CREATE INDEX {prefix}body_cause ON {prefix}body (cause) WHERE cause IS NOT NULL;
-- The bodies that are in a blob store, by the name of the blob. The reference to it is the first header (see reference.py).
CREATE INDEX {prefix}body_blob ON {prefix}body (substr(headers, 19, 56)) WHERE substr(headers, 1, 18) = '{"onceward-blob":"';
ALTER TABLE {prefix}body ATTACH PARTITION {prefix}body_0 FOR VALUES FROM (0) TO (10000000000);

CREATE TABLE {prefix}partition (
    number    bigint PRIMARY KEY,
    opened_at bigint,
    closed_at bigint
);
INSERT INTO {prefix}partition (number) VALUES (0);

-- Attached rather than created in place: that lets receivers go on.
CREATE FUNCTION {prefix}add_partition(partition bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('CREATE TABLE %I (LIKE {prefix}body INCLUDING ALL)', '{prefix}body_' || partition);
    EXECUTE format('ALTER TABLE {prefix}body ATTACH PARTITION %I FOR VALUES FROM (%s) TO (%s)',
                   '{prefix}body_' || partition, partition * 10000000000, (partition + 1) * 10000000000);
    INSERT INTO {prefix}partition (number) VALUES (partition);
END $$;

-- One at a time: the partition row is locked, and the sequence is read again under that lock, so it never goes back. A partition is moved on to
-- only when it was there before this transaction, for the sequence does not roll back; whatever is interrupted here is put right by the
-- next call. It was made when the current one was opened, so `seconds` (minutes at least) is also how long every statement that began
-- without knowing it has had to end. A partition that is nearly full is rotated by itself.
CREATE FUNCTION {prefix}rotate_partition(seconds float8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    current bigint := (SELECT last_value FROM {prefix}seq) / 10000000000;
    opened bigint;
    is_ahead boolean := EXISTS (SELECT FROM {prefix}partition WHERE number = current + 1);
BEGIN
    PERFORM FROM {prefix}partition WHERE number = current FOR UPDATE SKIP LOCKED;
    IF NOT FOUND OR (SELECT last_value / 10000000000 <> current FROM {prefix}seq) THEN
        RETURN;
    END IF;
    UPDATE {prefix}partition SET closed_at = {clock} WHERE number < current AND closed_at IS NULL;
    UPDATE {prefix}partition SET opened_at = {clock} WHERE number = current AND opened_at IS NULL;
    SELECT opened_at INTO opened FROM {prefix}partition WHERE number = current;
    IF NOT EXISTS (SELECT FROM {prefix}partition WHERE number = current + 1) THEN
        PERFORM {prefix}add_partition(current + 1);
    ELSIF is_ahead AND opened < {now} - (seconds * 1000000)::bigint
          AND (SELECT last_value % 10000000000 < 9000000000 FROM {prefix}seq) THEN
        PERFORM setval('{prefix}seq', (current + 1) * 10000000000, false);
    END IF;
END $$;

-- Guard: nobody can add to the partition while it is looked at, and nothing unfinished, dead or in an open case of quarantine has its body
-- there. The caller's lock_timeout says how long others may have to queue behind this.
CREATE FUNCTION {prefix}drop_partition(partition bigint, must_be_empty boolean) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    low bigint := partition * 10000000000;
    high bigint := (partition + 1) * 10000000000;
BEGIN
    LOCK TABLE {prefix}body IN ACCESS EXCLUSIVE MODE;
    IF EXISTS (SELECT FROM {prefix}queue WHERE seq >= low AND seq < high)
       OR EXISTS (SELECT FROM {prefix}quarantine WHERE seq >= low AND seq < high AND resolution IS NULL)
       OR (must_be_empty AND EXISTS (SELECT FROM {prefix}body WHERE seq >= low AND seq < high)) THEN
        RETURN false;
    END IF;
    EXECUTE format('DROP TABLE IF EXISTS %I', '{prefix}body_' || partition);
    DELETE FROM {prefix}partition WHERE number = partition;
    RETURN FOUND;
END $$;

-- Whoever moves due_at on has the turn of a task: one process at a time, however many there are.
CREATE TABLE {prefix}maintenance (
    task   text PRIMARY KEY,
    due_at bigint NOT NULL
);
INSERT INTO {prefix}maintenance (task, due_at)
VALUES ('prune', 0), ('archive', 0), ('collect', 0);

CREATE TABLE {prefix}source (
    source            integer PRIMARY KEY REFERENCES {prefix}name (id),
    redelivers_seconds float8 NOT NULL
);

-- Sessions of the dashboard that ended before their time, for as long as their cookies would be good.
CREATE TABLE {prefix}ended_session (
    session text PRIMARY KEY,
    ends_at bigint NOT NULL
);
