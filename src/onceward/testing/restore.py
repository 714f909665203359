"""Putting a database back to where it was, in place, as often as there are cases.

In place, because a handler that opens a connection of its own finds the database by its address: on a copy elsewhere
its effects would not be seen.
"""

from __future__ import annotations

import graphlib
import sqlite3
import weakref
from contextlib import suppress
from typing import Any, Protocol

from onceward.errors import ConfigurationError
from onceward.stores.protocol import Store


class Keeper(Protocol):
    """Remembers the state of a database."""

    def restore(self, connection: Any) -> None:
        """Bring the database back to the remembered state, on a connection in a transaction that the caller commits."""


def keeper_of(store: Store, connection: Any) -> Keeper:
    """Remember the state of a store's database as it is now, seen on a plain connection."""
    if store.dialect == "sqlite":
        return SqliteKeeper(connection)
    if store.dialect == "postgres":
        return PostgresKeeper(connection)
    if store.dialect == "mysql":
        return MysqlKeeper(connection)
    raise ConfigurationError(f"the kit cannot put a {store.dialect} database back; pass reset=, a function that does")


class SqliteKeeper:
    """Keeps a copy of the whole database, in memory; works for files and for databases in memory."""

    def __init__(self, connection: Any) -> None:
        self._copy = sqlite3.connect(":memory:", check_same_thread=False)
        weakref.finalize(self, self._copy.close)
        connection.execute("COMMIT")  # a backup cannot read from inside a transaction that writes
        connection.backup(self._copy)
        connection.execute("BEGIN")

    def restore(self, connection: Any) -> None:
        connection.execute("COMMIT")
        self._copy.backup(connection)
        connection.execute("BEGIN")


_TABLES = """
SELECT format('%I.%I', n.nspname, c.relname), c.oid::bigint,
       EXISTS (SELECT 1 FROM pg_trigger t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND c.relpersistence <> 't' AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
  AND NOT EXISTS (SELECT 1 FROM pg_depend d
                  WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')
"""
_REFERENCES = (
    "SELECT conrelid::bigint, confrelid::bigint FROM pg_constraint WHERE contype = 'f' AND conrelid <> confrelid"
)
_SEQUENCES = "SELECT format('%I.%I', schemaname, sequencename) FROM pg_sequences"
# Nobody is inside a transaction between two cases but what a handler of the last one left behind.
_END_LEFTOVERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND usename = current_user
  AND state LIKE 'idle in transaction%'
