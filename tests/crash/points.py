"""Every point at which something can go wrong between two requests, and what goes wrong there.

A request is what a step yields (`onceward.flow`); where several travel together, each statement is one more
request inside. So is the statement of a test's handler. `watch` counts the requests that pass through the
sessions of this process; at the chosen one a fault comes:

* kill: the process kills itself with SIGKILL: no `finally`, no `atexit`, no flush, as the kernel would do it;
* cut: the connection breaks before the statement;
* lost: the connection breaks when the statement has run, before its answer;
* error: the database answers with an error that is nobody's fault (a serialization failure, a busy file);
* cancel: the task is cancelled, or, where there is no task, the thread gets a KeyboardInterrupt.
"""

from __future__ import annotations

import asyncio
import functools
import os
import random
import re
import signal
import sqlite3
import threading
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import psycopg

from onceward.errors import StoreUnavailable
from onceward.flow import Call, Each, Query, Reconnect, Rollback
from onceward.stores.postgres.statement import Statement
from onceward.stores.sqlite.guard import HandlerConnection

Moment = Literal["before", "after"]
MOMENTS: tuple[Moment, Moment] = ("before", "after")
Fault = Literal["kill", "cut", "lost", "error", "cancel"]
FAULTS: tuple[Fault, ...] = ("kill", "cut", "lost", "error", "cancel")


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """Before or after the n-th request."""

    number: int
    moment: Moment

    def __str__(self) -> str:
        return f"{self.moment} {self.number}"


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(slots=True)
class Fuse:
    """Counts requests; at its place it does its deed, once: kill the process, unless told otherwise."""

    point: Point | None = None
    """The place by number,"""
    fault: Fault = "kill"
    """and what happens there;"""
    names: list[str] = field(default_factory=list)
    """or by name: before the request with the last of these names, when the others have passed in turn."""
    deed: Callable[[], object] = _die
    requests: list[str] = field(default_factory=list)
    task: asyncio.Task[Any] | None = None
    """Whose request this is, where it is performed in a thread on behalf of a task."""

    @contextmanager
    def passing(self, request: str, session: Any = None) -> Iterator[bool]:
        """Something is about to happen, and has happened when the block ends, by an error or not.

        Answers whether it is to be refused by the database instead.
        """
        self.requests.append(request)
        number = len(self.requests)
        self._approach(request.lower())
        refused = self.point == Point(number, "before") and self.fault == "error" and session is not None
        if not refused:
            self._reach(number, "before", session)
        try:
            yield refused
        finally:
            self._reach(number, "after", session)

    def _reach(self, number: int, moment: Moment, session: Any) -> None:
        if self.point != Point(number, moment):
            return
        if self.fault == "kill":
            self.deed()
        elif self.fault == "cancel":
            self._cancel()
        elif session is not None:
            _cut(session, sent=self.requests[number - 1].startswith("["))

    def _cancel(self) -> None:
        """Real ones: the task notices at its next `await`, which is in the middle of the request."""
        task = self.task or _current_task()
        if task is None and threading.current_thread().name.startswith("asyncio"):
            return  # in a thread that a task waits for, and which no cancellation reaches
        if task is None:
            raise KeyboardInterrupt
        task.get_loop().call_soon_threadsafe(task.cancel)

    def _approach(self, request: str) -> None:
        if self.names and self.names[0] in request:
            self.names.pop(0)
            if not self.names:
                self.deed()


FUSE = Fuse()
"""The fuse of this process."""

_REFUSAL = "DO $$ BEGIN RAISE EXCEPTION 'as the test asks' USING ERRCODE = 'serialization_failure'; END $$"


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # not in an event loop
        return None


class Cuttable:
    """What knows by itself how it breaks."""

    __slots__ = ()

    def cut(self) -> None:
        """Break, and answer as its driver would."""
        raise NotImplementedError


def _cut(session: Any, *, sent: bool) -> None:
    """Break the connection under a session. A file has none; there it is the disk that fails, which rolls back."""
    if isinstance(session, Cuttable):
        session.cut()
    connection = session.connection
    if isinstance(connection, sqlite3.Connection):
        if isinstance(connection, HandlerConnection):
            connection.pending_begin = None
        if connection.in_transaction:
            sqlite3.Cursor(connection).execute("ROLLBACK")
        raise StoreUnavailable("the SQLite database cannot be used: disk I/O error, as the test asks")
    connection.pgconn.finish()
    text = "server closed the connection unexpectedly, as the test asks"
    raise psycopg.OperationalError(text) if sent else StoreUnavailable(text)


def described(request: Any) -> str:
    """A request for people: the name of its statement or of what it is."""
    if isinstance(request, tuple):
        return f"({', '.join(described(part) for part in request)})"
    if isinstance(request, Query | Each):
        return request.name
    return type(request).__name__.lower()


