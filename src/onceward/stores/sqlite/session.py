"""A SQLite connection that performs requests.

Invariant: every write happens between BEGIN IMMEDIATE and COMMIT of a session, also the handler's: the
connection a handler gets begins the transaction at its first statement and refuses to end it. What only reads takes no
lock: it sees one state of the database, and waits for no writer.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from onceward.deferred import asyncio
from onceward.errors import (
    GuardFailed,
    HandlerTimeout,
    NeedsAlone,
    StoreError,
    StoreUnavailable,
    TransactionAborted,
    TransactionEnded,
)
from onceward.flow import Begin, Call, Commit, DryRun, Each, Outcome, Query, Reconnect, Rollback
from onceward.stores.calls import awaited_outcome, outcome
from onceward.stores.dry_run import DryRunResult, Statement
from onceward.stores.inside import ended, nested
from onceward.stores.sqlite import dry_run
from onceward.stores.sqlite.guard import Guard, HandlerConnection, own_cursor
from onceward.stores.sqlite.writer import BUSY

_AWAY = {
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_NOMEM,
}

_GRACE_SECONDS = 0.1
"""After its timeout an `async def` handler has so long to end by itself before its statement is interrupted."""


class SqliteSession:
    """One connection and its transaction."""

    undoes_statements_only = True
    """As `whole` (stores/inside.py) asks."""

    def __init__(
        self,
        statements: Mapping[str, tuple[str, ...]],
        clock: Callable[[], int] | None,
        connection: sqlite3.Connection,
        *,
        reopen: Callable[[], HandlerConnection] | None = None,
        lent: Guard | None = None,
    ) -> None:
        self._statements = statements
        self._clock = clock
        """The database runs in this process, so its clock is this machine's; that of a test, if there is one."""
        self._reopen = reopen
        self._joined = reopen is None
        """Whether the transaction is the caller's own: then begin and commit are too."""
        self._lent = lent
        """What handlers get where the transaction is the caller's own."""
        self.connection = connection

    @property
    def idle(self) -> bool:
        """Whether no transaction is open."""
        return not self.connection.in_transaction

    @property
    def guarded(self) -> Guard:
        """What handlers get."""
        guarded = self._lent or self.connection
        assert isinstance(guarded, Guard)  # noqa: S101 - handlers never run on sessions that are only joined
        return guarded

    @property
    def is_spent(self) -> bool:
        """Whether a handler has changed the connection, and no transaction is under way: the next needs another."""
        connection = self.connection
        return (
            isinstance(connection, HandlerConnection)
            and connection.is_changed
            and self.idle
            and not connection.pending_begin
        )

    def perform(self, request: Any) -> Any:
        if self._lent is not None:
            request = nested(request)
        if isinstance(request, tuple):
            return tuple(self.perform(part) for part in request)
        if isinstance(request, Call):
            return self._call(request)
        if isinstance(request, Reconnect):
            return self._reconnect()
        if self.is_spent and not self._reconnect():
            raise _no_other()
        try:
            return self._dry_run(request) if isinstance(request, DryRun) else self._statement(request)
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
            connection.pending_begin = request
        elif isinstance(request, Commit):
            if connection.pending_begin is None and not connection.in_transaction:
                raise _rolled_back()
            if connection.pending_begin is None:
                own_cursor(connection).execute("COMMIT")
            connection.pending_begin = None
        elif isinstance(request, Rollback):
            connection.pending_begin = None
            if connection.in_transaction:
                own_cursor(connection).execute("ROLLBACK")
        else:
            raise TypeError(f"a session cannot perform {request!r}")

    def _run(self, name: str, params: Any) -> list[tuple[Any, ...]]:
        connection = self.connection
        if isinstance(connection, HandlerConnection):
            if connection.pending_begin is not None:
                connection.start()
            if not connection.in_transaction:
                raise _rolled_back()
            if connection.is_changed:
                own_cursor(connection).execute("PRAGMA query_only = OFF")  # a handler may have let nobody write
        bound = {key: json.dumps(value) if isinstance(value, list) else value for key, value in params.items()}
        bound["now"] = self._clock() if self._clock else time.time_ns() // 1000
        rows: list[tuple[Any, ...]] = []
        text = connection.text_factory
        if text is not str:  # the owner of the connection may have others
            connection.text_factory = str
        try:
            for statement in self._statements[name]:
                cursor = own_cursor(connection)
                cursor.row_factory = None
                rows += cursor.execute(statement, bound).fetchall()
        finally:
            if text is not str:
                connection.text_factory = text
        return rows

    def _call(self, call: Call) -> Outcome:
        connection = self.guarded
        connection.lend()
        try:
            called = outcome(call, connection, self.is_infrastructure)
        finally:
            connection.reclaim()
        return examined(called, connection)

    def is_infrastructure(self, error: BaseException) -> bool:
        """Whether the database was at fault rather than the message.

        While the handler's transaction is open it is the one writer: who finds the database locked waits for itself.
        """
        return is_infrastructure(error) and not (self.connection.in_transaction and _is_busy(error))

    def _dry_run(self, request: DryRun) -> DryRunResult:
        recorded = self.listen(request)
        return self.result(recorded, self._call(request.call))

    def listen(self, request: DryRun) -> list[Statement]:
        """Begin the transaction of a dry run, and record what happens in it."""
        connection = self.connection
        assert isinstance(connection, HandlerConnection)  # noqa: S101 - handlers never run on joined sessions
        connection.start()
        dry_run.listen(own_cursor(connection), request.prefix)
        connection.recorded = []
        return connection.recorded

    def result(self, recorded: list[Statement], outcome: Outcome) -> DryRunResult:
        """What was recorded."""
        if not self.connection.in_transaction:
            return DryRunResult(outcome, recorded, (), "SQLite rolled the transaction back, and the changes with it")
        return DryRunResult(outcome, recorded, dry_run.changes(own_cursor(self.connection)))

    def _reconnect(self) -> bool:
        self.close()
        try:
            self.connection = self._reopen() if self._reopen else self.connection
        except StoreError:
            return False
        return True

    def cut(self) -> None:
        # There is one writer, and its lock would outlast our end. First nothing new begins, then all is undone.
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

    undoes_statements_only = True
    """As `whole` (stores/inside.py) asks."""

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
        if self._session.is_spent and not await self._reconnect():
            raise _no_other()
        if isinstance(request, DryRun):
            recorded = await self._tx._execute(self._session.listen, request)  # noqa: SLF001 - as below
            return await self._tx._execute(self._session.result, recorded, await self._call(request.call))  # noqa: SLF001
        # One hop into the connection's thread however many statements travel together.
        return await self._tx._execute(self._session.perform, request)  # noqa: SLF001 - no public way to run a function

    async def _call(self, call: Call) -> Outcome:
        connection = self._session.guarded
        connection.lend()
        # A library above the driver tidies up when it is cancelled, and waits for the thread that is still busy.
        late = call.handler.timeout.total_seconds() + _GRACE_SECONDS
        interrupting = asyncio.get_running_loop().call_later(late, self._session.interrupt)
        try:
            called = await awaited_outcome(call, self._tx, self._session.is_infrastructure)
            if isinstance(called.error, HandlerTimeout):
                _cut_short(self._session)
        except BaseException:  # it was cancelled
            _cut_short(self._session)
            raise
        finally:
            interrupting.cancel()
            connection.reclaim()
        # In the thread, and so behind that statement, which may take the transaction with it.
        return await self._tx._execute(examined, called, connection) if connection.statements else called  # noqa: SLF001

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