"""
_EMPTY_COPY = 21
"""The bytes of a binary copy without a row: header and trailer."""


class PostgresKeeper:
    """Keeps the rows of every table and the place of every sequence, in memory: made for small test databases."""

    def __init__(self, connection: Any) -> None:
        tables = connection.execute(_TABLES).fetchall()
        self._names = {oid: name for name, oid, _ in tables}
        self._triggers = [name for name, _, has_triggers in tables if has_triggers]
        self._order = self._sorted(connection)
        copies = {name: _copied(connection, name) for name in self._order}
        self._rows = {name: copy for name, copy in copies.items() if len(copy) > _EMPTY_COPY}
        self._sequences = _sequences(connection)

    def _sorted(self, connection: Any) -> list[str]:
        """The tables, each after those it refers to."""
        graph: dict[int, set[int]] = {oid: set() for oid in self._names}
        for table, other in connection.execute(_REFERENCES).fetchall():
            if table in graph and other in graph:
                graph[table].add(other)
        try:
            return [self._names[oid] for oid in graphlib.TopologicalSorter(graph).static_order()]
        except graphlib.CycleError as error:
            raise ConfigurationError("tables refer to each other in a circle; pass reset= to prove on them") from error

    def restore(self, connection: Any) -> None:
        connection.execute(_END_LEFTOVERS)
        made = [name for name, oid, _ in connection.execute(_TABLES).fetchall() if oid not in self._names]
        # Without parameters, so that all of it is one round trip.
        connection.execute(
            ";".join(
                [
                    "SET LOCAL lock_timeout = '5s'",
                    *(f"DROP TABLE {name} CASCADE" for name in made),  # by a handler of the last case
                    *(f"ALTER TABLE {name} DISABLE TRIGGER USER" for name in self._triggers),
                    *(f"DELETE FROM {name}" for name in reversed(self._order)),
                    *self._sequences,
                ]
            ).encode()
        )
        for name, rows in self._rows.items():
            with connection.cursor().copy(f"COPY {name} FROM STDIN (FORMAT binary)".encode()) as copy:
                copy.write(rows)
        for name in self._triggers:
            connection.execute(f"ALTER TABLE {name} ENABLE TRIGGER USER".encode())


def _copied(connection: Any, table: str) -> bytes:
    with connection.cursor().copy(f"COPY {table} TO STDOUT (FORMAT binary)".encode()) as copy:
        return b"".join(bytes(block) for block in copy)


def _sequences(connection: Any) -> list[str]:
    """The statements that put every sequence back to its place."""
    statements = []
    for (name,) in connection.execute(_SEQUENCES).fetchall():
        last, called = connection.execute(f"SELECT last_value, is_called FROM {name}".encode()).fetchone()
        statements.append(f"SELECT setval($onceward${name}$onceward$::regclass, {last}, {called})")
    return statements


_MYSQL_COLUMNS = """
SELECT t.table_name, c.column_name, c.extra = 'auto_increment', t.auto_increment
FROM information_schema.tables t
JOIN information_schema.columns c ON c.table_schema = t.table_schema AND c.table_name = t.table_name
WHERE t.table_schema = database() AND t.table_type = 'BASE TABLE' AND coalesce(c.generation_expression, '') = ''
ORDER BY t.table_name, c.ordinal_position
"""
_MYSQL_LEFTOVERS = """
SELECT p.id FROM information_schema.processlist p JOIN information_schema.innodb_trx x ON x.trx_mysql_thread_id = p.id
WHERE p.db = database() AND p.id <> connection_id() AND p.command = 'Sleep'
"""
# What is read is written again as it was: times in one zone, and also what a strict mode would refuse today. The next
# numbers are those of now, which MySQL 8 would otherwise remember for a day.
_AS_IT_IS = (
    "SET SESSION time_zone = '+00:00', sql_mode = 'NO_AUTO_VALUE_ON_ZERO', foreign_key_checks = 0, "
    "lock_wait_timeout = 5, innodb_lock_wait_timeout = 5 /*!80000 , information_schema_stats_expiry = 0 */"
)
_AS_USUAL = "SET SESSION time_zone = DEFAULT, sql_mode = DEFAULT, foreign_key_checks = DEFAULT"


class MysqlKeeper:
    """Keeps the rows of every table and its next number, in memory: made for small test databases."""

    def __init__(self, connection: Any) -> None:
        triggers = "SELECT trigger_name FROM information_schema.triggers WHERE trigger_schema = database()"
        for (name,) in connection.execute(triggers).fetchall():
            raise ConfigurationError(f"MySQL cannot turn off the trigger {name}; pass reset= to prove on its table")
        connection.execute(_AS_IT_IS)
        self._columns: dict[str, list[str]] = {}
        self._next: dict[str, int] = {}
        for table, column, is_numbered, following in _columns(connection):
            self._columns.setdefault(table, []).append(_name(column))
            if is_numbered:
                self._next[table] = following or 1
        self._rows = {
            table: connection.execute(f"SELECT {', '.join(columns)} FROM {_name(table)}").fetchall()
            for table, columns in self._columns.items()
        }
        connection.execute(_AS_USUAL)

    def restore(self, connection: Any) -> None:
        from onceward.stores.mysql.failures import DRIVER  # noqa: PLC0415 - the driver loads on demand

        connection.commit()  # what it has read before is no view of now
        with suppress(*DRIVER):  # not everybody may see what others do
            for (other,) in connection.execute(_MYSQL_LEFTOVERS).fetchall():
                connection.execute(f"KILL {other}")
        connection.execute(_AS_IT_IS)
        now = {table for table, *_ in _columns(connection)}
        for table in now - self._columns.keys():  # by a handler of the last case
            connection.execute(f"DROP TABLE {_name(table)}")
        for table, columns in self._columns.items():
            connection.execute(f"DELETE FROM {_name(table)}")
            if rows := self._rows[table]:
                into = f"INSERT INTO {_name(table)} ({', '.join(columns)})".replace("%", "%%")
                connection.cursor().executemany(f"{into} VALUES ({', '.join(['%s'] * len(columns))})", rows)
        connection.commit()
        used = {table: following for table, _, is_numbered, following in _columns(connection) if is_numbered}
        for table, following in self._next.items():
            if used.get(table) != following:
                connection.execute(f"ALTER TABLE {_name(table)} AUTO_INCREMENT = {following}")
        connection.execute(_AS_USUAL)


def _columns(connection: Any) -> list[tuple[Any, ...]]:
    return list(connection.execute(_MYSQL_COLUMNS).fetchall())


def _name(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