def watch(url: str) -> None:
    """From now on, count what passes through the sessions of this process."""
    if url.startswith("mysql"):
        from tests.crash import points_mysql  # noqa: PLC0415 - which knows this module

        points_mysql.watch()
        return
    from onceward.stores.postgres.cursors import Cursors  # noqa: PLC0415
    from onceward.stores.postgres.session import AsyncPostgresSession, PostgresSession  # noqa: PLC0415
    from onceward.stores.postgres.wire import Exchange  # noqa: PLC0415
    from onceward.stores.sqlite.session import AsyncSqliteSession, SqliteSession  # noqa: PLC0415

    # A tuple is taken apart by SqliteSession.perform itself, which so passes here once for each part. The async
    # session does all but these two in a SqliteSession of its own.
    _wrap(SqliteSession, "perform", described)
    _wrap_async(AsyncSqliteSession, "perform", lambda r: described(r) if isinstance(r, Call | Reconnect) else "")
    # On PostgreSQL a tuple travels together: its statements are queued, and each is flushed here, so that the server
    # may have run it when the next one gets a fault. Over the caller's connection they go one by one, and a rollback
    # goes alone.
    _wrap(PostgresSession, "perform", described)
    _wrap_async(AsyncPostgresSession, "perform", described)
    _flush_each(Exchange)
    _wrap(Exchange, "queue", _words)
    _wrap(Cursors, "run", _words)
    _wrap_async(Cursors, "run_async", _words)
    _wrap(PostgresSession, "_roll_back", _words)
    _wrap_async(AsyncPostgresSession, "_roll_back", _words)


def _words(request: Any) -> str:
    """The name of what is being sent."""
    return f"[{described(request) if isinstance(request, Rollback) else request[0].name}]"


def _flush_each(exchange: type) -> None:
    queue = exchange.queue  # type: ignore[attr-defined]

    def flushed(self: Any, asked: Any) -> None:
        queue(self, asked)
        self.connection.pgconn.send_flush_request()
        self.connection.pgconn.flush()

    exchange.queue = flushed  # type: ignore[attr-defined]


def _wrap(owner: type, name: str, label: Callable[[Any], str]) -> None:
    original: Callable[[Any, Any], Any] = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(self: Any, request: Any) -> Any:
        with FUSE.passing(label(request), self) as refused:
            return original(self, _refused(request) if refused else request)

    setattr(owner, name, wrapped)


def _wrap_async(owner: type, name: str, label: Callable[[Any], str]) -> None:
    original: Callable[[Any, Any], Awaitable[Any]] = getattr(owner, name)

    @functools.wraps(original)
    async def wrapped(self: Any, request: Any) -> Any:
        if not (text := label(request)):
            FUSE.task = asyncio.current_task()
            try:
                return await original(self, request)
            finally:
                FUSE.task = None
        with FUSE.passing(text, None if owner.__name__ == "AsyncSqliteSession" else self) as refused:
            return await original(self, _refused(request) if refused else request)

    setattr(owner, name, wrapped)


def _refused(request: Any) -> Any:
    """What is asked of the database in place of a statement, for it to refuse."""
    if isinstance(request, tuple) and isinstance(request[0], Statement):
        statement = Statement.of("refusal", _REFUSAL)
        return statement, ({} if isinstance(request[1], Mapping) else statement.encoded({}))
    raise StoreUnavailable("the SQLite database is busy: database is locked, as the test asks")


def watch_drivers(url: str) -> None:
    """For migrations, which use a driver directly: count every statement given to it."""
    if url.startswith("mysql"):
        from tests.crash import points_mysql  # noqa: PLC0415 - as above

        points_mysql.watch_driver()
        return

    class Watched(sqlite3.Connection):
        def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
            with FUSE.passing(" ".join(sql.split()[:4]), _Driver(self)) as refused:
                if refused:
                    raise _failure("database is locked, as the test asks", sqlite3.SQLITE_BUSY)
                return super().execute(sql, parameters)

    connect = sqlite3.connect
    sqlite3.connect = lambda *args, **options: connect(*args, **{"factory": Watched, **options})
    execute = psycopg.Connection.execute

    def watched(self: Any, query: Any, *args: Any, **options: Any) -> Any:
        text = query.decode() if isinstance(query, bytes) else str(query)
        with FUSE.passing(" ".join(text.split()[:4]), _Driver(self)) as refused:
            return execute(self, _REFUSAL) if refused else execute(self, query, *args, **options)

    psycopg.Connection.execute = watched  # type: ignore[method-assign]


