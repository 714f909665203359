"""Every point at which a process can die between two requests, and dying there.

A request is what a step yields (`onceward.flow`); where several travel together, each statement is one more
request inside. So is the statement of a test's handler. `watch` counts the requests that pass through the
sessions of this process, and at the chosen one, before or after it, the process kills itself with SIGKILL: no
`finally`, no `atexit`, no flush, as kill -9 or the kernel would do it.
"""

from __future__ import annotations

import functools
import os
import random
import signal
import zlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from onceward.flow import Call, Each, Query, Reconnect
from onceward.stores.statements import load

Moment = Literal["before", "after"]
MOMENTS: tuple[Moment, Moment] = ("before", "after")


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
    names: list[str] = field(default_factory=list)
    """or by name: before the request with the last of these names, when the others have passed in turn."""
    deed: Callable[[], None] = _die
    requests: list[str] = field(default_factory=list)

    @contextmanager
    def passing(self, request: str) -> Iterator[None]:
        """Something is about to happen, and has happened when the block ends, by an error or not."""
        self.requests.append(request)
        number = len(self.requests)
        self._approach(request.lower())
        self._reach(number, "before")
        try:
            yield
        finally:
            self._reach(number, "after")

    def _reach(self, number: int, moment: Moment) -> None:
        if self.point == Point(number, moment):
            self.deed()

    def _approach(self, request: str) -> None:
        if self.names and self.names[0] in request:
            self.names.pop(0)
            if not self.names:
                self.deed()


FUSE = Fuse()
"""The fuse of this process."""


def described(request: Any) -> str:
    """A request for people: the name of its statement or of what it is."""
    if isinstance(request, tuple):
        return f"({', '.join(described(part) for part in request)})"
    if isinstance(request, Query | Each):
        return request.name
    return type(request).__name__.lower()


def watch() -> None:
    """From now on, count what passes through the sessions of this process."""
    from onceward.stores.postgres.session import AsyncPostgresSession, PostgresSession  # noqa: PLC0415
    from onceward.stores.sqlite.session import AsyncSqliteSession, SqliteSession  # noqa: PLC0415

    # A tuple is taken apart by SqliteSession.perform itself, which so passes here once for each part. The async
    # session does all but these two in a SqliteSession of its own.
    _wrap(SqliteSession, "perform", described)
    _wrap_async(AsyncSqliteSession, "perform", lambda r: described(r) if isinstance(r, Call | Reconnect) else "")
    # On PostgreSQL a tuple is one pipeline, whose statements pass through _run while they are sent.
    _wrap(PostgresSession, "perform", described)
    _wrap_async(AsyncPostgresSession, "perform", described)
    _wrap(PostgresSession, "_run", _words)
    _wrap_async(AsyncPostgresSession, "_run", _words)


def _words(statement: tuple[str, Any]) -> str:
    """The name of a statement that is being sent."""
    names = {parts[0]: name for name, parts in load("postgres", "onceward_").items()}
    return f"[{names.get(statement[0], statement[0])}]"


def _wrap(owner: type, name: str, label: Callable[[Any], str]) -> None:
    original: Callable[[Any, Any], Any] = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(self: Any, request: Any) -> Any:
        with FUSE.passing(label(request)):
            return original(self, request)

    setattr(owner, name, wrapped)


def _wrap_async(owner: type, name: str, label: Callable[[Any], str]) -> None:
    original: Callable[[Any, Any], Awaitable[Any]] = getattr(owner, name)

    @functools.wraps(original)
    async def wrapped(self: Any, request: Any) -> Any:
        if not (text := label(request)):
            return await original(self, request)
        with FUSE.passing(text):
            return await original(self, request)

    setattr(owner, name, wrapped)


def watch_drivers() -> None:
    """For migrations, which use a driver directly: count every statement given to sqlite3 or psycopg."""
    import sqlite3  # noqa: PLC0415

    import psycopg  # noqa: PLC0415

    class Watched(sqlite3.Connection):
        def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
            with FUSE.passing(" ".join(sql.split()[:4])):
                return super().execute(sql, parameters)

    connect = sqlite3.connect
    sqlite3.connect = lambda *args, **options: connect(*args, **{"factory": Watched, **options})
    execute = psycopg.Connection.execute

    def watched(self: Any, query: Any, *args: Any, **options: Any) -> Any:
        text = query.decode() if isinstance(query, bytes) else str(query)
        with FUSE.passing(" ".join(text.split()[:4])):
            return execute(self, query, *args, **options)

    psycopg.Connection.execute = watched  # type: ignore[method-assign]


def chosen(requests: Sequence[str], rng: random.Random) -> list[Point]:
    """The points to die at: a sample, or all of them with ONCEWARD_CRASH_SAMPLE=all."""
    points = [Point(number, moment) for number in range(1, len(requests) + 1) for moment in MOMENTS]
    sample = os.environ.get("ONCEWARD_CRASH_SAMPLE", "4")
    return points if sample == "all" else sorted(rng.sample(points, min(int(sample), len(points))))


def seed() -> int:
    """What the samples are drawn from: ONCEWARD_CRASH_SEED, else new for each test run; the summary shows it."""
    given = os.environ.get("ONCEWARD_CRASH_SEED")
    # The workers of pytest-xdist share the name of their run, and so the seed.
    return int(given) if given else zlib.crc32(os.environ.get("PYTEST_XDIST_TESTRUNUID", _ALONE).encode())


_ALONE = str(random.SystemRandom().random())
