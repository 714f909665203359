"""The spool: a SQLite file that takes messages while the database is away, append-only until they are drained (R24).

Invariant: what `append` returned for is on the disk (WAL, synchronous FULL) and is read back in the order of appending.
A row leaves only by `settle`, after it was stored or together with its copy in the table `refused`. Numbers are never
used again, so a place that a reader remembers is not taken by what comes later. Several processes of one host may
share the file; it is never removed while they might, so that none appends to a file that is gone.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import sqlite3
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from onceward.domain import identity
from onceward.domain.disk import sync_folder
from onceward.domain.schedule import Due
from onceward.errors import ConfigurationError, StoreError, StoreUnavailable
from onceward.message import NO_HEADERS, Delivery

log = logging.getLogger("onceward")

VERSION = 1
BUSY_SECONDS = 30.0
"""How long an append waits for those of other processes; each of them takes as long as one fsync."""
_FIELDS = ("source", "id", "type", "version", "key", "position", "echo_window", "due_at")
_TABLES = (
    """CREATE TABLE IF NOT EXISTS spooled (
        number   integer PRIMARY KEY AUTOINCREMENT,
        head     text    NOT NULL,
        body     blob    NOT NULL,
        checksum integer NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS refused (
        number     integer PRIMARY KEY,
        head       text    NOT NULL,
        body       blob    NOT NULL,
        checksum   integer NOT NULL,
        error      text    NOT NULL,
        refused_at text    NOT NULL DEFAULT CURRENT_TIMESTAMP)""",
    f"PRAGMA user_version = {VERSION}",
)
_FIRST = "PRAGMA auto_vacuum = FULL"
"""An outage's space is given back. It must be said before the first table, and waits for what others write."""
_SETTINGS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA secure_delete = ON",  # what was drained is not left in free pages: it may be erased in the database
)
_making = threading.Lock()
"""Closing a file lets go of all locks that this process has on it: while it is being made, no other thread opens it."""
_inherited: list[sqlite3.Connection] = []
"""Connections of a parent process: using or closing them would break its locks."""


class Spooled(NamedTuple):
    """A delivery in the spool."""

    number: int
    delivery: Delivery


