"""The PostgreSQL side of the simulation: the real session, the real SQL, real locks; only the clock is virtual.

Each actor's connection has a thread, and the scheduler hands one request at a time to one of them. A statement that
must wait for a lock is recognised by the server itself (`pg_blocking_pids`), so what happens depends on the seed and
not on how fast the machine is. Whatever else the server would decide by itself is settled, too: random numbers, plans,
autovacuum, whom a deadlock hits, and which of several that wait goes on first (`backends.py`).

Many transactions are open at once: this backend reaches what SQLite's single writer cannot: late commits, row locks,
key locks, deadlocks.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from onceward.errors import StoreConflict, StoreUnavailable
from onceward.flow import Begin, Each, Query, Reconnect, Rollback
from onceward.stores.postgres.session import PostgresSession
from onceward.stores.postgres.statement import Statement
from onceward.stores.postgres.store import PostgresStore
from onceward.stores.statements import WORDS, load
from simulation.backends import Backends
from simulation.clock import Clock
from simulation.lite import CROWDED, PREFIX, TABLES, UNSEEN
from simulation.requests import Blocked, Close, Open, Write

GLANCE = 0.003
"""Seconds before the server is asked whether a statement waits for a lock."""
CANCELLED = 60.0
"""Seconds in which the server has ended a statement that was cancelled, however busy the machine is."""
SETTINGS = {
    "plan_cache_mode": "force_generic_plan",  # else the order of rows depends on what a connection has run before
    "deadlock_timeout": "1h",  # whom the server ends depends on how fast the machine is; `_break_deadlock` chooses
}
"""What the server would else decide by its own clock or memory."""
_QUIET = """SELECT format('ALTER TABLE %s SET (autovacuum_enabled = off)', oid::regclass)
FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"""
EFFECTS = """CREATE TABLE IF NOT EXISTS effect_log (
    id bigserial PRIMARY KEY, consumer text NOT NULL, source text NOT NULL, message text NOT NULL,
    seq bigint NOT NULL, key text, number bigint, hash bytea NOT NULL, attempt integer NOT NULL)"""
_INSERT = (
    "INSERT INTO effect_log (consumer, source, message, seq, key, number, hash, attempt) VALUES "
    "(%(consumer)s, %(source)s, %(message)s, %(seq)s, %(key)s, %(number)s, %(hash)s, %(attempt)s)"
)
_REAL_TIME = re.compile("|".join(re.escape(WORDS["postgres"][word]) for word in ("now", "clock")))
_FENCE_ONLY = "SELECT set_config('onceward.fence', %(fence)s, true)"
_NOW = " FROM (SELECT set_config('onceward.now', %(now)s::text, true)) AS clock"
"""For a function in the database, which has no parameters of a statement's."""
_VIRTUAL_NOW = "current_setting('onceward.now')::bigint"


def virtual(statements: dict[str, str]) -> dict[str, str]:
    """The same statements under a virtual clock, with the seed's random numbers and without limits in real time."""
    found = {name: _REAL_TIME.sub("%(now)s::bigint", text) for name, text in statements.items()}
    found = {name: text.replace("random()", "%(chance)s::float8") for name, text in found.items()}
    return {**found, "begin_limits": _FENCE_ONLY, "rotate_partition": found["rotate_partition"] + _NOW}