def _cut_short(session: SqliteSession) -> None:
    """End the statement that the thread is perhaps still busy with: the event loop must not wait for it."""
    busy = session.guarded.busy
    while not busy.acquire(timeout=0.01):
        session.interrupt()
    busy.release()


def _no_other() -> StoreUnavailable:
    return StoreUnavailable("a handler has left its connection changed, and the database cannot be opened anew")


def examined(outcome: Outcome, connection: Guard) -> Outcome:
    """What a handler did to its transaction: used it, or lost it."""
    outcome.touched, outcome.savepoints = connection.statements > 0, connection.savepoints
    outcome.leaves = connection.is_changed
    if connection.is_callers and outcome.leaves:  # it would go on in the rest of the caller's transaction
        outcome.error = outcome.error or NeedsAlone()
        connection.is_changed = False
    if connection.pending_begin is None and not connection.in_transaction:
        outcome.lost = True
        outcome.error = outcome.error or (TransactionEnded() if connection.is_callers else _rolled_back())
    return outcome


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


def _is_busy(error: BaseException) -> bool:
    codes = (getattr(one, "sqlite_errorcode", None) for one in (error, error.__cause__))
    return any(code is not None and (code & 0xFF) in BUSY for code in codes)


def translated(error: sqlite3.Error) -> StoreError:
    """A driver error as one of ours."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in BUSY:
        return StoreUnavailable(f"the SQLite database is busy: {error}; another writer holds it for too long")
    if code in _AWAY:
        return StoreUnavailable(f"the SQLite database cannot be used: {error}")
    if isinstance(error, sqlite3.IntegrityError) and "run.messages" in str(error):
        return GuardFailed("a row is not in the state its writer believed")
    if str(error).startswith("no such savepoint"):
        return ended()
    return StoreError(f"SQLite refused a statement: {error}")