def _failure(text: str, code: int) -> sqlite3.OperationalError:
    """An error as the driver raises it."""
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


@dataclass(frozen=True, slots=True)
class _Driver(Cuttable):
    """A connection that is used without a session."""

    connection: Any

    def cut(self) -> None:
        if isinstance(self.connection, sqlite3.Connection):
            if self.connection.in_transaction:
                sqlite3.Cursor(self.connection).execute("ROLLBACK")
            raise _failure("disk I/O error, as the test asks", sqlite3.SQLITE_IOERR)
        self.connection.pgconn.finish()
        raise psycopg.OperationalError("server closed the connection unexpectedly, as the test asks")


@dataclass(frozen=True, slots=True)
class Boundary:
    """A statement on a way through the code: which request it was, and what its transaction had done before it."""

    number: int
    path: tuple[str, ...]

    def point(self, fault: Fault) -> Point:
        """Where a fault strikes: before the statement, or between it and its answer."""
        return Point(self.number, "after" if fault == "lost" else "before")


_FIRST = (
    "catalog",
    "names",
    "subscriptions",
    "add_name",
    "subscribe",
    "touch_catalog",
    "lock_catalog",
    "unhandled_types",
    "add_worker",
)
_MEMBERSHIP = ("worker_of_process", "add_worker", "lock_worker", "unclaim_all", "forget_worker")
INTRODUCTION = frozenset(["begin", "begin_limits", "commit", *_FIRST, *_MEMBERSHIP, "isolation_level"])
"""With this each process begins, idles and ends; it gets faults in the scenarios that are about little else."""


def boundaries(requests: Sequence[str], dialect: str, *, introduced: bool) -> list[Boundary]:
    """Every statement boundary of a play, wherever it comes; what a way of several turns does in each of them."""
    found = []
    path: list[str] = []
    for number, request in enumerate(requests, start=1):
        name = request.strip("[]").lower()
        if name in ("begin", "begin_limits") or request.startswith("(begin"):
            path = []
        if not _is_boundary(request, dialect):
            continue
        path.append(name)
        looks = {"keys_in_front", "first_due"}
        common = not looks.isdisjoint(path) or set(re.findall(r"\w+", " ".join(path))) <= INTRODUCTION
        if introduced or not common:
            found.append(Boundary(number, tuple(path)))
    return found


def _is_boundary(request: str, dialect: str) -> bool:
    """What is sent to a server has square brackets; several that travel together have one answer, in round ones."""
    if request in HANDLERS:
        return True
    return request.startswith(("[", "(")) if dialect != "sqlite" else request[0] != "("


HANDLERS = frozenset(["effect", "charge", "publish"])
"""What handlers do; there only the process dies."""


def faults_at(boundary: Boundary) -> tuple[Fault, ...]:
    """What can go wrong there: several statements that travel together have one answer to lose, and no more."""
    last = boundary.path[-1]
    if last in HANDLERS:
        return ("kill",)
    if last == "rollback":  # no database refuses that
        return ("kill", "cut", "lost", "cancel")
    return ("kill", "lost") if last.startswith("(") else FAULTS


def takes_all() -> bool:
    """Whether a sample is not enough."""
    return os.environ.get("ONCEWARD_CRASH_SAMPLE") == "all"


def shard() -> str:
    """Which part of all boundaries this run plays, such as "1/4"."""
    return os.environ.get("ONCEWARD_CRASH_SHARD", "1/1")


def in_shard(play: str, number: int) -> bool:
    """Whether a place in a play is in the part that this run takes.

    It depends on nothing else, neither on the seed nor on what other plays do: shards add up to the whole.
    """
    part, _, parts = shard().partition("/")
    if not 1 <= int(part) <= int(parts):
        raise ValueError(f"ONCEWARD_CRASH_SHARD is {shard()!r}; it must be like 1/4, the first of four parts")
    return zlib.crc32(f"{play} {number}".encode()) % int(parts) == int(part) - 1


def sample(pairs: Sequence[Any], rng: random.Random) -> list[Any]:
    """A few of them, or all with ONCEWARD_CRASH_SAMPLE=all."""
    if takes_all():
        return list(pairs)
    return rng.sample(pairs, min(int(os.environ.get("ONCEWARD_CRASH_SAMPLE", "1")), len(pairs)))


def seed() -> int:
    """What the samples are drawn from: ONCEWARD_CRASH_SEED, else new for each test run; the summary shows it."""
    given = os.environ.get("ONCEWARD_CRASH_SEED")
    # The workers of pytest-xdist share the name of their run, and so the seed.
    return int(given) if given else zlib.crc32(os.environ.get("PYTEST_XDIST_TESTRUNUID", _ALONE).encode())


_ALONE = str(random.SystemRandom().random())
