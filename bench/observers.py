"""Observers: the same look at every contender's backlog, from outside of its processes.

`left` is a query that finds a row while something is unfinished. It looks at the end of the backlog first, for that is
finished last: so a look costs a lookup in an index, however long the backlog is.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg

from bench.race import processor


class PostgresObserver:
    """Looks at a database of a server, whose processor time it also knows."""

    def __init__(self, connection: psycopg.Connection[tuple[object]], server: int, left: str) -> None:
        self._connection = connection
        self._server = server
        self._left = left.encode()
        self.has_backlog = bool(left)

    def finds_nothing_left(self) -> bool:
        """Whether the backlog is empty."""
        return self._connection.execute(self._left).fetchone() is None

    def server(self) -> float:
        """The processor's seconds of the server's processes, without the one that looks."""
        return processor(self._server, but=self._connection.info.backend_pid)


class SqliteObserver:
    """Looks at a file: there is no server."""

    def __init__(self, connection: sqlite3.Connection, left: str) -> None:
        self._connection = connection
        self._left = left
        self.has_backlog = bool(left)

    def finds_nothing_left(self) -> bool:
        """Whether the backlog is empty."""
        return self._connection.execute(self._left).fetchone() is None

    def server(self) -> float:
        """None."""
        return 0.0

    def journal(self) -> str:
        """The journal that the file has."""
        return str(self._connection.execute("PRAGMA journal_mode").fetchone()[0])


@contextmanager
def at_postgres(url: str, server: int, left: str = "") -> Iterator[PostgresObserver]:
    """An observer of a database; without a query where the last answer is the end."""
    with psycopg.connect(url, autocommit=True) as connection:
        yield PostgresObserver(connection, server, left)


@contextmanager
def at_sqlite(path: Path | str, left: str = "") -> Iterator[SqliteObserver]:
    """An observer of a file, as above."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield SqliteObserver(connection, left)
