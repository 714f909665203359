"""The PostgreSQL side of the simulation: the real session, the real SQL, real locks; only the clock is virtual.

As on every server (`server.py`), what happens depends on the seed. Whatever the server would decide by itself is
settled: random numbers, plans, autovacuum, whom a deadlock hits, and which of several that wait goes on first
(`backends.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from onceward.errors import StoreUnavailable
from onceward.stores.postgres.session import PostgresSession
from onceward.stores.postgres.statement import Statement
from onceward.stores.postgres.store import PostgresStore
from onceward.stores.statements import WORDS, load
from simulation.backends import Backends
from simulation.clock import Clock
from simulation.lite import PREFIX, TABLES, UNSEEN
from simulation.requests import Open, Write
from simulation.server import ServerDatabase, ServerSession

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


class PgDatabase(ServerDatabase):
    """One database on a real server, used by one history after the other."""

    name = "postgres"

    def __init__(self, url: str, statements: Mapping[str, tuple[str, ...]] | None = None) -> None:
        super().__init__()
        url = _settled(url)
        store = PostgresStore(url, PREFIX)
        store.migrate()
        self.store, self.url = store, url
        self._probe = psycopg.connect(url, autocommit=True)
        self.locks = Backends(self._probe)
        self._probe.execute(EFFECTS)
        for (command,) in self.run(_QUIET):
            self._probe.execute(command)
        ((function,),) = self.run("SELECT pg_get_functiondef(%s::regproc)", f"{PREFIX}rotate_partition")
        self._probe.execute(_REAL_TIME.sub(_VIRTUAL_NOW, function))
        texts = virtual({name: parts[0] for name, parts in (statements or load("postgres", PREFIX)).items()})
        self.statements = {name: Statement.of(name, text) for name, text in texts.items()}

    def run(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return self._probe.execute(sql, parameters or None).fetchall()

    def reset(self, clock: Clock) -> None:
        """Begin a new history with empty tables."""
        self.begin(clock)
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

    def new_session(self) -> PgSession:
        return PgSession(self)

    def new_caller(self) -> PgCaller:
        return PgCaller(self)

    def close(self) -> None:
        """Close every connection."""
        self.close_sessions()
        self._probe.close()
        self.store.close()

    def dump(self, table: str) -> list[dict[str, Any]]:
        cursor = self._probe.execute(f"SELECT * FROM {table} ORDER BY 1")
        names = [column.name for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor]


def _settled(url: str) -> str:
    """The same database, for connections to which nothing happens by itself."""
    options = " ".join(f"-c {name}={value}" for name, value in SETTINGS.items())
    return make_conninfo(url, options=options)


class PgSession(ServerSession):
    """An actor's connection and its thread; it can be cut."""

    def connected(self) -> PostgresSession:
        store = self.database.store
        return PostgresSession(self.database.statements, store.open_connection(), reopen=store.open_connection)

    @property
    def pid(self) -> int:
        """Its server process; after a refused pipeline the session goes on with another connection."""
        return int(self._real.connection.info.backend_pid)

    @property
    def is_stopped(self) -> bool:
        return bool(self.database.locks.is_stopped(self.pid))

    def is_waiting(self) -> bool:
        return bool(self.database.locks.waits(self.pid))

    def go_on(self) -> None:
        self.database.locks.go_on(self.pid)

    def write(self, request: Write) -> None:
        connection = self._real.connection
        connection.lend()
        try:
            connection.execute(_INSERT, request.row)
        except psycopg.Error as error:
            raise StoreUnavailable(str(error)) from error
        finally:
            connection.reclaim()

    def open(self, request: Open) -> None:
        self._real.connection.execute(f"BEGIN ISOLATION LEVEL {request.isolation}")
        self._real.connection.execute("SELECT count(*) FROM effect_log")

    def peek_state(self, seq: int) -> str:
        sql = f"SELECT state FROM {PREFIX}queue WHERE seq = %s"
        row = psycopg.Cursor(self._real.connection).execute(sql, (seq,)).fetchone()
        return str(row[0]) if row else ""

    def cancel_statement(self) -> None:
        self.database.run("SELECT pg_cancel_backend(%s)", self.pid)

    def end_victim(self) -> None:
        """It stays open, and refuses everything until it is rolled back."""


class PgCaller(PgSession):
    """A program's own connection: it begins and ends the transactions in which our statements run."""

    is_caller = True

    def connected(self) -> PostgresSession:
        connection = psycopg.connect(self.database.url, prepare_threshold=None)
        return PostgresSession(self.database.statements, connection)
