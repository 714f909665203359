"""The points of MySQL's family: each statement in a packet of its own, so that a fault may come between any two.

In earnest several travel together, and a server that has begun with a packet has done some of them when it, or the
program, dies: that is what a fault between two packets looks like.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pymysql
from asyncmy.errors import OperationalError

from onceward.errors import StoreUnavailable
from onceward.stores.mysql import joined, programs, statement, wire
from onceward.stores.mysql.aio import AsyncHandlerConnection
from onceward.stores.mysql.guard import HandlerConnection
from onceward.stores.mysql.session import AsyncMysqlSession, MysqlSession
from tests.crash.points import FUSE, Cuttable, described

_SPOKEN = {wire.BEGIN: "begin", wire.COMMIT: "commit", wire.ROLLBACK: "rollback"}
# A deadlock: the server has undone the whole transaction when it says so.
_CONFLICT = b"SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'a deadlock, as the test asks'"
_GONE = (2013, "Lost connection to MySQL server during query, as the test asks")


class Named(bytes):
    """A statement of ours that knows its name, and which part of it it is."""

    label: str = ""


@dataclass(frozen=True, slots=True)
class _Wire(Cuttable):
    """A connection; when it breaks, whoever sent something hears it from the driver."""

    connection: Any
    error: Exception

    def cut(self) -> None:
        close = getattr(self.connection, "force_close", None) or self.connection._force_close
        close()
        raise self.error


def watch() -> None:
    """From now on, count what passes through the sessions of this process."""
    _name_statements()
    _part()
    _wrap_perform(MysqlSession)
    _wrap_perform_async(AsyncMysqlSession)
    _wrap_query(HandlerConnection)
    _wrap_query_async(AsyncHandlerConnection)
    _wrap_rows(joined.JoinedSession)


def _part() -> None:
    """Let each statement travel alone."""
    together = statement.packets

    def alone(statements: Sequence[bytes], largest: int) -> list[bytes]:
        together(statements, largest)  # refuses what is too large
        return list(statements)  # as they are: joined, they would lose their names

    wire.packets = alone  # type: ignore[attr-defined]


def _name_statements() -> None:
    """What a program of statements renders keeps its name."""
    part, rendered = programs.Ask.part, statement.Statement.rendered

    def named_part(self: Any, number: int, /, *, of: str = "", **more: Any) -> bytes:
        return _named(part(self, number, of=of, **more), of or self.name, number)

    def named(self: Any, *given: Any, **more: Any) -> bytes:
        text = rendered(self, *given, **more)
        return _named(text, "_".join(text.decode(errors="replace").split()[:3]), 0)

    programs.Ask.part = named_part  # type: ignore[method-assign]
    statement.Statement.rendered = named  # type: ignore[method-assign]


def _named(text: bytes, name: str, number: int) -> Named:
    found = Named(text)
    found.label = f"{name}.{number}" if number else name
    return found


def label_of(sql: bytes) -> str:
    """What a statement is called; nothing for what is not ours to break, such as the opening of a connection."""
    if isinstance(sql, Named):
        return f"[{sql.label}]"
    if sql.startswith(b"SAVEPOINT"):
        return "[fence]"
    return f"[{_SPOKEN[sql]}]" if sql in _SPOKEN else ""


def _wrap_perform(owner: type) -> None:
    original: Callable[[Any, Any], Any] = owner.perform  # type: ignore[attr-defined]

    @functools.wraps(original)
    def wrapped(self: Any, request: Any) -> Any:
        with FUSE.passing(described(request), _session(self)) as refused:
            return original(self, _refuse(request) if refused else request)

    owner.perform = wrapped  # type: ignore[attr-defined]


def _wrap_perform_async(owner: type) -> None:
    original: Callable[[Any, Any], Awaitable[Any]] = owner.perform  # type: ignore[attr-defined]

    @functools.wraps(original)
    async def wrapped(self: Any, request: Any) -> Any:
        with FUSE.passing(described(request), _session(self)) as refused:
            return await original(self, _refuse(request) if refused else request)

    owner.perform = wrapped  # type: ignore[attr-defined]


def _session(session: Any) -> _Wire:
    return _Wire(session.connection, StoreUnavailable(f"MySQL cannot be reached: {_GONE[1]}"))


def _refuse(request: Any) -> Any:
    raise StoreUnavailable(f"MySQL cannot be reached: {described(request)} is refused, as the test asks")


def _wrap_query(owner: type) -> None:
    original: Callable[[Any, bytes], None] = owner.own_query  # type: ignore[attr-defined]

    @functools.wraps(original)
    def wrapped(self: Any, sql: bytes) -> None:
        if not (label := label_of(sql)):
            original(self, sql)
            return
        with FUSE.passing(label, _Wire(self, pymysql.err.OperationalError(*_GONE))) as refused:
            for one in _asked(sql, refused=refused):
                original(self, one)

    owner.own_query = wrapped  # type: ignore[attr-defined]


def _wrap_query_async(owner: type) -> None:
    original: Callable[[Any, bytes], Awaitable[None]] = owner.own_query  # type: ignore[attr-defined]

    @functools.wraps(original)
    async def wrapped(self: Any, sql: bytes) -> None:
        if not (label := label_of(sql)):
            await original(self, sql)
            return
        with FUSE.passing(label, _Wire(self, OperationalError(*_GONE))) as refused:
            for one in _asked(sql, refused=refused):
                await original(self, one)

    owner.own_query = wrapped  # type: ignore[attr-defined]


def _wrap_rows(owner: type) -> None:
    """Over the caller's connection they go one by one anyway."""
    original: Callable[[Any, bytes], Any] = owner._rows  # type: ignore[attr-defined]

    @functools.wraps(original)
    def wrapped(self: Any, sql: bytes) -> Any:
        if not (label := label_of(sql)):
            return original(self, sql)
        with FUSE.passing(label, _Wire(self.connection, pymysql.err.OperationalError(*_GONE))) as refused:
            *before, last = _asked(sql, refused=refused)
            for one in before:
                original(self, one)
            return original(self, last)

    owner._rows = wrapped  # type: ignore[attr-defined]


def _asked(sql: bytes, *, refused: bool) -> Sequence[bytes]:
    return (wire.ROLLBACK, _CONFLICT) if refused else (sql,)


def watch_driver() -> None:
    """For migrations: count every statement, DDL included."""
    _part()
    original: Callable[[Any, bytes], None] = HandlerConnection.own_query

    def wrapped(self: Any, sql: bytes) -> None:
        text = " ".join(sql.decode().split()[:4])
        with FUSE.passing(text, _Wire(self, pymysql.err.OperationalError(*_GONE))) as refused:
            for one in _asked(sql, refused=refused):
                original(self, one)

    HandlerConnection.own_query = wrapped  # type: ignore[method-assign]
