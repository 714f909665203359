"""A SQLite connection that performs requests, and the `tx` a handler gets.

Invariant: every write happens between BEGIN IMMEDIATE and COMMIT of a session, also the handler's: the
connection a handler gets begins the transaction at its first statement and refuses to end it.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from onceward.deferred import Deferred
from onceward.errors import (
    ContractViolation,
    GuardFailed,
    HandlerTimeout,
    StoreError,
    StoreUnavailable,
    TransactionAborted,
)
from onceward.flow import Begin, Call, Commit, Each, Outcome, Query, Reconnect, Rehearse, Rollback
from onceward.stores.calls import awaited_outcome, outcome, refuse_transaction_control, remembered
from onceward.stores.sqlite.writer import BUSY, begin

if TYPE_CHECKING:
    from onceward.stores import rehearsal as shown
    from onceward.stores.sqlite import rehearsal
else:
    shown, rehearsal = map(Deferred, ("stores.rehearsal", "stores.sqlite.rehearsal"))

# What may stand before a statement; SQLite's comments do not nest. Atomic and possessive: what was read as a comment is
# never read again in another way, however many there are. A second statement in a string is an error of sqlite3's own.
_BEFORE = re.compile(r"\A(?>\s|\ufeff|;|--[^\n]*|/\*.*?\*/)*+", re.DOTALL)
_AWAY = {
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_NOMEM,
}


def statement(sql: str) -> str:
    """The statement in a query string, without what stands before its first word."""
    return _BEFORE.sub("", sql, count=1)


_check = remembered(lambda sql: refuse_transaction_control(statement(sql)))


def own_cursor(connection: sqlite3.Connection) -> sqlite3.Cursor:
    """A plain cursor for our own statements, past the handler's.

    Not `sqlite3.Cursor(connection)`: a connection notes each of its cursors, and forgets those that are gone only when
    it makes the next one itself. A worker's connection would grow for as long as it lives.
    """
    return sqlite3.Connection.cursor(connection)


class HandlerCursor(sqlite3.Cursor):
    """A cursor that begins the handler's transaction at its first statement."""

    connection: HandlerConnection

    def execute(self, sql: str, parameters: Any = (), /) -> HandlerCursor:
        self.connection.before_statement(sql, parameters)
        return super().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Any, /) -> HandlerCursor:
        self.connection.before_statement(sql, parameters)
        return super().executemany(sql, parameters)

    def executescript(self, _script: str, /) -> NoReturn:
        raise ContractViolation("executescript() commits the transaction; use execute() for each statement")


class HandlerConnection(sqlite3.Connection):
    """The `tx` of a handler: an ordinary sqlite3 connection that cannot end the transaction it is in."""

    armed: Begin | None = None
    in_handler: bool = False
    notes: list[shown.Statement] | None = None
    """Where the handler's statements are noted, in a rehearsal."""

    def before_statement(self, sql: str, parameters: Any) -> None:
        """Begin lazily, and keep the handler inside its one transaction."""
        if self.notes is not None:
            self.notes.append(shown.Statement.of(sql, parameters))
        if not self.in_handler:
            raise ContractViolation("tx was used outside of its handler; its transaction is over")
        _check(sql)
        self.start()
        if not self.in_transaction:
            raise ContractViolation(
                "the transaction has ended before the handler did, perhaps because the disk is full"
            )

    def hand_over(self) -> None:
        """A handler gets the connection."""
        self.__dict__["in_handler"] = True  # past `__setattr__`, whose look at every name is for the handler's own

    def take_back(self) -> None:
        """The handler has ended; what it set for itself is forgotten."""
        self.__dict__["in_handler"] = False
        if self.row_factory is not None or self.text_factory is not str:
            self.row_factory, self.text_factory = None, str

    def start(self) -> None:
        """BEGIN IMMEDIATE, unless the transaction has begun already."""
        if self.armed is not None:
            limit, self.armed = self.armed.writer_limit, None
            begin(own_cursor(self), limit)

    def cursor(self, factory: Any = HandlerCursor) -> Any:
        if isinstance(factory, type) and not issubclass(factory, HandlerCursor):
            plain = issubclass(HandlerCursor, factory)
            factory = HandlerCursor if plain else type(factory.__name__, (HandlerCursor, factory), {})
        return super().cursor(factory)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("isolation_level", "autocommit") and self.in_handler:
            self.refuse(f"a change of {name}, which commits")
        super().__setattr__(name, value)

    def close(self) -> None:
        if self.in_handler:
            self.refuse("close()")
        # Whoever still holds a cursor, as a traceback does, would keep the connection and its lock alive after close().
        with suppress(sqlite3.Error):  # closed already
            if self.in_transaction:
                own_cursor(self).execute("ROLLBACK")
        super().close()

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        return super().cursor(HandlerCursor).execute(sql, parameters)

    def executemany(self, sql: str, parameters: Any, /) -> sqlite3.Cursor:
        return super().cursor(HandlerCursor).executemany(sql, parameters)

    def executescript(self, script: str, /) -> sqlite3.Cursor:
        return super().cursor(HandlerCursor).executescript(script)

    def commit(self) -> None:
        self.refuse("commit()")

    def rollback(self) -> None:
        self.refuse("rollback()")

    def __enter__(self) -> NoReturn:
        self.refuse("`with tx:`, which commits at its end")

    def refuse(self, what: str) -> NoReturn:
        """Raise: the handler tried to end its transaction."""
        raise ContractViolation(
            f"the handler called {what}; the transaction belongs to onceward: returning commits, raising rolls back"
        )


