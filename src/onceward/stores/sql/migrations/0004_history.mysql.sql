-- deploy: before
-- What happened, by time, consumer, source and type: what a process has counted, folded into minutes, hours and days. See docs/operations.md.

CREATE TABLE IF NOT EXISTS {prefix}history (
    id         bigint AUTO_INCREMENT PRIMARY KEY,
    -- 0 as counted, 1 by minute, 2 by hour, 3 by day.
    level      smallint NOT NULL,
    starts_at  bigint NOT NULL,
    consumer   varchar(255) NOT NULL,
    -- Empty in rows that have a backlog, which is of all sources.
    source     varchar(255) NOT NULL,
    type       varchar(255) NOT NULL,
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
    run        text,
    KEY {prefix}history_start (level, starts_at)
) {counted};
INSERT INTO {prefix}maintenance (task, due_at) VALUES ('history', 0) ON DUPLICATE KEY UPDATE due_at = {prefix}maintenance.due_at;

CREATE OR REPLACE VIEW {prefix}history_readable AS
SELECT id, level, from_unixtime(starts_at / 1000000) AS starts_at, consumer, source, type, received, duplicates, mismatches, done, failed, dead,
       backlog, oldest, lateness, wait, run
FROM {prefix}history;
