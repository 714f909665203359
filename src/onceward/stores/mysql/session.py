"""A MySQL connection that performs requests, sync and async: requests become packets, answers are checked.

Invariants: every session reads what is committed (READ COMMITTED), whatever the server's default; autocommit is off, so
that no statement of a handler is outside of a transaction; a transaction in which handlers run has a savepoint as its
fence, which is gone with the transaction, and `finish` releases it before it changes anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import Any

from onceward.errors import ContractViolation, StoreError, StoreUnavailable, TransactionEnded
from onceward.flow import Begin, Call, Commit, DryRun, Each, Outcome, Query, Reconnect, Rollback, run_async, run_sync
from onceward.stores.calls import awaited_outcome, outcome
from onceward.stores.dry_run import DryRunResult
from onceward.stores.mysql import dry_run
from onceward.stores.mysql.failures import DRIVER, is_infrastructure, swallowed, translated
from onceward.stores.mysql.programs import BEFORE_BEGIN, Ask, Program, Rows, Tail, performed
from onceward.stores.mysql.statement import Named, identifier, literal, plain_literal
from onceward.stores.mysql.wire import BEGIN, COMMIT, IN_TRANSACTION, NO_BACKSLASH, ROLLBACK, send, send_async

_FENCE = b"SAVEPOINT "


class _MysqlSession:
    """What both worlds share: requests become statements, answers are checked."""

    def __init__(self, statements: Named, connection: Any, *, reopen: Callable[[], Any]) -> None:
        self._statements = statements
        self._reopen = reopen
        self._is_cut = False
        self.connection = connection

    @property
    def idle(self) -> bool:
        """Whether the connection is proven usable and no transaction is open."""
        connection = self.connection
        return not connection.closed and connection.pending_begin is None and not self._in_transaction

    @property
    def is_spent(self) -> bool:
        """Whether a handler has left something on the connection that the next transaction must not meet."""
        return bool(self.connection.is_changed and (self.connection.closed or not self._in_transaction))

    @property
    def _in_transaction(self) -> bool:
        return bool(self.connection.server_status & IN_TRANSACTION)

    def _exchange(self, requests: Sequence[Any]) -> Generator[Sequence[bytes], list[Rows], list[Any]]:
        """The statements of requests, as few packets as what is read in between allows; then the answers."""
        answers: list[Any] = [[] for _ in requests]
        waiting = self._ahead(requests)
        tails: list[tuple[int, int, Tail]] = []

        def settle(rows: list[Rows]) -> None:
            for index, start, tail in tails:
                answers[index] = tail.answered(rows[start : start + len(tail.statements)])
            waiting.clear()
            tails.clear()

        for index, request in enumerate(requests):
            waiting += self._before(request)
            program = self._program(request)
            try:
                wanted = next(program)
                while True:
                    start = len(waiting)
                    try:
                        rows = yield [*waiting, *wanted]
                    except DRIVER as error:
                        if waiting:
                            raise
                        wanted = program.throw(error)  # it may have tried what others have
                        continue
                    settle(rows)
                    wanted = program.send(rows[start:])
            except StopIteration as stop:
                tails.append((index, len(waiting), stop.value))
                waiting += stop.value.statements
        settle((yield list(waiting)) if waiting else [])
        return answers

    def _ahead(self, requests: Sequence[Any]) -> list[bytes]:
        """What is committed before the transaction of these requests begins."""
        if self.connection.pending_begin is None and not isinstance(requests[0], Begin):
            return []
        asked = [one for one in requests if isinstance(one, Each) and one.name == BEFORE_BEGIN]
        write = self._write()
        made = [Ask(self._statements, one.name, {}, one.records, write).part(0) for one in asked]
        return [each for one in made for each in (one, COMMIT)]

    def _before(self, request: Any) -> list[bytes]:
        """What begins the transaction, or puts right what a handler has left, before the statements of a request."""
        if not isinstance(request, Query | Each) or (isinstance(request, Each) and not request.records):
            return []
        return [*self.connection.take_pending_begin(), *self._guarded(request.name)]

    def _program(self, request: Any) -> Program:
        if isinstance(request, Query | Each):
            records = request.records if isinstance(request, Each) else ()
            if isinstance(request, Each) and not records:
                return Tail()
            params = dict(request.shared if isinstance(request, Each) else request.params)
            return (yield from performed(Ask(self._statements, request.name, params, records, self._write())))
        if isinstance(request, Begin):
            self.connection.begins(self._opening(request))
            return Tail()
        if not isinstance(request, Commit):
            raise TypeError(f"a session cannot perform {request!r}")
        # Where nothing was sent since Begin there is nothing to commit.
        return Tail() if self.connection.take_pending_begin() else Tail([COMMIT], lambda _: [])

    def _guarded(self, name: str) -> list[bytes]:
        """What must come before our next statement after a handler's: it may have other ideas of text or of modes."""
        connection = self.connection
        if name == "rollback_to_savepoint":
            connection.__dict__.update(swallowed=None)
        if connection.is_changed and connection.pending_begin is None and self._in_transaction:
            return list(OWN_SETTINGS)
        return []

    def _write(self) -> Callable[[Any], bytes]:
        return plain_literal if self.connection.server_status & NO_BACKSLASH else literal

    def _opening(self, begin: Begin) -> list[bytes]:
        # The server counts whole seconds.
        limits = max(1, math.ceil(begin.lock_limit)), begin.statement_limit
        opening = []
        if limits != self.connection.limits:
            self.connection.__dict__["limits"] = limits
            milliseconds = int(begin.statement_limit * 1000)
            told = {"lock_limit": limits[0], "statement_limit": limits[1], "statement_milliseconds": milliseconds}
            opening.append(self._statements["begin_limits"][0].rendered(told, literal))
        opening.append(BEGIN)
        if begin.fence:
            opening.append(_FENCE + identifier(begin.fence))
        return [*opening, b"SAVEPOINT onceward_savepoint"] if begin.savepoint else opening

    def _open_transaction(self) -> bool:
        """Whether there is something to roll back, or a connection that is gone, of which the caller must hear."""
        self.connection.take_pending_begin()
        return not self.idle

    def _examined(self, outcome: Outcome) -> Outcome:
        """What a handler did to its transaction: used it, spoilt it, or lost it."""
        connection = self.connection
        outcome.leaves = connection.is_changed
        outcome.touched, outcome.savepoints = connection.statements > 0, connection.savepoints
        outcome.inside = connection.inside
        result = connection._result  # noqa: SLF001 - the driver says it nowhere else
        error: BaseException | None = None
        if connection.closed and not connection.is_broken:
            error = StoreUnavailable("MySQL cannot be reached: the connection was lost while the handler ran")
        elif result is not None and result.unbuffered_active:
            connection.force_close()
            error = ContractViolation(
                "the handler left a query unfinished on tx (an unbuffered cursor); read it to its end, or close it"
            )
        elif connection.swallowed is not None:
            error = swallowed(connection.swallowed)
            outcome.lost = connection.is_lost or connection.closed
        elif connection.pending_begin is None and (connection.is_lost or not self._in_transaction):
            error = TransactionEnded()
        else:
            return outcome
        outcome.lost = outcome.lost or connection.closed or isinstance(error, TransactionEnded)
        if outcome.error is None:
            outcome.error, outcome.infrastructure = error, isinstance(error, StoreUnavailable)
        return outcome

    def _is_infrastructure(self, error: BaseException) -> bool:
        return is_infrastructure(error, self.connection.closed and not self.connection.is_broken)

    def _translated(self, error: BaseException) -> StoreError | ContractViolation:
        return translated(error, closed=self.connection.closed)


