-- deploy: before
-- Retention: whose turn it is, and how late each source may redeliver. See docs/retention.md.

-- Whoever moves due_at on has the turn of a task: one process at a time, however many there are.
CREATE TABLE IF NOT EXISTS {prefix}maintenance (
    task   varchar(40) PRIMARY KEY,
    due_at bigint NOT NULL
) {table};
INSERT INTO {prefix}maintenance (task, due_at) VALUES ('prune', 0), ('archive', 0), ('collect', 0)
ON DUPLICATE KEY UPDATE due_at = {prefix}maintenance.due_at;

CREATE TABLE IF NOT EXISTS {prefix}source (
    source             integer PRIMARY KEY,
    redelivers_seconds double NOT NULL
) {table};

-- Sessions of the dashboard that ended before their time, for as long as their cookies would be good.
CREATE TABLE IF NOT EXISTS {prefix}ended_session (
    session varchar(255) PRIMARY KEY,
    ends_at bigint NOT NULL
) {table};
