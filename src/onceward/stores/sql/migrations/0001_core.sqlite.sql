-- deploy: before
-- The ledger remembers, the queue works, the body stores. See docs/architecture.md.

CREATE TABLE {prefix}catalog (
    one           integer PRIMARY KEY DEFAULT 1 CHECK (one = 1),
    version       integer NOT NULL,
    last_crash_at integer,
    -- Of a blob store, the part that belongs to these tables.
    folder        text NOT NULL DEFAULT (lower(hex(randomblob(6))))
);
INSERT INTO {prefix}catalog (version) VALUES (random() & 9007199254740991);

CREATE TABLE {prefix}name (
    id   integer PRIMARY KEY AUTOINCREMENT,
    name text NOT NULL UNIQUE
);

CREATE TABLE {prefix}subscription (
    id           integer PRIMARY KEY AUTOINCREMENT,
    consumer     integer NOT NULL REFERENCES {prefix}name (id),
    type         text NOT NULL,
    key_path     text,
    key_function integer NOT NULL DEFAULT 0,
    sequence     text,
    on_dead      text NOT NULL DEFAULT 'block' CHECK (on_dead IN ('block', 'continue')),
    aggregate    text,
    -- It gets no further messages; the row stays for those that it has.
    retired      integer NOT NULL DEFAULT 0,
    -- Whether its handler was seen to finish messages without using its transaction; null until that is known.
    apart        integer,
    UNIQUE (consumer, type)
);

-- AUTOINCREMENT: a number is never used twice, also after the newest row was pruned.
CREATE TABLE {prefix}ledger (
    seq         integer PRIMARY KEY AUTOINCREMENT,
    consumer    integer NOT NULL,
    source      integer NOT NULL,
    -- Of (type, version): the body, which says them in full, may be gone before the id.
    type_hash   integer NOT NULL,
    -- Which part of all messages it belongs to (docs/schema.md). It stands where it takes the least room.
    slot        integer NOT NULL,
    id          blob NOT NULL,
    hash        blob NOT NULL CHECK (length(hash) = 32),
    received_at integer NOT NULL,
    CONSTRAINT {prefix}ledger_identity UNIQUE (consumer, source, id)
);

CREATE TABLE {prefix}body (
    seq         integer PRIMARY KEY,
    source      integer NOT NULL,
    id          text NOT NULL,
    type        text NOT NULL,
    version     integer NOT NULL,
    key         text,
    -- Who said it: 'caller', 'worker', or NULL where it was found in the message when that was received.
    key_from    text,
    -- The namespace of the key, where its handler has one of its own.
    aggregate   text,
    position    integer,
    headers     text,
    body        blob,
    destination text,
    cause       integer,
    received_at integer NOT NULL,
    -- Of a message that was not to run before.
    due_at      integer
);
CREATE INDEX {prefix}body_cause ON {prefix}body (cause) WHERE cause IS NOT NULL;

CREATE TABLE {prefix}queue (
    seq          integer PRIMARY KEY,
    subscription integer,
    -- Of the key that the row has now, or of its id.
    slot         integer NOT NULL,
    key_hash     integer,
    -- Where it stands in its key: what is scheduled comes last of all, until it is due.
    place        integer NOT NULL,
    sequence     integer,
    outgoing     integer NOT NULL DEFAULT 0,
    destination  text,
    state        text NOT NULL CHECK (state IN ('ready', 'retry', 'scheduled', 'waiting', 'unhandled', 'dead')),
    due_at       integer,
    worker       integer,
    token        integer,
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
);

-- Only due work is in the claim indexes, so claims cost the same however much is finished, dead or waiting.
CREATE INDEX {prefix}queue_ready ON {prefix}queue (seq)
    WHERE state = 'ready' AND token IS NULL AND isolation = 0 AND NOT outgoing;
CREATE INDEX {prefix}queue_outgoing ON {prefix}queue (destination, seq)
    WHERE state = 'ready' AND token IS NULL AND isolation = 0 AND outgoing;
CREATE INDEX {prefix}queue_due ON {prefix}queue (due_at)
    WHERE due_at IS NOT NULL AND token IS NULL AND isolation = 0 AND NOT outgoing;
CREATE INDEX {prefix}queue_outgoing_due ON {prefix}queue (destination, due_at)
    WHERE due_at IS NOT NULL AND token IS NULL AND isolation = 0 AND outgoing;
CREATE INDEX {prefix}queue_isolated ON {prefix}queue (isolation, seq) WHERE isolation > 0;
CREATE INDEX {prefix}queue_claimed ON {prefix}queue (worker, key_hash) WHERE token IS NOT NULL;
CREATE INDEX {prefix}queue_key ON {prefix}queue (key_hash, place, seq) WHERE key_hash IS NOT NULL;
CREATE INDEX {prefix}queue_waiting ON {prefix}queue (key_hash, place, seq) WHERE state = 'waiting';
CREATE INDEX {prefix}queue_dead_unhandled ON {prefix}queue (state, seq) WHERE state IN ('dead', 'unhandled');
CREATE INDEX {prefix}queue_unhandled ON {prefix}queue (type, subscription, coalesce(sequence, seq))
    WHERE state = 'unhandled';