class SqliteSession:
    """One connection and its transaction."""

    def __init__(
        self,
        statements: Mapping[str, tuple[str, ...]],
        clock: Callable[[], int],
        connection: sqlite3.Connection,
        *,
        reopen: Callable[[], HandlerConnection] | None = None,
    ) -> None:
        self._statements, self._clock = statements, clock
        self._reopen = reopen
        self.connection = connection

    @property
    def _joined(self) -> bool:
        """Whether the transaction is the caller's own: then begin and commit are too."""
        return self._reopen is None

    @property
    def idle(self) -> bool:
        """Whether no transaction is open."""
        return not self.connection.in_transaction

    def perform(self, request: Any) -> Any:
        if isinstance(request, tuple):
            return tuple(self.perform(part) for part in request)
        if isinstance(request, Call):
            return self._call(request)
        if isinstance(request, Reconnect):
            return self._reconnect()
        try:
            return self._rehearse(request) if isinstance(request, Rehearse) else self._statement(request)
        except sqlite3.Error as error:
            raise translated(error) from error

    def _statement(self, request: Any) -> list[tuple[Any, ...]]:
        if isinstance(request, Query):
            return self._run(request.name, request.params)
        if isinstance(request, Each):
            rows = []
            for record in request.records:
                rows += self._run(request.name, {**request.shared, **record})
            return rows
        if not self._joined:
            self._boundary(request)
        return []

    def _boundary(self, request: Any) -> None:
        connection = self.connection
        assert isinstance(connection, HandlerConnection)  # noqa: S101 - only joined sessions have another kind
        if isinstance(request, Begin):
            connection.armed = request
        elif isinstance(request, Commit):
            if connection.armed is None and not connection.in_transaction:
                raise _rolled_back()
            if connection.armed is None:
                own_cursor(connection).execute("COMMIT")
            connection.armed = None
        elif isinstance(request, Rollback):
            connection.armed = None
            if connection.in_transaction:
                own_cursor(connection).execute("ROLLBACK")
        else:
            raise TypeError(f"a session cannot perform {request!r}")

    def _run(self, name: str, params: Any) -> list[tuple[Any, ...]]:
        connection = self.connection
        if isinstance(connection, HandlerConnection):
            connection.start()
            if not connection.in_transaction:
                raise _rolled_back()
        bound = {key: json.dumps(value) if isinstance(value, list) else value for key, value in params.items()}
        bound["now"] = self._clock()
        rows: list[tuple[Any, ...]] = []
        text, connection.text_factory = connection.text_factory, str  # the owner of the connection may have others
        try:
            for statement in self._statements[name]:
                cursor = own_cursor(connection)
                cursor.row_factory = None
                rows += cursor.execute(statement, bound).fetchall()
        finally:
            connection.text_factory = text
        return rows

    def _call(self, call: Call) -> Outcome:
        connection = self.connection
        assert isinstance(connection, HandlerConnection)  # noqa: S101 - handlers never run on joined sessions
        connection.hand_over()
        try:
            return outcome(call, connection, is_infrastructure)
        finally:
            connection.take_back()

    def _rehearse(self, request: Rehearse) -> shown.Rehearsal:
        notes = self.listen(request)
        return self.noted(notes, self._call(request.call))

    def listen(self, request: Rehearse) -> list[shown.Statement]:
        """Begin the transaction of a rehearsal, and to note what happens in it."""
        connection = self.connection
        assert isinstance(connection, HandlerConnection)  # noqa: S101 - handlers never run on joined sessions
        connection.start()
        rehearsal.listen(own_cursor(connection), request.prefix)
        connection.notes = []
        return connection.notes

    def noted(self, notes: list[shown.Statement], outcome: Outcome) -> shown.Rehearsal:
        """What was noted."""
        if not self.connection.in_transaction:
            return shown.Rehearsal(outcome, notes, (), "SQLite rolled the transaction back, and the changes with it")
        return shown.Rehearsal(outcome, notes, rehearsal.changes(own_cursor(self.connection)))

    def _reconnect(self) -> bool:
        self.close()
        try:
            self.connection = self._reopen() if self._reopen else self.connection
        except StoreError:
            return False
        return True

    def cut(self) -> None:
        # There is one writer, and its lock would outlast our goodbye. First nothing new begins, then all is undone.
        self.connection.interrupt()
        self.connection.set_authorizer(_only_rollback)
        with suppress(sqlite3.Error):  # there is nothing to undo
            sqlite3.Cursor(self.connection).execute("ROLLBACK")

    def interrupt(self) -> None:
        self.connection.interrupt()

    def close(self) -> None:
        if not self._joined:
            self.connection.close()


