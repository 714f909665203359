"""The MariaDB side of the simulation: the real session, the real SQL, real locks; only the clock is virtual.

As on every server (`server.py`), what happens depends on the seed. Whatever the server would decide by itself is
settled: random numbers, the statistics of plans, and whom a deadlock hits. What was deleted stays in the indexes for as
long as a history lasts, and is locked there as it is wherever purge has not come by yet: a view that is older than the
history holds purge up.

Of several that wait for a lock the server lets the first one go on, or several at once. These end the statement that
waited, and send the next one when it is their turn (`Gate`): so two of them do not meet again by chance, but where they
do so inside of that statement.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Event
from typing import Any
from unittest.mock import patch

import pymysql

from onceward.domain import identity
from onceward.errors import StoreUnavailable
from onceward.stores.mysql.joined import JoinedSession
from onceward.stores.mysql.programs import Rows
from onceward.stores.mysql.session import MysqlSession
from onceward.stores.mysql.statement import Named
from onceward.stores.mysql.store import MysqlStore
from onceward.stores.mysql.wire import IN_TRANSACTION, send
from onceward.stores.statements import WORDS, load
from simulation.clock import Clock
from simulation.lite import PREFIX, TABLES
from simulation.requests import Open, Write
from simulation.server import ServerDatabase, ServerSession

SETTINGS = {
    "innodb-deadlock-detect": "OFF",  # whom the server ends depends on what it has locked; `_break_deadlock` chooses
    "innodb-autoinc-lock-mode": "2",  # as MySQL 8 and every cluster have it: an insert that waits holds no others up
    "innodb-stats-auto-recalc": "OFF",  # else plans depend on when a thread of the server has counted
}
"""What the server would else decide by its own clock or memory."""
EFFECTS = """CREATE TABLE IF NOT EXISTS effect_log (
    id bigint AUTO_INCREMENT PRIMARY KEY, consumer text NOT NULL, source text NOT NULL, message text NOT NULL,
    seq bigint NOT NULL, `key` text, number bigint, hash blob NOT NULL, attempt integer NOT NULL) ENGINE = InnoDB"""
_INSERT = (
    "INSERT INTO effect_log (consumer, source, message, seq, `key`, number, hash, attempt) VALUES "
    "(%(consumer)s, %(source)s, %(message)s, %(seq)s, %(key)s, %(number)s, %(hash)s, %(attempt)s)"
)
KEPT = {f"{PREFIX}{table}" for table in ("catalog", "catalog_lock", "maintenance", "migration")}
"""Tables that are not empty when a history begins."""
_LIMITS = ("SET SESSION innodb_lock_wait_timeout = 3600",)
_COLUMNS = (
    "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = database() AND table_name IN "
    "(SELECT table_name FROM information_schema.tables WHERE table_schema = database() AND table_type = 'BASE TABLE') "
    "AND extra NOT LIKE '%GENERATED%' ORDER BY table_name, ordinal_position"
)
_COUNTERS = (
    "SELECT table_name, auto_increment FROM information_schema.tables "
    "WHERE table_schema = database() AND auto_increment IS NOT NULL"
)
_BLOCKERS = (
    "SELECT w.trx_mysql_thread_id, h.trx_mysql_thread_id FROM information_schema.innodb_lock_waits l "
    "JOIN information_schema.innodb_trx w ON w.trx_id = l.requesting_trx_id "
    "JOIN information_schema.innodb_trx h ON h.trx_id = l.blocking_trx_id"
)
RENEWED = 0.15
"""Seconds after which InnoDB shows who waits for whom as it is now: it does so once nobody has looked for 0.1."""
_SAME = rb"(?:(?!---TRANSACTION).)*?"
_WAITING = re.compile(
    rb"LOCK WAIT" + _SAME + rb"thread id (\d+)" + _SAME + rb"GRANTED:\n(.*?)(?:PHYSICAL|waiting\n-)", re.DOTALL
)


def virtual(statements: Mapping[str, tuple[str, ...]]) -> Named:
    """The same statements under a virtual clock, with the seed's random numbers and without limits in real time."""
    changed = {**statements, "begin_limits": _LIMITS}
    texts = {
        name: [part.replace(WORDS["mysql"]["now"], ":now").replace("rand()", ":chance") for part in parts]
        for name, parts in changed.items()
    }
    return Named(texts, "mysql")