class Spool:
    """A spool file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._looking, self._writing = _Connection(self.path), _Connection(self.path)
        """A look whether there is something does not wait for an append."""

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        self._looking.close()
        self._writing.close()

    def __del__(self) -> None:
        self.close()

    @property
    def is_empty(self) -> bool:
        """Whether everything that was spooled has been drained."""
        if not self.path.exists():
            return True
        with self._looking.use("read") as connection:
            return not connection.execute("SELECT EXISTS (SELECT 1 FROM spooled)").fetchone()[0]

    def append(self, deliveries: Sequence[Delivery]) -> None:
        """Write deliveries and wait for the disk; when this returns they survive a crash of the machine."""
        rows = [row(delivery) for delivery in deliveries]
        with self._writing.use("written") as connection, _transaction(connection):
            connection.executemany("INSERT INTO spooled (head, body, checksum) VALUES (?, ?, ?)", rows)

    def read(self, after: int, limit: int) -> list[Spooled]:
        """Return the next deliveries behind a number. One that is damaged goes to the table `refused`."""
        found: list[Spooled] = []
        damaged: list[int] = []
        if not self.path.exists():
            return []
        with self._writing.use("drained") as connection:
            query = "SELECT number, head, body, checksum FROM spooled WHERE number > ? ORDER BY number LIMIT ?"
            rows = connection.execute(query, (after, limit))
            try:
                for number, head, body, checksum in rows:
                    if _checksum(head, body) == checksum:
                        found.append(Spooled(number, delivery_of(head, body)))
                    else:
                        damaged.append(number)
            except sqlite3.DatabaseError:  # what comes before a damaged page can be drained all the same
                if not found:
                    raise
        if not damaged:
            return found
        for number in damaged:
            log.error("message %d of the spool %s is damaged and not stored: %s", number, self.path, shown(self.path))
        self._remove(damaged, dict.fromkeys(damaged, "damaged: its checksum differs"))
        return found or self.read(max(damaged), limit)

    def settle(self, numbers: Sequence[int], refused: Mapping[int, str]) -> None:
        """Remove what was stored; what was refused is kept in the table `refused`, with the error."""
        self._remove(numbers, refused)
        if self.is_empty:
            with self._writing.use("drained") as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _remove(self, numbers: Sequence[int], refused: Mapping[int, str]) -> None:
        with self._writing.use("drained") as connection, _transaction(connection):
            connection.executemany(
                "INSERT OR IGNORE INTO refused (number, head, body, checksum, error) "
                "SELECT number, head, body, checksum, ? FROM spooled WHERE number = ?",
                [(error, number) for number, error in refused.items()],
            )
            connection.executemany("DELETE FROM spooled WHERE number = ?", [(number,) for number in numbers])

    @contextmanager
    def draining(self) -> Iterator[bool]:
        """The right to drain; one process at a time has it, and it ends with the process."""
        path = self.path.with_name(f"{self.path.name}.draining")
        with _translated(path, "drained"):
            lock = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            try:
                lock.execute("BEGIN EXCLUSIVE")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    raise
                yield False
                return
            yield True
        finally:
            lock.close()


class _Connection:
    """A connection to the file under a path: opened when it is first used, and anew where the file is another one."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._opened: tuple[int, ...] = ()
        """The process that opened it, and which file."""

    @contextmanager
    def use(self, what: str) -> Iterator[sqlite3.Connection]:
        """The connection, for one thread at a time."""
        with self._lock, _translated(self._path, what):
            if self._connection is None or self._opened != self._present():
                self._close()
                self._connection = _open(self._path)
                self._opened = self._present()
            yield self._connection

    def close(self) -> None:
        """Close it."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._opened[0] == os.getpid():
            connection.close()
        else:
            _inherited.append(connection)

    def _present(self) -> tuple[int, ...]:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return (os.getpid(),)
        return os.getpid(), found.st_dev, found.st_ino


def _open(path: Path) -> sqlite3.Connection:
    with _making:
        if not path.exists():
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        sync_folder(path.parent)  # also where another process has made it, and died before it waited
        connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        for setting in (*([_FIRST] if version == 0 else []), *_SETTINGS):
            _set(connection, setting)
        if version == 0:
            with _transaction(connection):
                for statement in _TABLES:
                    connection.execute(statement)
    except BaseException:
        connection.close()
        raise
    if version not in {0, VERSION}:
        connection.close()
        raise ConfigurationError(
            f"the spool {path} was written by another version of onceward (format {version}, here {VERSION}): "
            "drain it with that version, or name another file with spool="
        )
    return connection


def _set(connection: sqlite3.Connection, setting: str) -> None:
    """SQLite itself does not wait where two processes switch a new file to WAL at the same moment."""
    patience = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute(setting).fetchall()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > patience:
                raise
            time.sleep(0.01)
        else:
            return


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def shown(path: Path) -> str:
    """The command that shows what was refused."""
    return f"sqlite3 {shlex.quote(str(path))} 'SELECT number, error FROM refused'"


@contextmanager
def _translated(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_NOTADB:
            raise ConfigurationError(
                f"{path} is not a spool (or one of an earlier version of onceward, which must drain it): "
                "move the file away, or name another one with spool="
            ) from error
        if code == sqlite3.SQLITE_CORRUPT:
            raise StoreError(
                f"the spool {path} is damaged ({error}); what could be read before the damage was drained. Stop the "
                f"processes that use it, save the rest with: sqlite3 {path} .recover, and move the file away"
            ) from error
        if what == "drained":  # the database is not at fault
            raise StoreError(f"the spool {path} cannot be drained: {error}") from error
        raise StoreUnavailable(f"the database is away, and the spool {path} cannot be {what}: {error}") from error


def row(delivery: Delivery) -> tuple[str, bytes, int]:
    """Return a delivery as it stands in the file."""
    due = {"due_at": delivery.due.moment(time.time())}  # the database, which would count a delay, is away
    fields = {name: getattr(delivery, name) for name in _FIELDS[:-1]} | due | {"headers": dict(delivery.headers)}
    head = json.dumps(fields)
    return head, delivery.body, _checksum(head, delivery.body)


def delivery_of(head: str, body: bytes) -> Delivery:
    """Return what `row` was given."""
    known: Mapping[str, Any] = json.loads(head)
    fields: dict[str, Any] = {name: known.get(name) for name in _FIELDS}
    return Delivery(
        due=Due(fields.pop("due_at")),
        **fields,
        headers=known["headers"] or NO_HEADERS,
        body=body,
        hash=identity.body_hash(body),
    )


def _checksum(head: str, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(head.encode()))