CREATE TABLE {prefix}run (
    id           integer PRIMARY KEY AUTOINCREMENT,
    worker       integer NOT NULL,
    token        integer NOT NULL,
    code_version text NOT NULL,
    finished_at  integer NOT NULL,
    first_seq    integer NOT NULL,
    last_seq     integer NOT NULL,
    seqs         text NOT NULL,
    messages     integer NOT NULL,
    outgoing     integer NOT NULL DEFAULT 0
);
CREATE INDEX {prefix}run_seq ON {prefix}run (first_seq, last_seq);

CREATE TABLE {prefix}result (
    seq    integer PRIMARY KEY,
    result text NOT NULL
);

CREATE TABLE {prefix}attempt (
    id           integer PRIMARY KEY AUTOINCREMENT,
    seq          integer NOT NULL,
    attempt      integer NOT NULL,
    kind         text NOT NULL CHECK (kind IN ('error', 'crash')),
    charged      integer NOT NULL,
    error        text NOT NULL,
    traceback    text,
    worker       integer,
    code_version text NOT NULL,
    fingerprint  text NOT NULL DEFAULT '',
    at           integer NOT NULL
);
CREATE INDEX {prefix}attempt_seq ON {prefix}attempt (seq);

-- The number is random: after the file was restored, one that was counted would be given twice.
CREATE TABLE {prefix}worker (
    id           integer PRIMARY KEY,
    process      text NOT NULL UNIQUE,
    host         text NOT NULL,
    pid          integer NOT NULL,
    code_version text NOT NULL,
    -- What it has handlers for: lines of consumer, type and version, with a line end on both sides of each.
    handles      text NOT NULL DEFAULT '',
    -- How many messages it handles at a time.
    lanes        integer NOT NULL DEFAULT 0,
    inline       integer NOT NULL,
    started_at   integer NOT NULL,
    alive_until  integer NOT NULL,
    -- Which circuits were open at its last heartbeat: lines of consumer, type and seconds.
    circuits     text
);

CREATE TABLE {prefix}duplicate (
    seq      integer PRIMARY KEY,
    copies   integer NOT NULL,
    first_at integer NOT NULL,
    last_at  integer NOT NULL
);

CREATE TABLE {prefix}first_seen (
    source  integer NOT NULL,
    hash    blob NOT NULL,
    id      text NOT NULL,
    seen_at integer NOT NULL,
    PRIMARY KEY (source, hash)
) WITHOUT ROWID;
CREATE INDEX {prefix}first_seen_at ON {prefix}first_seen (seen_at);

CREATE TABLE {prefix}quarantine (
    id           integer PRIMARY KEY AUTOINCREMENT,
    seq          integer NOT NULL,
    hash         blob NOT NULL,
    type_hash    integer NOT NULL,
    type         text NOT NULL,
    version      integer NOT NULL,
    key          text,
    position     integer,
    due_at       integer,
    headers      text,
    body         blob NOT NULL,
    copies       integer NOT NULL,
    first_at     integer NOT NULL,
    last_at      integer NOT NULL,
    resolution   text CHECK (resolution IN ('keep-first', 'accept-as-new', 'revision')),
    accepted_seq integer,
    CONSTRAINT {prefix}quarantine_copy UNIQUE (seq, hash, type_hash)
);
-- The case from which a message was accepted, for its erasure.
CREATE INDEX {prefix}quarantine_accepted ON {prefix}quarantine (accepted_seq) WHERE accepted_seq IS NOT NULL;

CREATE TABLE {prefix}audit (
    id     integer PRIMARY KEY AUTOINCREMENT,
    at     integer NOT NULL,
    actor  text NOT NULL,
    action text NOT NULL,
    seq    integer NOT NULL,
    reason text NOT NULL
);
CREATE INDEX {prefix}audit_seq ON {prefix}audit (seq);

CREATE TABLE {prefix}progress (
    consumer  integer NOT NULL,
    aggregate text NOT NULL,
    key       text NOT NULL,
    applied   integer NOT NULL,
    PRIMARY KEY (consumer, aggregate, key)
);

CREATE TABLE {prefix}effect (
    key         text PRIMARY KEY,
    seq         integer NOT NULL,
    name        text NOT NULL,
    result      text,
    done        integer NOT NULL DEFAULT 0,
    worker      integer NOT NULL,
    started_at  integer NOT NULL,
    finished_at integer
);
CREATE INDEX {prefix}effect_seq ON {prefix}effect (seq);

-- One row per polled API. Whose token it carries may store and move the cursor; due_at is when anybody else may take the turn.
CREATE TABLE {prefix}poll (
    source   integer PRIMARY KEY REFERENCES {prefix}name (id),
    cursor   text,
    number   integer NOT NULL,
    hash     blob,
    token    text,
    due_at   integer NOT NULL,
    ended_at integer,
    failures integer NOT NULL,
    error    text
);

-- How far each part of a source was read: what came before is stored. Written in the transaction that stores it; a part has one reader.
CREATE TABLE {prefix}position (
    source   integer NOT NULL REFERENCES {prefix}name (id),
    part     text NOT NULL,
    position text NOT NULL,
    read_at  integer NOT NULL,
    PRIMARY KEY (source, part)
);