class Waits:
    """Who waits for whom, as InnoDB says.

    Each new wait is looked at once: what closes a circle is the last wait in it.
    """

    def __init__(self, probe: Any) -> None:
        self._probe = probe  # it answers bytes: statements are shown as they came, bodies and hashes included
        self._harmless: set[tuple[int, bytes]] = set()

    def _run(self, sql: str) -> list[tuple[Any, ...]]:
        with self._probe.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def _waiting(self) -> dict[int, bytes]:
        """For which lock each waits."""
        ((*_, status),) = self._run("SHOW ENGINE INNODB STATUS")
        return {int(number): lock for number, lock in _WAITING.findall(status)}

    def _pairs(self) -> list[tuple[Any, ...]]:
        """Each that waits, with each that it waits for: who holds the lock, and who came before."""
        time.sleep(RENEWED)
        return self._run(_BLOCKERS)

    def blockers(self, pid: int) -> list[int]:
        """Who holds what a connection waits for."""
        return sorted({holder for waiting, holder in self._pairs() if waiting == pid})

    def waits(self, pid: int) -> bool:
        """Whether one waits for a lock."""
        return pid in self._waiting()

    def in_deadlock(self, pid: int) -> bool:
        """Whether one waits, in the end, for itself."""
        waiting = set(self._waiting().items())
        self._harmless &= waiting
        new = {one for one in waiting - self._harmless if one[0] == pid}
        if not new or len(waiting) < 2:  # one alone can only wait for somebody who goes on
            self._harmless |= new
            return False
        pairs, seen, front = self._pairs(), set[int](), [pid]
        while front:
            one = front.pop()
            for holder in {holder for waiting, holder in pairs if waiting == one} - seen:
                if holder == pid:
                    return True
                seen.add(holder)
                front.append(holder)
        self._harmless |= new
        return False


