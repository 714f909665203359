-- deploy: before
-- Retention: whose turn it is, and how late each source may redeliver. See docs/retention.md.

-- Whoever moves due_at on has the turn of a task: one process at a time, however many there are.
CREATE TABLE {prefix}maintenance (
    task   text PRIMARY KEY,
    due_at integer NOT NULL
);
INSERT INTO {prefix}maintenance (task, due_at) VALUES ('prune', 0), ('archive', 0), ('collect', 0);

CREATE TABLE {prefix}source (
    source             integer PRIMARY KEY REFERENCES {prefix}name (id),
    redelivers_seconds real NOT NULL
);

-- The bodies that are in a blob store, by the name of the blob. The reference to it is the first header (see reference.py).
CREATE INDEX {prefix}body_blob ON {prefix}body (substr(headers, 19, 56)) WHERE substr(headers, 1, 18) = '{"onceward-blob":"';

-- Sessions of the dashboard that ended before their time, for as long as their cookies would be good.
CREATE TABLE {prefix}ended_session (
    session text PRIMARY KEY,
    ends_at integer NOT NULL
);
