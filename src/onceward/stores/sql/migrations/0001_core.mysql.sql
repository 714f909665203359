-- deploy: before
-- The ledger remembers, the queue works, the body stores. See docs/architecture.md. DDL commits by itself here: so every statement may be
-- run again, and the version is recorded last. Text is compared byte by byte, trailing spaces included, whatever the server's default is.

CREATE TABLE IF NOT EXISTS {prefix}catalog (
    one           tinyint PRIMARY KEY DEFAULT 1 CHECK (one = 1),
    version       bigint NOT NULL,
    last_crash_at bigint,
    -- Of a blob store, the part that belongs to these tables.
    folder        varchar(12) NOT NULL
) {table};
INSERT INTO {prefix}catalog (one, version, folder)
VALUES (1, floor(rand() * 9007199254740992), left(md5(concat(rand(), uuid())), 12)) ON DUPLICATE KEY UPDATE one = 1;

-- Held while a caller's transaction relies on the catalog as it is, and by whoever changes who wants what. More than one row for TiDB, where a
-- lock cannot be shared: each transaction holds another, and a change waits for all.
CREATE TABLE IF NOT EXISTS {prefix}catalog_lock (
    place smallint PRIMARY KEY
) {table};
INSERT INTO {prefix}catalog_lock (place) VALUES (1), (2), (3), (4), (5), (6), (7), (8), (9), (10), (11), (12), (13), (14), (15), (16)
ON DUPLICATE KEY UPDATE place = {prefix}catalog_lock.place;

CREATE TABLE IF NOT EXISTS {prefix}name (
    id   integer AUTO_INCREMENT PRIMARY KEY,
    name varchar(255) NOT NULL UNIQUE
) {counted};

CREATE TABLE IF NOT EXISTS {prefix}subscription (
    id           integer AUTO_INCREMENT PRIMARY KEY,
    consumer     integer NOT NULL,
    type         varchar(255) NOT NULL,
    key_path     text,
    key_function boolean NOT NULL DEFAULT false,
    sequence     text,
    on_dead      varchar(10) NOT NULL DEFAULT 'block' CHECK (on_dead IN ('block', 'continue')),
    aggregate    text,
    -- It gets no further messages; the row stays for those that it has.
    retired      boolean NOT NULL DEFAULT false,
    -- Whether its handler was seen to finish messages without using its transaction; null until that is known.
    apart        boolean,
    UNIQUE KEY {prefix}subscription_pair (consumer, type),
    KEY {prefix}subscription_type (type)
) {counted};

-- `receipt` is a random number of the call that stored the row, by which that call finds what it has stored.
CREATE TABLE IF NOT EXISTS {prefix}ledger (
    seq         bigint AUTO_INCREMENT PRIMARY KEY,
    consumer    integer NOT NULL,
    source      integer NOT NULL,
    -- Of (type, version): the body, which says them in full, may be gone before the id.
    type_hash   bigint NOT NULL,
    -- Which part of all messages it belongs to (docs/schema.md). It stands where it takes the least room.
    slot        smallint NOT NULL,
    id          tinyblob NOT NULL,
    hash        binary(32) NOT NULL,
    received_at bigint NOT NULL,
    receipt     bigint NOT NULL,
    UNIQUE KEY {prefix}ledger_identity (consumer, source, id(201))
) {counted};

CREATE TABLE IF NOT EXISTS {prefix}body (
    seq         bigint PRIMARY KEY,
    source      integer NOT NULL,
    id          text NOT NULL,
    type        varchar(255) NOT NULL,
    version     integer NOT NULL,
    `key`       text,
    -- Who said it: 'caller', 'worker', or NULL where it was found in the message when that was received.
    key_from    varchar(10),
    -- The namespace of the key, where its handler has one of its own.
    aggregate   text,
    position    bigint,
    headers     longtext,
    body        longblob,
    destination text,
    cause       bigint,
    received_at bigint NOT NULL,
    -- Of a message that was not to run before.
    due_at      bigint,
    -- The name of the blob that the body is in. The reference to it is the first header (see reference.py).
    blob_name   varchar(56) AS (CASE WHEN left(headers, 18) = '{"onceward-blob":"' THEN substr(headers, 19, 56) END) VIRTUAL,
    KEY {prefix}body_cause (cause),
    KEY {prefix}body_blob (blob_name)
) {table};