class PgDatabase:
    """One database on a real server, used by one history after the other."""

    name = "postgres"
    single_writer = False

    def __init__(self, url: str, statements: Mapping[str, tuple[str, ...]] | None = None) -> None:
        url = _settled(url)
        store = PostgresStore(url, PREFIX)
        store.migrate()
        self.store, self.url = store, url
        self._probe = psycopg.connect(url, autocommit=True)
        self.backends = Backends(self._probe)
        self._probe.execute(EFFECTS)
        for (command,) in self.run(_QUIET):
            self._probe.execute(command)
        ((function,),) = self.run("SELECT pg_get_functiondef(%s::regproc)", f"{PREFIX}rotate_partition")
        self._probe.execute(_REAL_TIME.sub(_VIRTUAL_NOW, function))
        texts = statements or load("postgres", PREFIX)
        self.statements = virtual({name: parts[0] for name, parts in texts.items()})
        self.clock = Clock()
        self.chance = random.Random(0)
        self.epoch = 0
        self._pool: list[PgSession] = []
        self._callers: list[PgCaller] = []
        self.sessions: list[PgSession] = []

    def run(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Look at what is committed."""
        return self._probe.execute(sql, parameters or None).fetchall()

    def reset(self, clock: Clock) -> None:
        """Begin a new history with empty tables."""
        for session in list(self.sessions):
            self.give_back(session)
        self.clock, self.epoch = clock, 0
        self.chance.seed(0)
        names = ", ".join([f"{PREFIX}{table}" for table in TABLES[1:] + UNSEEN] + ["effect_log"])
        self._probe.execute(f"TRUNCATE {names} RESTART IDENTITY CASCADE")
        self._probe.execute(f"UPDATE {PREFIX}catalog SET version = 1, last_crash_at = NULL")
        self._probe.execute(f"UPDATE {PREFIX}maintenance SET due_at = 0")
        self._probe.execute(f"ALTER SEQUENCE {PREFIX}seq RESTART")
        self._remove_partitions()

    def _remove_partitions(self) -> None:
        """All bodies are in the first partition again."""
        partitions = [number for (number,) in self.run(f"SELECT number FROM {PREFIX}partition")]
        for number in partitions:
            if number:
                self._probe.execute(f"DROP TABLE {PREFIX}body_{number}")
        self._probe.execute(f"DELETE FROM {PREFIX}partition WHERE number <> 0")
        self._probe.execute(f"UPDATE {PREFIX}partition SET opened_at = NULL, closed_at = NULL")
        if 0 not in partitions:
            self._probe.execute(f"SELECT {PREFIX}add_partition(0)")

    def snapshot(self) -> dict[str, list[Any]]:
        """Everything that is committed, and how far the sequences are, as `restore` takes it."""
        names = [*(f"{PREFIX}{table}" for table in [*TABLES, *UNSEEN, "maintenance"]), "effect_log"]
        found = {name: self.run(f"SELECT * FROM {name}") for name in names}
        found[""] = self.run(
            "SELECT quote_ident(sequencename), last_value FROM pg_sequences WHERE schemaname = 'public'"
        )
        return found

    def restore(self, tables: dict[str, list[Any]]) -> None:
        """Be what it was; no transaction is open."""
        rows = dict(tables)
        sequences = rows.pop("")
        self._probe.execute(f"TRUNCATE {', '.join(rows)} CASCADE")
        for name, found in rows.items():
            if found:
                marks = ", ".join(["%s"] * len(found[0]))
                with self._probe.cursor() as cursor:
                    cursor.executemany(f"INSERT INTO {name} OVERRIDING SYSTEM VALUE VALUES ({marks})", found)
        for name, last in sequences:
            self.run("SELECT setval(%s::regclass, %s, %s)", name, last or 1, last is not None)
        self.epoch += 1

    def session(self, name: str) -> PgSession:
        """A connection of its own for an actor."""
        session = self._pool.pop() if self._pool else PgSession(self)
        session.name, session.broken = name, False
        self.sessions.append(session)
        return session

    def caller(self, name: str) -> PgCaller:
        """A connection of a program's own, in whose transactions it receives."""
        caller = self._callers.pop() if self._callers else PgCaller(self)
        caller.name, caller.broken = name, False
        self.sessions.append(caller)
        return caller

    def give_back(self, session: PgSession) -> None:
        """The actor is gone; its connection may serve another."""
        session.cut()
        self.sessions.remove(session)
        if isinstance(session, PgCaller):
            self._callers.append(session)
        else:
            self._pool.append(session)

    def close(self) -> None:
        """Close every connection."""
        for session in [*self.sessions, *self._pool, *self._callers]:
            session.close()
        self._probe.close()
        self.store.close()

    def ended(self) -> None:
        """A transaction has ended: whoever waited for it goes on or waits for another."""
        self.epoch += 1
        waiting = [session for session in self.sessions if session.waits]
        self.chance.shuffle(waiting)
        while any(session.come_to_rest() for session in waiting):  # it may have ended what others waited for
            waiting = [session for session in waiting if session.waits]

    def claims(self) -> list[tuple[int | None, int, int, int]]:
        """Committed claims: (key hash, worker, token, seq)."""
        rows = self.run(f"SELECT key_hash, worker, token, seq FROM {PREFIX}queue WHERE token IS NOT NULL ORDER BY seq")
        return [(row[0], row[1], row[2], row[3]) for row in rows]

    def crowded(self) -> list[int]:
        """Committed claims of messages that must be alone and are not: their worker holds another."""
        return [row[0] for row in self.run(CROWDED)]

    def has_effect_intent(self, key: str) -> bool:
        """Whether the intent of an external call is committed."""
        return bool(self.run(f"SELECT 1 FROM {PREFIX}effect WHERE key = %s", key))

    def has_outgoing(self, message_id: str) -> bool:
        """Whether an outgoing message is committed."""
        return bool(self.run(f"SELECT 1 FROM {PREFIX}body WHERE id = %s", message_id))

    def outgoing_of(self, worker: int) -> set[str]:
        """The ids of outgoing messages that a worker has claimed and not finished."""
        sql = f"SELECT b.id FROM {PREFIX}queue q JOIN {PREFIX}body b USING (seq) WHERE q.outgoing AND q.worker = %s"
        return {row[0] for row in self.run(sql, worker)}

    def catalog_version(self) -> int:
        """The committed version of the catalog."""
        return int(self.run(f"SELECT version FROM {PREFIX}catalog")[0][0])

    def waits_for_caller(self, session: PgSession) -> bool:
        """Whether a caller's transaction is in the way."""
        callers = {one.pid for one in self.sessions if isinstance(one, PgCaller)}
        return not callers.isdisjoint(self.backends.blockers(session.pid))

    def names(self) -> dict[int, str]:
        """Names by their numbers."""
        return dict(self.run(f"SELECT id, name FROM {PREFIX}name"))

    def queue(self) -> list[tuple[int, str, int | None]]:
        """Committed unfinished messages: (seq, state, token)."""
        return [
            (row[0], row[1], row[2]) for row in self.run(f"SELECT seq, state, token FROM {PREFIX}queue ORDER BY seq")
        ]

    def open_cases(self) -> list[int]:
        """Open cases of quarantine."""
        return [row[0] for row in self.run(f"SELECT id FROM {PREFIX}quarantine WHERE resolution IS NULL ORDER BY id")]

    def cases(self) -> set[int]:
        """The messages that have a case of quarantine, open or decided."""
        return {row[0] for row in self.run(f"SELECT seq FROM {PREFIX}quarantine")}

    def open_effects(self) -> list[tuple[str, int]]:
        """(key, seq) of effects whose outcome is not recorded and whose message is not running."""
        rows = self.run(
            f"SELECT e.key, e.seq FROM {PREFIX}effect e JOIN {PREFIX}queue q ON q.seq = e.seq "
            "WHERE NOT e.done AND q.token IS NULL ORDER BY e.key"
        )
        return [(row[0], row[1]) for row in rows]

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Everything that is committed."""
        found = {name: self._dump(PREFIX + name) for name in TABLES}
        found["effect_log"] = self._dump("effect_log")
        return found

    def _dump(self, table: str) -> list[dict[str, Any]]:
        cursor = self._probe.execute(f"SELECT * FROM {table} ORDER BY 1")
        names = [column.name for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor]


def _settled(url: str) -> str:
    """The same database, for connections to which nothing happens by itself."""
    options = " ".join(f"-c {name}={value}" for name, value in SETTINGS.items())
    return make_conninfo(url, options=options)


class PgSession:
    """An actor's connection and its thread; it can be cut."""

    patience = 20.0
    changed = 0
    is_caller = False
    """Whether its transactions begin and end as somebody else says."""

    def __init__(self, database: PgDatabase) -> None:
        self.database, self.name, self.broken = database, "", False
        self._thread = ThreadPoolExecutor(1)
        statements = {name: Statement.of(name, text) for name, text in database.statements.items()}
        self._real = self._connected(statements)
        self._pending: Future[Any] | None = None

    def _connected(self, statements: dict[str, Statement]) -> PostgresSession:
        store = self.database.store
        return PostgresSession(statements, store.open_connection(), reopen=store.open_connection)

    @property
    def pid(self) -> int:
        """Whom to ask the server about; after a refused pipeline the session goes on with another connection."""
        return int(self._real.connection.info.backend_pid)

    @property
    def idle(self) -> bool:
        """Whether no transaction is open."""
        return self._pending is None and self._real.idle

    def perform(self, request: Any) -> Any:
        """Perform one request; raises `Blocked` while it waits for a lock."""
        if isinstance(request, Reconnect):
            self.cut()
            self.broken = False
            return True
        if self.broken:
            raise StoreUnavailable("the connection is gone")
        if isinstance(request, Begin):
            self.patience = request.lock_limit
            return self._real.perform(request)
        if self._pending is None:
            self._pending = self._thread.submit(self._action(request))
        was_open = not self._real.idle or not isinstance(request, Rollback)
        if not self.come_to_rest():
            self._break_deadlock()
        pending, self._pending = self._pending, None
        try:
            answer = pending.result()
        except BaseException:
            self.database.ended()  # its locks are free as soon as it is refused, before it is rolled back
            raise
        if was_open and self._real.idle:
            self.database.ended()
        return answer

    def _action(self, request: Any) -> Callable[[], Any]:
        clock = self.database.clock
        now = {"now": clock.wall(), "chance": self.database.chance.random()}
        if isinstance(request, Query):
            request = replace(request, params={**request.params, **now})
        elif isinstance(request, Each):
            request = replace(request, shared={**request.shared, **now})
        if isinstance(request, Write):
            return lambda: self._write(request)
        return lambda: self._real.perform(request)

    def _write(self, request: Write) -> None:
        connection = self._real.connection
        connection.lend()
        try:
            connection.execute(_INSERT, request.row)
        except psycopg.Error as error:
            raise StoreUnavailable(str(error)) from error
        finally:
            connection.reclaim()

    def come_to_rest(self) -> bool:
        """Wait until the running statement has ended (True) or waits for somebody (False)."""
        if self._pending is None:
            return True
        backends = self.database.backends
        while True:
            try:
                self._pending.exception(timeout=0 if backends.is_stopped(self.pid) else GLANCE)
            except TimeoutError:
                if backends.waits(self.pid):
                    return False
            else:
                return True

    @property
    def waits(self) -> bool:
        """Whether its last request has not been answered when it came to rest."""
        return self._pending is not None and not self._pending.done()

    def _break_deadlock(self) -> None:
        """Wait with the others; where they wait for each other, the last to come is ended, as the server would do."""
        if not self.database.backends.in_deadlock(self.pid):
            raise Blocked
        self._cancel()
        raise StoreConflict("deadlock detected")

    def peek_state(self, seq: int) -> str:
        """The state of a row as this transaction sees it."""
        sql = f"SELECT state FROM {PREFIX}queue WHERE seq = %s"
        row = psycopg.Cursor(self._real.connection).execute(sql, (seq,)).fetchone()
        return str(row[0]) if row else ""

    def give_up(self) -> None:
        """It waited too long for a lock: the statement is cancelled, and the transaction with it."""
        self._cancel()

    def _cancel(self) -> None:
        if self._pending is not None:
            if not self._pending.done():  # it waits for a lock, so this is what ends it: once, or the next would be hit
                self.database.run("SELECT pg_cancel_backend(%s)", self.pid)
                self.database.backends.go_on(self.pid)
                self._pending.exception(timeout=CANCELLED)
            self._pending = None
            self.database.ended()

    def abort(self) -> None:
        """The database rolls the transaction back; the connection stays."""
        self._cancel()
        open_before = not self._real.idle
        self._real.connection.pending_begin = None
        if open_before:
            self._real.perform(Rollback())
            self.database.ended()

    def cut(self) -> None:
        """The connection is lost, and with it whatever is not committed."""
        self.abort()
        self.broken = True

    def close(self) -> None:
        """The connection is not needed any more."""
        self.cut()
        self._thread.shutdown()
        self._real.close()


class PgCaller(PgSession):
    """A program's own connection: it begins and ends the transactions in which our statements run."""

    is_caller = True

    def _connected(self, statements: dict[str, Statement]) -> PostgresSession:
        return PostgresSession(statements, psycopg.connect(self.database.url, prepare_threshold=None))

    def _action(self, request: Any) -> Callable[[], Any]:
        connection = self._real.connection
        if isinstance(request, Open):
            return lambda: self._open(request)
        if isinstance(request, Close):
            return lambda: connection.commit() if request.commits else connection.rollback()
        return super()._action(request)

    def close(self) -> None:
        """The connection is the program's own: what only joins it does not close it."""
        super().close()
        self._real.connection.close()

    def _open(self, request: Open) -> None:
        self._real.connection.execute(f"BEGIN ISOLATION LEVEL {request.isolation}")
        self._real.connection.execute("SELECT count(*) FROM effect_log")  # what it sees is decided here

    def abort(self) -> None:
        """Its transaction is rolled back."""
        self._cancel()
        if not self._real.idle:
            self._real.connection.rollback()
            self.database.ended()