class MysqlSession(_MysqlSession):
    """One connection and its transaction."""

    def perform(self, request: Any) -> Any:
        if isinstance(request, Call):
            return self._call(request)
        if isinstance(request, Reconnect):
            return self._reconnect()
        if self.is_spent and not self._reconnect():
            raise _no_other()
        try:
            if isinstance(request, DryRun):
                return self._dry_run(request)
            if isinstance(request, Rollback):
                return self._roll_back()
            if self._is_cut:
                raise StoreUnavailable("this session was cut: its worker has ended, and its messages are given back")
            requests = request if isinstance(request, tuple) else (request,)
            answers = run_sync(self._exchange(requests), self._send)  # type: ignore[arg-type] # packets, not requests
        except DRIVER as error:
            raise self._translated(error) from error
        return tuple(answers) if isinstance(request, tuple) else answers[0]

    def _send(self, statements: Sequence[bytes]) -> list[Rows]:
        return send(self.connection, statements)

    def _roll_back(self) -> list[Any]:
        if self._open_transaction():
            send(self.connection, [ROLLBACK])
        return []

    def _call(self, call: Call) -> Outcome:
        self.connection.lend()
        try:
            called = outcome(call, self.connection, self._is_infrastructure)
        finally:
            self.connection.reclaim()
        return self._examined(called)

    def _dry_run(self, request: DryRun) -> DryRunResult:
        recorded = self.connection.record()
        called = self._call(request.call)
        if not self._in_transaction:
            return DryRunResult(called, recorded, ())
        other = self._reopen()
        where = {dry_run.HERE: self.connection, dry_run.THERE: other}
        try:
            look = dry_run.result(request.prefix, called, recorded)
            return run_sync(look, lambda asked: send(where[asked[0]], [asked[1]])[0])  # type: ignore[arg-type, no-any-return] # statements, not requests
        finally:
            other.force_close()

    def _reconnect(self) -> bool:
        self.close()
        if self._is_cut:
            return False
        try:
            self.connection = self._reopen()
        except StoreUnavailable:
            return False
        return True

    def cut(self) -> None:
        self._is_cut = True  # what it holds locked is only its own, and goes when the process does
        self.interrupt()

    def interrupt(self) -> None:
        # The connection belongs to the thread that uses it, so it is not closed from here: what the server is doing is
        # ended over another one, and the handler gets no further statement through. The rollback follows.
        connection = self.connection
        connection.__dict__["overrun"] = True
        with suppress(StoreError, *DRIVER):  # gone already, which is what is wanted
            other = self._reopen()
            try:
                send(other, [b"KILL QUERY %d" % connection.number])
            finally:
                other.force_close()

    def close(self) -> None:
        self.connection.force_close()