-- The columns that are generated take the place of partial indexes: they are empty, and first in their index, but for the few rows that a
-- statement looks for. So a claim costs the same however much is finished, dead or waiting.
CREATE TABLE IF NOT EXISTS {prefix}queue (
    seq            bigint PRIMARY KEY,
    subscription   integer,
    -- Of the key that the row has now, or of its id.
    slot           smallint NOT NULL,
    key_hash       bigint,
    -- Where it stands in its key: what is scheduled comes last of all, until it is due.
    place          bigint NOT NULL,
    sequence       bigint,
    outgoing       boolean NOT NULL DEFAULT false,
    destination    varchar(255),
    state          varchar(10) NOT NULL CHECK (state IN ('ready', 'retry', 'scheduled', 'waiting', 'unhandled', 'dead')),
    due_at         bigint,
    worker         bigint,
    token          bigint,
    attempts       integer NOT NULL DEFAULT 0,
    crashes        integer NOT NULL DEFAULT 0,
    isolation      integer NOT NULL DEFAULT 0,
    -- Of an unhandled row: its type. Without a subscription nobody had subscribed to it; with one, its key was
    -- not to be found. A row that was copied from another has that one's number in `sequence`: when it came.
    type           varchar(255),
    -- How often an error of the database was not charged to it.
    postponed      integer NOT NULL DEFAULT 0,
    -- Its number, where it may be claimed; its time, where it may be claimed from then on.
    free_seq       bigint AS (CASE WHEN state = 'ready' AND token IS NULL AND isolation = 0 THEN seq END) VIRTUAL,
    free_due       bigint AS (CASE WHEN token IS NULL AND isolation = 0 THEN due_at END) VIRTUAL,
    -- The level of an isolated one, 0 of a dead one.
    apart          integer AS (CASE WHEN state = 'dead' THEN 0 WHEN isolation > 0 THEN isolation END) VIRTUAL,
    waiting_key    bigint AS (CASE WHEN state = 'waiting' THEN key_hash END) VIRTUAL,
    unhandled_type varchar(255) AS (CASE WHEN state = 'unhandled' THEN type END) VIRTUAL,
    unhandled_from bigint AS (CASE WHEN state = 'unhandled' THEN coalesce(sequence, seq) END) VIRTUAL,
    KEY {prefix}queue_ready (destination, free_seq),
    KEY {prefix}queue_due (destination, free_due),
    KEY {prefix}queue_apart (apart, seq),
    KEY {prefix}queue_claimed (worker, key_hash),
    KEY {prefix}queue_key (key_hash, place, seq),
    KEY {prefix}queue_waiting (waiting_key, place, seq),
    KEY {prefix}queue_unhandled (unhandled_type, subscription, unhandled_from),
    CHECK ((worker IS NULL) = (token IS NULL)),
    CHECK (token IS NULL OR state IN ('ready', 'retry')),
    CHECK (state = 'waiting' OR (state IN ('retry', 'scheduled')) = (due_at IS NOT NULL)),
    CHECK (state <> 'waiting' OR key_hash IS NOT NULL),
    CHECK (subscription IS NOT NULL OR state = 'unhandled'),
    CHECK (state <> 'unhandled' OR type IS NOT NULL),
    CHECK (outgoing = (destination IS NOT NULL))
) {table};

-- A key is locked by its row here, and the lock is a write, which a cluster of several writers compares when it commits. Whoever removes a
-- message of the key removes the row, too: it is there while a message of the key is claimed.
CREATE TABLE IF NOT EXISTS {prefix}key_lock (
    key_hash bigint PRIMARY KEY,
    uses     bigint NOT NULL DEFAULT 1
) {table};

CREATE TABLE IF NOT EXISTS {prefix}run (
    id           bigint AUTO_INCREMENT PRIMARY KEY,
    worker       bigint NOT NULL,
    token        bigint NOT NULL,
    code_version text NOT NULL,
    finished_at  bigint NOT NULL,
    first_seq    bigint NOT NULL,
    last_seq     bigint NOT NULL,
    seqs         longtext NOT NULL,
    messages     integer NOT NULL,
    outgoing     boolean NOT NULL DEFAULT false,
    KEY {prefix}run_seq (last_seq, first_seq)
) {counted};

CREATE TABLE IF NOT EXISTS {prefix}result (
    seq    bigint PRIMARY KEY,
    result longtext NOT NULL
) {table};

CREATE TABLE IF NOT EXISTS {prefix}attempt (
    id           bigint AUTO_INCREMENT PRIMARY KEY,
    seq          bigint NOT NULL,
    attempt      integer NOT NULL,
    kind         varchar(10) NOT NULL CHECK (kind IN ('error', 'crash')),
    charged      boolean NOT NULL,
    error        longtext NOT NULL,
    traceback    longtext,
    worker       bigint,
    code_version text NOT NULL,
    fingerprint  varchar(255) NOT NULL DEFAULT '',
    at           bigint NOT NULL,
    KEY {prefix}attempt_seq (seq)
) {counted};

