-- deploy: before
-- The ledger remembers, the queue works, the body stores. See docs/architecture.md.

CREATE TABLE {prefix}catalog (
    one           boolean PRIMARY KEY DEFAULT true CHECK (one),
    version       bigint NOT NULL,
    last_crash_at bigint,
    -- Of a blob store, the part that belongs to these tables.
    folder        text NOT NULL DEFAULT left(md5(random()::text || clock_timestamp()::text), 12)
);
INSERT INTO {prefix}catalog (version) VALUES (floor(random() * 9007199254740992)::bigint);

CREATE TABLE {prefix}name (
    id   integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE
);

CREATE TABLE {prefix}subscription (
    id           integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer     integer NOT NULL REFERENCES {prefix}name (id),
    type         text NOT NULL,
    key_path     text,
    key_function boolean NOT NULL DEFAULT false,
    sequence     text,
    on_dead      text NOT NULL DEFAULT 'block' CHECK (on_dead IN ('block', 'continue')),
    aggregate    text,
    -- It gets no further messages; the row stays for those that it has.
    retired      boolean NOT NULL DEFAULT false,
    -- Whether its handler was seen to finish messages without using its transaction; null until that is known.
    apart        boolean,
    UNIQUE (consumer, type)
);
CREATE INDEX {prefix}subscription_type ON {prefix}subscription (type);

-- Not cached: a later receive must get a higher number than one that has returned.
CREATE SEQUENCE {prefix}seq AS bigint CACHE 1;

CREATE TABLE {prefix}ledger (
    seq         bigint PRIMARY KEY,
    consumer    integer NOT NULL,
    source      integer NOT NULL,
    -- Of (type, version): the body, which says them in full, may be gone before the id.
    type_hash   bigint NOT NULL,
    -- Which part of all messages it belongs to (docs/schema.md). It stands where it takes the least room.
    slot        smallint NOT NULL,
    id          bytea NOT NULL,
    hash        bytea NOT NULL CHECK (length(hash) = 32),
    received_at bigint NOT NULL,
    CONSTRAINT {prefix}ledger_identity UNIQUE (consumer, source, id)
);

CREATE TABLE {prefix}body (
    seq         bigint PRIMARY KEY,
    source      integer NOT NULL,
    id          text NOT NULL,
    type        text NOT NULL,
    version     integer NOT NULL,
    key         text,
    -- Who said it: 'caller', 'worker', or NULL where it was found in the message when that was received.
    key_from    text,
    -- The namespace of the key, where its handler has one of its own.
    aggregate   text,
    position    bigint,
    headers     text,
    body        bytea,
    destination text,
    cause       bigint,
    received_at bigint NOT NULL,
    -- Of a message that was not to run before.
    due_at      bigint
);
CREATE INDEX {prefix}body_cause ON {prefix}body (cause) WHERE cause IS NOT NULL;

