-- deploy: before
-- Upkeep: whose turn it is, and how late each source may redeliver. See docs/upkeep.md.

-- Whoever moves due_at on has the turn: one process at a time, however many there are.
CREATE TABLE {prefix}upkeep (
    one    integer PRIMARY KEY DEFAULT 1 CHECK (one = 1),
    due_at integer NOT NULL
);
INSERT INTO {prefix}upkeep (due_at) VALUES (0);

CREATE TABLE {prefix}source (
    source             integer PRIMARY KEY REFERENCES {prefix}name (id),
    redelivers_seconds real NOT NULL
);
