-- deploy: before
-- What operators have paused, and for how long: the time of a pause does not count for the age of a message. See docs/operations.md.

CREATE TABLE {prefix}pause (
    -- type, consumer, source, destination, everything.
    kind     text NOT NULL,
    -- Empty for everything.
    name     text NOT NULL,
    began_at bigint NOT NULL,
    -- Null while it goes on.
    ended_at bigint,
    actor    text NOT NULL,
    reason   text NOT NULL,
    PRIMARY KEY (kind, name, began_at)
);

CREATE VIEW {prefix}pause_readable AS
SELECT kind, name, to_timestamp(began_at / 1000000.0) AS began_at, to_timestamp(ended_at / 1000000.0) AS ended_at, actor, reason
FROM {prefix}pause;
