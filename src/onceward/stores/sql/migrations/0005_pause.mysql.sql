-- deploy: before
-- What operators have paused, and for how long: the time of a pause does not count for the age of a message. See docs/operations.md.

CREATE TABLE IF NOT EXISTS {prefix}pause (
    -- type, consumer, source, destination, everything.
    kind     varchar(32) NOT NULL,
    -- Empty for everything.
    name     varchar(255) NOT NULL,
    began_at bigint NOT NULL,
    -- Null while it goes on.
    ended_at bigint,
    actor    longtext NOT NULL,
    reason   longtext NOT NULL,
    PRIMARY KEY (kind, name, began_at)
) {table};

CREATE OR REPLACE VIEW {prefix}pause_readable AS
SELECT kind, name, from_unixtime(began_at / 1000000) AS began_at, from_unixtime(ended_at / 1000000) AS ended_at, actor, reason
FROM {prefix}pause;