class AsyncSqliteSession:
    """The same session, living in the thread of an aiosqlite connection."""

    def __init__(
        self, tx: Any, session: SqliteSession, *, reopen: Callable[[], Awaitable[AsyncSqliteSession]] | None = None
    ) -> None:
        self._tx, self._session, self._reopen = tx, session, reopen

    @property
    def idle(self) -> bool:
        """Whether no transaction is open."""
        return self._session.idle

    async def perform(self, request: Any) -> Any:
        if isinstance(request, Call):
            return await self._call(request)
        if isinstance(request, Reconnect):
            return await self._reconnect()
        if isinstance(request, Rehearse):
            notes = await self._tx._execute(self._session.listen, request)  # noqa: SLF001 - as below
            return await self._tx._execute(self._session.noted, notes, await self._call(request.call))  # noqa: SLF001
        # One hop into the connection's thread however many statements travel together.
        return await self._tx._execute(self._session.perform, request)  # noqa: SLF001 - no public way to run a function

    async def _call(self, call: Call) -> Outcome:
        connection = self._session.connection
        assert isinstance(connection, HandlerConnection)  # noqa: S101 - handlers never run on joined sessions
        connection.hand_over()
        try:
            outcome = await awaited_outcome(call, self._tx, is_infrastructure)
        finally:
            connection.take_back()
        if isinstance(outcome.error, HandlerTimeout):
            connection.interrupt()  # the thread may still be busy with a statement nobody waits for
        return outcome

    async def _reconnect(self) -> bool:
        await self.close()
        try:
            if self._reopen:
                fresh = await self._reopen()
                self._tx, self._session = fresh._tx, fresh._session  # noqa: SLF001 - of its own kind
        except StoreError:
            return False
        return True

    def abandon(self) -> None:
        # Queued behind whatever the thread is doing, which is cut short; closing rolls back.
        with suppress(sqlite3.ProgrammingError):  # closed already
            self._session.connection.interrupt()
        self._tx.stop()
        # Its thread answers to this event loop, which may be about to close: a moment, and it has.
        self._tx._thread.join(0.2)  # noqa: SLF001 - aiosqlite has no other way to wait without its loop

    async def close(self) -> None:
        await self._tx.close()


def _only_rollback(action: int, operation: str | None, *_: str | None) -> int:
    ends = action == sqlite3.SQLITE_TRANSACTION and operation == "ROLLBACK"
    return sqlite3.SQLITE_OK if ends else sqlite3.SQLITE_DENY


def _rolled_back() -> TransactionAborted:
    return TransactionAborted(
        "SQLite rolled the transaction back (a full disk, or a conflict with OR ROLLBACK) and the handler went on "
        "as if nothing had happened; let the error out"
    )


def is_infrastructure(error: BaseException) -> bool:
    """Whether the database was at fault rather than the message."""
    if isinstance(error, StoreUnavailable):
        return True
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(error, sqlite3.Error) and code is not None and (code & 0xFF) in BUSY | _AWAY


def translated(error: sqlite3.Error) -> StoreError:
    """A driver error as one of ours."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in BUSY:
        return StoreUnavailable(f"the SQLite database is busy: {error}; another writer holds it for too long")
    if code in _AWAY:
        return StoreUnavailable(f"the SQLite database cannot be used: {error}")
    if isinstance(error, sqlite3.IntegrityError) and "run.messages" in str(error):
        return GuardFailed("a row is not in the state its writer believed")
    return StoreError(f"SQLite refused a statement: {error}")
