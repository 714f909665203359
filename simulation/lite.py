"""The SQLite side of the simulation: the real session and the real SQL, one connection for each actor.

Invariant: at most one actor has a transaction open, as SQLite has one writer; an actor that would have to wait is told
so (`Blocked`) instead of blocking the only thread. The database is emptied, not rebuilt, between histories: the
prepared statements stay valid, and nothing of an earlier history remains.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
import tempfile
from collections.abc import Mapping
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from onceward.errors import StoreUnavailable
from onceward.flow import Begin, Commit, Reconnect, Rollback
from onceward.stores import migrate
from onceward.stores.sqlite.guard import HandlerConnection
from onceward.stores.sqlite.session import SqliteSession
from onceward.stores.statements import load
from simulation.clock import Clock
from simulation.requests import Blocked, Close, Open, Write

PREFIX = "o_"
CROWDED = (
    f"SELECT q.seq FROM {PREFIX}queue q WHERE q.token IS NOT NULL AND q.isolation = 1 AND EXISTS"
    f" (SELECT 1 FROM {PREFIX}queue o WHERE o.worker = q.worker AND o.token IS NOT NULL AND o.seq <> q.seq) ORDER BY 1"
)
PATIENCE = 10.0
"""How long a connection waits for the writer: five times `Settings.lock_wait`."""
EFFECTS = """CREATE TABLE effect_log (
    id integer PRIMARY KEY AUTOINCREMENT, consumer text NOT NULL, source text NOT NULL, message text NOT NULL,
    seq integer NOT NULL, key text, number integer, hash blob NOT NULL, attempt integer NOT NULL)"""
TABLES = [
    "catalog",
    "name",
    "subscription",
    "ledger",
    "body",
    "queue",
    "run",
    "result",
    "attempt",
    "worker",
    "duplicate",
    "quarantine",
    "audit",
    "progress",
    "effect",
]
UNSEEN = ["first_seen", "source"]
"""Tables that no check looks at."""
_INSERT = (
    "INSERT INTO effect_log (consumer, source, message, seq, key, number, hash, attempt) "
    "VALUES (:consumer, :source, :message, :seq, :key, :number, :hash, :attempt)"
)


class LiteDatabase:
    """One database in memory, used by one history after the other."""

    name = "sqlite"
    single_writer = True

    def __init__(
        self, statements: Mapping[str, tuple[str, ...]] | None = None, *, schema: tuple[str, str] = ("", "")
    ) -> None:
        # Not vfs=memdb: there a reader is locked out while anybody writes, and the observer must see what is committed.
        memory = Path("/dev/shm")  # noqa: S108 - the folder inside it is made by mkdtemp
        folder = tempfile.mkdtemp(prefix="simulation-", dir=memory if memory.is_dir() else None)
        # Runs at the end of worker processes too, where `atexit` does not.
        self.close = Finalize(self, shutil.rmtree, (folder,), exitpriority=10)
        self._path = str(Path(folder) / "simulation.db")
        self._chance = random.Random(0)
        self._probe = self._connect()
        self._pool: list[HandlerConnection] = []
        self.statements = dict(statements or load("sqlite", PREFIX))
        self.clock = Clock()
        self.writer: LiteSession | None = None
        self.epoch = 0
        self._sessions: list[LiteSession] = []
        sqlite3.Cursor(self._probe).execute("BEGIN IMMEDIATE")
        migrate.apply("sqlite", PREFIX, "sqlite://", lambda sql: self._run(sql.replace(*schema) if schema[0] else sql))
        self._run(EFFECTS)
        self._run("COMMIT")

    def _connect(self) -> HandlerConnection:
        connection = sqlite3.connect(
            self._path, isolation_level=None, timeout=0, cached_statements=256, factory=HandlerConnection
        )
        # Not by its own method, after which it would be taken for one that a handler has changed.
        sqlite3.Connection.create_function(connection, "random", 0, lambda: self._chance.getrandbits(62))
        sqlite3.Cursor(connection).execute("PRAGMA journal_mode = WAL")
        sqlite3.Cursor(connection).execute("PRAGMA synchronous = OFF")
        return connection

    def _run(self, sql: str) -> list[Any]:
        return sqlite3.Cursor(self._probe).execute(sql).fetchall()

    def reset(self, clock: Clock) -> None:
        """Begin a new history with empty tables."""
        for session in self._sessions:
            session.cut()
            self._pool.append(session.connection)
        self._sessions = []
        self._chance.seed(0)
        self.clock, self.writer, self.epoch = clock, None, 0
        self._run("BEGIN IMMEDIATE")
        for table in TABLES[1:] + UNSEEN:
            self._run(f"DELETE FROM {PREFIX}{table}")
        self._run("DELETE FROM effect_log")
        self._run("DELETE FROM sqlite_sequence")
        self._run(f"UPDATE {PREFIX}catalog SET version = 1, last_crash_at = NULL")
        self._run(f"UPDATE {PREFIX}maintenance SET due_at = 0")
        self._run("COMMIT")

    def snapshot(self) -> dict[str, list[Any]]:
        """Everything that is committed, as `restore` takes it."""
        names = [row[0] for row in self._run("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: self._run(f"SELECT * FROM {name}") for name in names}

    def restore(self, tables: dict[str, list[Any]]) -> None:
        """Be what it was; no transaction is open."""
        self._run("BEGIN IMMEDIATE")
        for name, rows in tables.items():
            self._run(f"DELETE FROM {name}")
            if rows:
                marks = ", ".join("?" * len(rows[0]))
                sqlite3.Cursor(self._probe).executemany(f"INSERT INTO {name} VALUES ({marks})", rows)
        self._run("COMMIT")
        self.epoch += 1

    def session(self, name: str) -> LiteSession:
        """A connection of its own for an actor."""
        session = LiteSession(self, name, self._pool.pop() if self._pool else self._connect())
        self._sessions.append(session)
        return session

    def caller(self, name: str) -> LiteSession:
        """A connection of a program's own, in whose transactions it receives."""
        session = LiteCaller(self, name, self._pool.pop() if self._pool else self._connect())
        self._sessions.append(session)
        return session

    def give_back(self, session: LiteSession) -> None:
        """The actor is gone; its connection may serve another."""
        session.cut()
        self._sessions.remove(session)
        self._pool.append(session.connection)

    def claims(self) -> list[tuple[int | None, int, int, int]]:
        """Committed claims: (key hash, worker, token, seq)."""
        rows = self._run(f"SELECT key_hash, worker, token, seq FROM {PREFIX}queue WHERE token IS NOT NULL")
        return [tuple(row) for row in rows]

    def crowded(self) -> list[int]:
        """Committed claims of messages that must be alone and are not: their worker holds another."""
        return [row[0] for row in self._run(CROWDED)]

    def has_effect_intent(self, key: str) -> bool:
        """Whether the intent of an external call is committed."""
        cursor = sqlite3.Cursor(self._probe).execute(f"SELECT 1 FROM {PREFIX}effect WHERE key = ?", (key,))
        return cursor.fetchone() is not None

    def has_outgoing(self, message_id: str) -> bool:
        """Whether an outgoing message is committed."""
        cursor = sqlite3.Cursor(self._probe).execute(f"SELECT 1 FROM {PREFIX}body WHERE id = ?", (message_id,))
        return cursor.fetchone() is not None

    def outgoing_of(self, worker: int) -> set[str]:
        """The ids of outgoing messages that a worker has claimed and not finished."""
        sql = f"SELECT b.id FROM {PREFIX}queue q JOIN {PREFIX}body b ON b.seq = q.seq WHERE q.outgoing AND q.worker = ?"
        return {row[0] for row in sqlite3.Cursor(self._probe).execute(sql, (worker,))}

    def catalog_version(self) -> int:
        """The committed version of the catalog."""
        return int(self._run(f"SELECT version FROM {PREFIX}catalog")[0][0])

    def waits_for_caller(self, _session: LiteSession) -> bool:
        """Whether a caller's transaction is in the way that need not be; there is one writer here."""
        return False

    def names(self) -> dict[int, str]:
        """Names by their numbers."""
        return dict(self._run(f"SELECT id, name FROM {PREFIX}name"))

    def queue(self) -> list[tuple[int, str, int | None]]:
        """Committed unfinished messages: (seq, state, token)."""
        return [tuple(row) for row in self._run(f"SELECT seq, state, token FROM {PREFIX}queue ORDER BY seq")]

    def open_cases(self) -> list[int]:
        """Open cases of quarantine."""
        rows = self._run(f"SELECT id FROM {PREFIX}quarantine WHERE resolution IS NULL ORDER BY id")
        return [row[0] for row in rows]

    def cases(self) -> set[int]:
        """The messages that have a case of quarantine, open or decided."""
        return {row[0] for row in self._run(f"SELECT seq FROM {PREFIX}quarantine")}

    def open_effects(self) -> list[tuple[str, int]]:
        """(key, seq) of effects whose outcome is not recorded and whose message is not running."""
        rows = self._run(
            f"SELECT e.key, e.seq FROM {PREFIX}effect e JOIN {PREFIX}queue q ON q.seq = e.seq "
            "WHERE NOT e.done AND q.token IS NULL ORDER BY e.key"
        )
        return [tuple(row) for row in rows]

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Everything that is committed."""
        found = {name: self._dump(PREFIX + name) for name in TABLES}
        found["effect_log"] = self._dump("effect_log")
        return found

    def _dump(self, table: str) -> list[dict[str, Any]]:
        cursor = sqlite3.Cursor(self._probe).execute(f"SELECT * FROM {table} ORDER BY 1")
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]


class LiteSession:
    """An actor's connection; it can be cut."""

    is_caller = False
    """Whether its transactions begin and end as somebody else says."""

    def __init__(self, database: LiteDatabase, name: str, connection: HandlerConnection) -> None:
        self.database, self.name, self.connection = database, name, connection
        self.broken = False
        self.patience = PATIENCE
        connection.pending_begin = None
        self._real = self._connected()

    def _connected(self) -> SqliteSession:
        return SqliteSession(self.database.statements, self._now, self.connection, reopen=lambda: self.connection)

    def _now(self) -> int:
        return self.database.clock.wall()

    @property
    def idle(self) -> bool:
        """Whether no transaction is open."""
        return not self.connection.in_transaction

    def perform(self, request: Any) -> Any:
        """Perform one request; raises `Blocked` when another actor is writing."""
        if isinstance(request, Reconnect):
            self.cut()
            self.broken = False
            return True
        if self.broken:
            raise StoreUnavailable("the connection is gone")
        if not isinstance(request, Begin | Commit | Rollback):
            self._wait_for_writer()
        try:
            own = isinstance(request, Write | Open | Close)
            return self._write(request) if own else self._real.perform(request)
        finally:
            self._record_writer()

    def _write(self, request: Write) -> None:
        self.connection.lend()
        try:
            self.connection.execute(_INSERT, request.row)
        finally:
            self.connection.reclaim()

    def _wait_for_writer(self) -> None:
        writer = self.database.writer
        if writer is not None and writer is not self:
            raise Blocked

    def _record_writer(self) -> None:
        if self.connection.in_transaction:
            self.database.writer = self
        elif self.database.writer is self:
            self.database.writer = None
            self.database.epoch += 1

    @property
    def changed(self) -> int:
        """How many rows the last writing statement changed."""
        row = sqlite3.Cursor(self.connection).execute("SELECT changes()").fetchone()
        return int(row[0])

    def peek_state(self, seq: int) -> str:
        """The state of a row as this transaction sees it."""
        sql = f"SELECT state FROM {PREFIX}queue WHERE seq = ?"
        row = sqlite3.Cursor(self.connection).execute(sql, (seq,)).fetchone()
        return str(row[0]) if row else ""

    def give_up(self) -> None:
        """It waited too long for a lock: the statement failed, nothing else happened."""

    def abort(self) -> None:
        """The database rolls the transaction back; the connection stays."""
        self.connection.pending_begin = None
        if self.connection.in_transaction:
            sqlite3.Cursor(self.connection).execute("ROLLBACK")
        self._record_writer()

    def cut(self) -> None:
        """The connection is lost, and with it whatever is not committed."""
        self.abort()
        self.broken = True


class LiteCaller(LiteSession):
    """A program's own connection: it begins and ends the transactions in which our statements run."""

    is_caller = True

    def _connected(self) -> SqliteSession:
        return SqliteSession(self.database.statements, self._now, self.connection)

    def _write(self, request: Any) -> None:
        if isinstance(request, Write):
            super()._write(request)
        else:
            ends = "COMMIT" if isinstance(request, Close) and request.commits else "ROLLBACK"
            sqlite3.Cursor(self.connection).execute("BEGIN IMMEDIATE" if isinstance(request, Open) else ends)