class MariaDatabase(ServerDatabase):
    """One database on a real server, used by one history after the other."""

    name = "mariadb"

    def __init__(self, url: str, statements: Mapping[str, tuple[str, ...]] | None = None) -> None:
        super().__init__()
        self.store = MysqlStore(url, PREFIX)
        self.store.migrate()
        self._probe = self.connect(autocommit=True)
        self._old_view = self.connect()
        self._status = self.connect(autocommit=True, use_unicode=False)
        self.locks = Waits(self._status)
        self.run(EFFECTS)
        self._columns: dict[str, list[str]] = {}
        for table, column in self.run(_COLUMNS):
            self._columns.setdefault(table, []).append(f"`{column}`")
        self.statements = virtual(statements or load("mysql", PREFIX))
        self._numbers = patch.object(identity, "new_number", lambda: self.chance.getrandbits(53))
        self._numbers.start()

    def connect(self, **options: Any) -> Any:
        """A connection that is not the store's."""
        return pymysql.connect(**self.store.address.arguments(), ssl_disabled=True, **options)

    def run(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with self._probe.cursor() as cursor:
            cursor.execute(sql, parameters or None)
            return list(cursor.fetchall())

    def reset(self, clock: Clock) -> None:
        """Begin a new history with empty tables."""
        self.begin(clock)
        self._old_view.rollback()
        for table in self._columns.keys() - KEPT:
            self.run(f"TRUNCATE {table}")
        self.run(f"UPDATE {PREFIX}catalog SET version = 1, last_crash_at = NULL")
        self.run(f"UPDATE {PREFIX}maintenance SET due_at = 0")
        self._old_view.query("START TRANSACTION WITH CONSISTENT SNAPSHOT")

    def snapshot(self) -> dict[str, list[Any]]:
        """Everything that is committed, and how far the numbers are, as `restore` takes it."""
        names = [*(f"{PREFIX}{table}" for table in TABLES), f"{PREFIX}maintenance", *(self._columns.keys() - KEPT)]
        found = {name: self.run(f"SELECT {', '.join(self._columns[name])} FROM {name}") for name in names}
        found[""] = self.run(_COUNTERS)
        return found

    def restore(self, tables: dict[str, list[Any]]) -> None:
        """Be what it was; no transaction is open."""
        rows = dict(tables)
        counters = rows.pop("")
        for name, found in rows.items():
            self.run(f"TRUNCATE {name}")
            if found:
                columns, marks = ", ".join(self._columns[name]), ", ".join(["%s"] * len(found[0]))
                with self._probe.cursor() as cursor:
                    cursor.executemany(f"INSERT INTO {name} ({columns}) VALUES ({marks})", found)
        for name, following in counters:
            self.run(f"ALTER TABLE {name} AUTO_INCREMENT = %s", following)
        self.epoch += 1

    def new_session(self) -> MariaSession:
        return MariaSession(self)

    def new_caller(self) -> MariaCaller:
        return MariaCaller(self)

    def close(self) -> None:
        """Close every connection."""
        self.close_sessions()
        for connection in (self._probe, self._status, self._old_view):
            connection.close()
        self.store.close()
        self._numbers.stop()

    def dump(self, table: str) -> list[dict[str, Any]]:
        with self._probe.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {table} ORDER BY 1")
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


class Gate(Event):
    """Open while it is the turn of a session; a statement is sent through it alone."""

    def each(self, send: Callable[[Any], Any], statements: Iterable[Any]) -> list[Any]:
        """The answers to statements, sent one by one."""
        answers = []
        for statement in statements:
            self.wait()
            answers.append(send(statement))
        return answers


class _OneByOne(MysqlSession):
    gate: Gate

    def _send(self, statements: Sequence[bytes]) -> list[Rows]:
        return self.gate.each(lambda one: send(self.connection, [one])[0], statements)


class _Joined(JoinedSession):
    gate: Gate

    def _rows(self, statement: bytes) -> Rows:
        (rows,) = self.gate.each(super()._rows, [statement])
        return rows  # type: ignore[no-any-return] # it is what `_rows` answers


class MariaSession(ServerSession):
    """An actor's connection and its thread; it can be cut."""

    def __init__(self, database: MariaDatabase) -> None:
        self._gate = Gate()
        super().__init__(database)

    def connected(self) -> Any:
        store = self.database.store
        session = _OneByOne(self.database.statements, store.open_connection(), reopen=store.open_connection)
        session.gate = self._gate
        return session

    @property
    def is_stopped(self) -> bool:
        return not self._gate.is_set()

    def is_waiting(self) -> bool:
        waiting = self.database.locks.waits(self.pid)
        if waiting:
            self._gate.clear()
        else:
            self.go_on()
        return bool(waiting)

    def go_on(self) -> None:
        self._gate.set()

    @property
    def pid(self) -> int:
        """What the server calls the connection."""
        return int(self._real.connection.thread_id())

    def write(self, request: Write) -> None:
        connection = self._real.connection
        connection.lend()
        try:
            connection.execute(_INSERT, request.row)
        except pymysql.err.Error as error:
            raise StoreUnavailable(str(error)) from error
        finally:
            connection.reclaim()

    def open(self, request: Open) -> None:
        connection = self._real.connection
        for statement in (
            f"SET SESSION TRANSACTION ISOLATION LEVEL {request.isolation}",
            *_LIMITS,
            "START TRANSACTION",
            "SELECT count(*) FROM effect_log",
        ):
            connection.query(statement)
        self._join(connection)  # it asks how the transaction is isolated

    def _join(self, connection: Any) -> _Joined:
        session = _Joined(self.database.statements, connection)
        session.gate = self._gate
        self._real = session
        return session

    def peek_state(self, seq: int) -> str:
        sql = b"SELECT state FROM %squeue WHERE seq = %d" % (PREFIX.encode(), seq)
        connection = self._real.connection
        pymysql.connections.Connection.query(connection, sql)
        rows = connection._result.rows
        return str(rows[0][0]) if rows else ""

    def cancel_statement(self) -> None:
        self.database.run(f"KILL QUERY {self.pid}")

    def end_victim(self) -> None:
        """Nothing of it is left."""
        self.roll_back()
        self.database.ended()


class MariaCaller(MariaSession):
    """A program's own connection: it begins and ends the transactions in which our statements run."""

    is_caller = True

    def connected(self) -> Any:
        return self._join(self.database.connect())

    @property
    def is_idle(self) -> bool:
        return not self._real.connection.server_status & IN_TRANSACTION