class AsyncMysqlSession(_MysqlSession):
    """One async connection and its transaction."""

    async def perform(self, request: Any) -> Any:
        if isinstance(request, Call):
            return await self._call(request)
        if isinstance(request, Reconnect):
            return await self._reconnect()
        if self.is_spent and not await self._reconnect():
            raise _no_other()
        try:
            if isinstance(request, DryRun):
                return await self._dry_run(request)
            if isinstance(request, Rollback):
                return await self._roll_back()
            requests = request if isinstance(request, tuple) else (request,)
            answers = await run_async(self._exchange(requests), self._send)  # type: ignore[arg-type] # as above
        except DRIVER as error:
            raise self._translated(error) from error
        return tuple(answers) if isinstance(request, tuple) else answers[0]

    async def _send(self, statements: Sequence[bytes]) -> list[Rows]:
        return await send_async(self.connection, statements)

    async def _roll_back(self) -> list[Any]:
        if self._open_transaction():
            await send_async(self.connection, [ROLLBACK])
        return []

    async def _call(self, call: Call) -> Outcome:
        self.connection.lend()
        try:
            called = await awaited_outcome(call, self.connection, self._is_infrastructure)
        finally:
            self.connection.reclaim()
            if self.connection.closed:
                await self._end_statement()
        return self._examined(called)

    async def _end_statement(self) -> None:
        """A statement that was cancelled goes on at the server, with its locks, until it is ended there."""
        with suppress(StoreError, *DRIVER):
            other = await self._reopen()
            try:
                await send_async(other, [b"KILL %d" % self.connection.number])
            finally:
                other.force_close()

    async def _dry_run(self, request: DryRun) -> DryRunResult:
        recorded = self.connection.record()
        called = await self._call(request.call)
        if not self._in_transaction:
            return DryRunResult(called, recorded, ())
        other = await self._reopen()
        where = {dry_run.HERE: self.connection, dry_run.THERE: other}

        async def rows(asked: tuple[str, bytes]) -> list[tuple[Any, ...]]:
            return (await send_async(where[asked[0]], [asked[1]]))[0]

        try:
            return await run_async(dry_run.result(request.prefix, called, recorded), rows)  # type: ignore[arg-type] # as above
        finally:
            other.force_close()

    async def _reconnect(self) -> bool:
        await self.close()
        try:
            self.connection = await self._reopen()
        except StoreUnavailable:
            return False
        return True

    def abandon(self) -> None:
        self.connection.force_close()

    async def close(self) -> None:
        self.abandon()


_MODE = (
    b"CONCAT_WS(',', REPLACE(REPLACE(@@SESSION.sql_mode, 'NO_BACKSLASH_ESCAPES', ''), 'ANSI_QUOTES', ''), "
    b"'STRICT_TRANS_TABLES')"
)
OWN_SETTINGS = (b"SET NAMES utf8mb4", b"SET SESSION sql_mode = " + _MODE)
"""What our own statements rely on, in a new connection and after a handler that has set something."""


def _no_other() -> StoreUnavailable:
    return StoreUnavailable("a handler has left its connection changed, and MySQL gives no other just now")