CREATE TABLE {prefix}queue (
    seq          bigint PRIMARY KEY,
    subscription integer,
    -- Of the key that the row has now, or of its id.
    slot         smallint NOT NULL,
    key_hash     bigint,
    -- Where it stands in its key: what is scheduled comes last of all, until it is due.
    place        bigint NOT NULL,
    sequence     bigint,
    outgoing     boolean NOT NULL DEFAULT false,
    destination  text,
    state        text NOT NULL CHECK (state IN ('ready', 'retry', 'scheduled', 'waiting', 'unhandled', 'dead')),
    due_at       bigint,
    worker       bigint,
    token        bigint,
    attempts     integer NOT NULL DEFAULT 0,
    crashes      integer NOT NULL DEFAULT 0,
    isolation    integer NOT NULL DEFAULT 0,
    -- Of an unhandled row: its type. Without a subscription nobody had subscribed to it; with one, its key was
    -- not to be found. A row that was copied from another has that one's number in `sequence`: when it came.
    type         text,
    -- How often an error of the database was not charged to it.
    postponed    integer NOT NULL DEFAULT 0,
    CHECK ((worker IS NULL) = (token IS NULL)),
    CHECK (token IS NULL OR state IN ('ready', 'retry')),
    CHECK (CASE WHEN state IN ('retry', 'scheduled') THEN due_at IS NOT NULL WHEN state = 'waiting' THEN true ELSE due_at IS NULL END),
    CHECK (state <> 'waiting' OR key_hash IS NOT NULL),
    CHECK (subscription IS NOT NULL OR state = 'unhandled'),
    CHECK (state <> 'unhandled' OR type IS NOT NULL),
    CHECK (outgoing = (destination IS NOT NULL))
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- Only due work is in the claim indexes, so claims cost the same however much is finished, dead or waiting. They are by expressions, `+ 0`, which
-- no other index has: whatever the statistics say, nothing else can answer in their place.
CREATE INDEX {prefix}queue_ready ON {prefix}queue ((seq + 0))
    WHERE state = 'ready' AND token IS NULL AND isolation = 0 AND NOT outgoing;
CREATE INDEX {prefix}queue_outgoing ON {prefix}queue (destination, (seq + 0))
    WHERE state = 'ready' AND token IS NULL AND isolation = 0 AND outgoing;
CREATE INDEX {prefix}queue_due ON {prefix}queue (due_at)
    WHERE due_at IS NOT NULL AND token IS NULL AND isolation = 0 AND NOT outgoing;
CREATE INDEX {prefix}queue_outgoing_due ON {prefix}queue (destination, due_at)
    WHERE due_at IS NOT NULL AND token IS NULL AND isolation = 0 AND outgoing;
CREATE INDEX {prefix}queue_isolated ON {prefix}queue (isolation, (seq + 0)) WHERE isolation > 0;
CREATE INDEX {prefix}queue_claimed ON {prefix}queue (worker, key_hash) WHERE token IS NOT NULL;
CREATE INDEX {prefix}queue_key ON {prefix}queue (key_hash, place, seq) WHERE key_hash IS NOT NULL;
CREATE INDEX {prefix}queue_waiting ON {prefix}queue ((key_hash + 0), place, seq) WHERE state = 'waiting';
CREATE INDEX {prefix}queue_dead ON {prefix}queue (seq) WHERE state = 'dead';
CREATE INDEX {prefix}queue_unhandled ON {prefix}queue (type, subscription, coalesce(sequence, seq))
    WHERE state = 'unhandled';

CREATE TABLE {prefix}run (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    worker       bigint NOT NULL,
    token        bigint NOT NULL,
    code_version text NOT NULL,
    finished_at  bigint NOT NULL,
    first_seq    bigint NOT NULL,
    last_seq     bigint NOT NULL,
    seqs         bigint[] NOT NULL,
    messages     integer NOT NULL,
    outgoing     boolean NOT NULL DEFAULT false
);
CREATE INDEX {prefix}run_seq ON {prefix}run USING brin (first_seq, last_seq);

CREATE TABLE {prefix}result (
    seq    bigint PRIMARY KEY,
    result text NOT NULL
);

CREATE TABLE {prefix}attempt (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    seq          bigint NOT NULL,
    attempt      integer NOT NULL,
    kind         text NOT NULL CHECK (kind IN ('error', 'crash')),
    charged      boolean NOT NULL,
    error        text NOT NULL,
    traceback    text,
    worker       bigint,
    code_version text NOT NULL,
    fingerprint  text NOT NULL DEFAULT '',
    at           bigint NOT NULL
);
CREATE INDEX {prefix}attempt_seq ON {prefix}attempt (seq);

-- The number is random: after a failover to a standby that lagged, one that was counted would be given twice.
CREATE TABLE {prefix}worker (
    id           bigint PRIMARY KEY,
    process      text NOT NULL UNIQUE,
    host         text NOT NULL,
    pid          integer NOT NULL,
    code_version text NOT NULL,
    -- What it has handlers for: lines of consumer, type and version, with a line end on both sides of each.
    handles      text NOT NULL DEFAULT '',
    -- How many messages it handles at a time.
    lanes        integer NOT NULL DEFAULT 0,
    inline       boolean NOT NULL,
    started_at   bigint NOT NULL,
    alive_until  bigint NOT NULL,
    -- Which circuits were open at its last heartbeat: lines of consumer, type and seconds.
    circuits     text
);

CREATE TABLE {prefix}duplicate (
    seq      bigint PRIMARY KEY,
    copies   bigint NOT NULL,
    first_at bigint NOT NULL,
    last_at  bigint NOT NULL
);

CREATE TABLE {prefix}first_seen (
    source  integer NOT NULL,
    hash    bytea NOT NULL,
    id      text NOT NULL,
    seen_at bigint NOT NULL,
    PRIMARY KEY (source, hash)
);
CREATE INDEX {prefix}first_seen_at ON {prefix}first_seen (seen_at);

CREATE TABLE {prefix}quarantine (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    seq          bigint NOT NULL,
    hash         bytea NOT NULL,
    type_hash    bigint NOT NULL,
    type         text NOT NULL,
    version      integer NOT NULL,
    key          text,
    position     bigint,
    due_at       bigint,
    headers      text,
    body         bytea NOT NULL,
    copies       bigint NOT NULL,
    first_at     bigint NOT NULL,
    last_at      bigint NOT NULL,
    resolution   text CHECK (resolution IN ('keep-first', 'accept-as-new', 'revision')),
    accepted_seq bigint,
    CONSTRAINT {prefix}quarantine_copy UNIQUE (seq, hash, type_hash)
);
-- The case from which a message was accepted, for its erasure.
CREATE INDEX {prefix}quarantine_accepted ON {prefix}quarantine (accepted_seq) WHERE accepted_seq IS NOT NULL;

CREATE TABLE {prefix}audit (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at     bigint NOT NULL,
    actor  text NOT NULL,
    action text NOT NULL,
    seq    bigint NOT NULL,
    reason text NOT NULL
);
CREATE INDEX {prefix}audit_seq ON {prefix}audit (seq);

CREATE TABLE {prefix}progress (
    consumer  integer NOT NULL,
    aggregate text NOT NULL,
    key       text NOT NULL,
    applied   bigint NOT NULL,
    PRIMARY KEY (consumer, aggregate, key)
);

CREATE TABLE {prefix}effect (
    key         text PRIMARY KEY,
    seq         bigint NOT NULL,
    name        text NOT NULL,
    result      text,
    done        boolean NOT NULL DEFAULT false,
    worker      bigint NOT NULL,
    started_at  bigint NOT NULL,
    finished_at bigint
);
CREATE INDEX {prefix}effect_seq ON {prefix}effect (seq);

-- One row per polled API. Whose token it carries may store and move the cursor; due_at is when anybody else may take the turn.
CREATE TABLE {prefix}poll (
    source   integer PRIMARY KEY REFERENCES {prefix}name (id),
    cursor   text,
    number   bigint NOT NULL,
    hash     bytea,
    token    text,
    due_at   bigint NOT NULL,
    ended_at bigint,
    failures integer NOT NULL,
    error    text
);

-- How far each part of a source was read: what came before is stored. Written in the transaction that stores it; a part has one reader.
CREATE TABLE {prefix}position (
    source   integer NOT NULL REFERENCES {prefix}name (id),
    part     text NOT NULL,
    position text NOT NULL,
    read_at  bigint NOT NULL,
    PRIMARY KEY (source, part)
);
