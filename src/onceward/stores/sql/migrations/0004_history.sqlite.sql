-- deploy: before
-- What happened, by time, consumer, source and type: what a process has counted, folded into minutes, hours and days. See docs/operations.md.

CREATE TABLE {prefix}history (
    id         integer PRIMARY KEY,
    -- 0 as counted, 1 by minute, 2 by hour, 3 by day.
    level      integer NOT NULL,
    starts_at      integer NOT NULL,
    consumer   text NOT NULL,
    -- Empty in rows that have a backlog, which is of all sources.
    source     text NOT NULL,
    type       text NOT NULL,
    received   integer NOT NULL,
    duplicates integer NOT NULL,
    mismatches integer NOT NULL,
    done       integer NOT NULL,
    failed     integer NOT NULL,
    dead       integer NOT NULL,
    backlog    integer,
    oldest     integer,
    -- Durations in buckets (domain/histogram.py).
    lateness   text,
    wait       text,
    run        text
);
CREATE INDEX {prefix}history_start ON {prefix}history (level, starts_at);
INSERT INTO {prefix}maintenance (task, due_at) VALUES ('history', 0);

CREATE VIEW {prefix}history_readable AS
SELECT id, level, strftime('%Y-%m-%d %H:%M:%f', starts_at / 1000000.0, 'unixepoch') AS starts_at, consumer, source, type, received, duplicates, mismatches, done, failed, dead,
       backlog, oldest, lateness, wait, run
FROM {prefix}history;
