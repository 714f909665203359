-- deploy: before
-- What happened, by time, consumer, source and type: what a process has counted, folded into minutes, hours and days. See docs/operations.md.

CREATE TABLE {prefix}history (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- 0 as counted, 1 by minute, 2 by hour, 3 by day.
    level      smallint NOT NULL,
    starts_at      bigint NOT NULL,
    consumer   text NOT NULL,
    -- Empty in rows that have a backlog, which is of all sources.
    source     text NOT NULL,
    type       text NOT NULL,
    received   bigint NOT NULL,
    duplicates bigint NOT NULL,
    mismatches bigint NOT NULL,
    done       bigint NOT NULL,
    failed     bigint NOT NULL,
    dead       bigint NOT NULL,
    backlog    bigint,
    oldest     bigint,
    -- Durations in buckets (domain/histogram.py).
    lateness   text,
    wait       text,
    run        text
);
CREATE INDEX {prefix}history_start ON {prefix}history (level, starts_at);
INSERT INTO {prefix}maintenance (task, due_at) VALUES ('history', 0);

CREATE VIEW {prefix}history_readable AS
SELECT id, level, to_timestamp(starts_at / 1000000.0) AS starts_at, consumer, source, type, received, duplicates, mismatches, done, failed, dead,
       backlog, oldest, lateness, wait, run
FROM {prefix}history;