-- The number is random: after a failover to a standby that lagged, one that was counted would be given twice.
CREATE TABLE IF NOT EXISTS {prefix}worker (
    id           bigint PRIMARY KEY,
    process      varchar(255) NOT NULL UNIQUE,
    host         text NOT NULL,
    pid          integer NOT NULL,
    code_version text NOT NULL,
    -- What it has handlers for: lines of consumer, type and version, with a line end on both sides of each.
    handles      longtext NOT NULL,
    -- How many messages it handles at a time.
    lanes        integer NOT NULL DEFAULT 0,
    inline       boolean NOT NULL,
    started_at   bigint NOT NULL,
    alive_until  bigint NOT NULL,
    -- Which circuits were open at its last heartbeat: lines of consumer, type and seconds.
    circuits     longtext
) {table};

CREATE TABLE IF NOT EXISTS {prefix}duplicate (
    seq      bigint PRIMARY KEY,
    copies   bigint NOT NULL,
    first_at bigint NOT NULL,
    last_at  bigint NOT NULL
) {table};

CREATE TABLE IF NOT EXISTS {prefix}first_seen (
    source  integer NOT NULL,
    hash    binary(32) NOT NULL,
    id      text NOT NULL,
    seen_at bigint NOT NULL,
    PRIMARY KEY (source, hash),
    KEY {prefix}first_seen_at (source, seen_at)
) {table};

CREATE TABLE IF NOT EXISTS {prefix}quarantine (
    id           bigint AUTO_INCREMENT PRIMARY KEY,
    seq          bigint NOT NULL,
    hash         binary(32) NOT NULL,
    type_hash    bigint NOT NULL,
    type         varchar(255) NOT NULL,
    version      integer NOT NULL,
    `key`        text,
    position     bigint,
    due_at       bigint,
    headers      longtext,
    body         longblob NOT NULL,
    copies       bigint NOT NULL,
    first_at     bigint NOT NULL,
    last_at      bigint NOT NULL,
    resolution   varchar(20) CHECK (resolution IN ('keep-first', 'accept-as-new', 'revision')),
    accepted_seq bigint,
    UNIQUE KEY {prefix}quarantine_copy (seq, hash, type_hash),
    -- The case from which a message was accepted, for its erasure.
    KEY {prefix}quarantine_accepted (accepted_seq)
) {counted};

CREATE TABLE IF NOT EXISTS {prefix}audit (
    id     bigint AUTO_INCREMENT PRIMARY KEY,
    at     bigint NOT NULL,
    actor  text NOT NULL,
    action varchar(40) NOT NULL,
    seq    bigint NOT NULL,
    reason longtext NOT NULL,
    KEY {prefix}audit_seq (seq)
) {counted};

-- Bytes, so that a key may be as long as it may be and still stand in the primary key.
CREATE TABLE IF NOT EXISTS {prefix}progress (
    consumer  integer NOT NULL,
    aggregate varbinary(1024) NOT NULL,
    `key`     varbinary(1024) NOT NULL,
    applied   bigint NOT NULL,
    PRIMARY KEY (consumer, aggregate, `key`)
) {table};

CREATE TABLE IF NOT EXISTS {prefix}effect (
    `key`       varchar(64) PRIMARY KEY,
    seq         bigint NOT NULL,
    name        text NOT NULL,
    result      longtext,
    done        boolean NOT NULL DEFAULT false,
    worker      bigint NOT NULL,
    started_at  bigint NOT NULL,
    finished_at bigint,
    KEY {prefix}effect_seq (seq)
) {table};

-- One row per polled API. Whose token it carries may store and move the cursor; due_at is when anybody else may take the turn.
CREATE TABLE IF NOT EXISTS {prefix}poll (
    source   integer PRIMARY KEY,
    `cursor` longtext,
    number   bigint NOT NULL,
    hash     binary(32),
    token    varchar(255),
    due_at   bigint NOT NULL,
    ended_at bigint,
    failures integer NOT NULL,
    error    longtext
) {table};

-- How far each part of a source was read: what came before is stored. Written in the transaction that stores it; a part has one reader.
CREATE TABLE IF NOT EXISTS {prefix}position (
    source   integer NOT NULL,
    part     varchar(512) NOT NULL,
    position longtext NOT NULL,
    read_at  bigint NOT NULL,
    PRIMARY KEY (source, part)
) {table};
