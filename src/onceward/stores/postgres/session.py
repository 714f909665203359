"""A PostgreSQL connection that performs requests, sync and async: requests become statements, answers are checked.

Invariants: every transaction begins with READ COMMITTED, whatever the role's default; all settings are local to
the transaction, so transaction pooling works; COMMIT counts only when the server answers COMMIT (to an aborted
transaction it answers ROLLBACK).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from onceward.errors import StoreUnavailable
from onceward.flow import (
    Begin,
    Call,
    Commit,
    Each,
    Outcome,
    Query,
    Reconnect,
    Rehearse,
    Rollback,
    run_async,
    run_sync,
)
from onceward.stores.calls import awaited_outcome, outcome
from onceward.stores.leftovers import Left
from onceward.stores.postgres import rehearsal
from onceward.stores.postgres.failures import is_infrastructure, left_behind, translated
from onceward.stores.postgres.statement import Asked, Statement
from onceward.stores.postgres.wire import (
    BEGIN,
    BY_INDEX,
    BY_RANGE,
    COMMIT,
    OWN_PLANS,
    RESET_ALL,
    USUAL_PLANS,
    send,
    send_async,
)
from onceward.stores.rehearsal import Rehearsal

_NEED_NO_PLAN = frozenset(["make_point", "back_to_point", "finish_inline", "commit"])
"""Statements that read no table, so that no plan of theirs can age; one is all that PostgreSQL takes after an error."""

_BEFORE_HANDLERS = frozenset(["key_has_rows", "progress_of"])
"""Statements that read tables in the transaction of a handler before that runs."""

_BY_RANGE = frozenset(["forget_messages", "requeue_own"])
"""Statements that look for runs by the range of their numbers."""


class _PostgresSession:
    """What both worlds share: requests become statements, answers are checked."""

    def __init__(
        self, statements: Mapping[str, Statement], connection: Any, *, reopen: Callable[[], Any] | None = None
    ) -> None:
        self._statements = statements
        self._reopen = reopen
        self._limits: dict[str, Any] = {}
        self.connection = connection

    @property
    def _joined(self) -> bool:
        """Whether the transaction is the caller's own: then begin and commit are too."""
        return self._reopen is None

    @property
    def idle(self) -> bool:
        """Whether the connection is proven usable and no transaction is open."""
        return bool(self.connection.pgconn.transaction_status == TransactionStatus.IDLE)

    def _plan(self, requests: tuple[Any, ...]) -> tuple[list[Asked], list[int | None]]:
        """The statements to send, and for each request which of them answers it."""
        plan: list[Asked] = []
        answered_by: list[int | None] = []
        for request in requests:
            asked = self._asked(request, plan)
            if asked and not self._joined:
                plan += self._before(asked[0].name)  # they travel with the first statement
            answered_by.append(len(plan) if asked else None)
            if asked:
                plan.append(asked)
                plan += self._after(asked[0].name)
        return plan, answered_by

    def _before(self, name: str) -> list[Asked]:
        """What must come before our next statement: the beginning, or what a handler is not to see."""
        before: list[Asked] = self.connection.take_armed()
        plans: list[Asked] = [(BY_RANGE, {})] if name in _BY_RANGE else []
        if name == "back_to_point":
            self.connection.undone()
        elif not before:  # else no statement of a handler has run
            before = self.connection.restoring(self._limits)
        if (self.connection.handled and name not in _NEED_NO_PLAN) or self._precedes_handler(name):
            self.connection.handled = False
            plans = [OWN_PLANS, *plans]
        if name == "commit" and self.connection.left >= Left.SESSION:
            before = [*before, (RESET_ALL, {})]
        return [*before, *plans]

    def _after(self, name: str) -> list[Asked]:
        """What must come after a statement of ours, so that a handler does not meet what was for that."""
        return [USUAL_PLANS] if self._precedes_handler(name) else []

    def _precedes_handler(self, name: str) -> bool:
        return name in _BEFORE_HANDLERS and not self._joined and not self._limits.get("plans")

    def _asked(self, request: Any, before: list[Asked]) -> Asked | None:
        if isinstance(request, Query):
            return self._statements[request.name], request.params
        if isinstance(request, Each):
            return self._statements[request.name].of_records(request.records, request.shared)
        if self._joined:
            return None
        if isinstance(request, Begin):
            self.connection.begin(self._opening(request))
            return None
        if not isinstance(request, Commit):
            raise TypeError(f"a session cannot perform {request!r}")
        self.connection.armed = None
        # Where nothing was sent since Begin there is nothing to commit.
        return None if not before and self.idle else (COMMIT, {})

    def _opening(self, begin: Begin) -> list[Asked]:
        self._limits = {
            "statement_limit": f"{begin.statement_limit * 1000:.0f}",
            "lock_limit": f"{begin.lock_limit * 1000:.0f}",
            "idle_limit": f"{begin.idle_limit * 1000:.0f}",
            "mark": begin.mark,
            "durable": begin.durable,
            "plans": BY_INDEX if begin.by_index else None,
        }
        # psycopg would send a BEGIN if this one were missing: the connection is never in autocommit mode, so that no
        # statement of a handler can be outside of a transaction.
        opening: list[Asked] = [(BEGIN, {}), (self._statements["begin_limits"], self._limits)]
        return [*opening, (self._statements["make_point"], {})] if begin.savepoint else opening

    def _open_transaction(self) -> bool:
        """Whether there is something to roll back; what has not begun never does."""
        if self._joined:
            return False
        self.connection.armed = None
        self.connection.undone()
        return not self.idle

    @property
    def _is_spent(self) -> bool:
        """Whether a handler has left something on the connection that the next transaction must not meet."""
        return not self._joined and self.connection.is_spent

    def _judged(self, outcome: Outcome) -> Outcome:
        """What a handler did to its transaction: used it, left it aborted, or lost it. The driver knows."""
        connection = self.connection
        outcome.leaves = bool(connection.left)
        outcome.touched, outcome.savepoints = connection.statements > 0, connection.savepoints
        outcome.inside = connection.inside
        status = connection.pgconn.transaction_status
        if status == TransactionStatus.INTRANS or connection.armed is not None:
            return outcome
        outcome.lost = status != TransactionStatus.INERROR
        if outcome.error is None:
            outcome.error = left_behind(status)
            outcome.infrastructure = isinstance(outcome.error, StoreUnavailable)
        return outcome

    def _is_infrastructure(self, error: BaseException) -> bool:
        return is_infrastructure(error, self.connection)


class PostgresSession(_PostgresSession):
    """One connection and its transaction."""

    def perform(self, request: Any) -> Any:
        if isinstance(request, Call):
            return self._call(request)
        if isinstance(request, Rehearse):
            return self._rehearse(request)
        if isinstance(request, Reconnect):
            return self._reconnect()
        if self._is_spent and not self._reconnect():
            raise _no_other()
        try:
            if isinstance(request, Rollback):
                return self._roll_back(request)
            plan, answered_by = self._plan(request if isinstance(request, tuple) else (request,))
            rows = [self._run(asked) for asked in plan] if self._joined else send(self.connection, plan)
        except psycopg.Error as error:
            raise translated(error, self.connection) from error
        answers = tuple([] if index is None else rows[index] for index in answered_by)
        return answers if isinstance(request, tuple) else answers[0]

    def _run(self, asked: Asked) -> list[Any]:
        """Over the caller's connection: as any other statement of theirs."""
        statement, params = asked
        cursor = psycopg.RawCursor(self.connection, row_factory=tuple_row)
        cursor.execute(statement.sql, statement.values(params), binary=True)
        return cursor.fetchall() if cursor.description else []

    def _roll_back(self, _: Rollback) -> list[Any]:
        # By psycopg, which forgets what it had prepared for the handler: that may have been about tables of this
        # transaction.
        if self._open_transaction():
            self.connection.rollback()
        return []

    def _call(self, call: Call) -> Outcome:
        self.connection.hand_over()
        try:
            called = outcome(call, self.connection, self._is_infrastructure)
        finally:
            self.connection.take_back()
        return self._judged(called)

    def _rehearse(self, request: Rehearse) -> Rehearsal:
        notes = self.connection.notes = []
        outcome = self._call(request.call)

        def rows(statement: tuple[Any, Any]) -> list[Any]:
            return psycopg.Cursor(self.connection, row_factory=tuple_row).execute(*statement).fetchall()

        with rehearsal.elsewhere(self.connection) as other:
            return run_sync(rehearsal.noted(self.connection, other, request.prefix, outcome, notes), rows)

    def _reconnect(self) -> bool:
        self.close()
        try:
            self.connection = self._reopen() if self._reopen else self.connection
        except StoreUnavailable:
            return False
        return True

    def cut(self) -> None:
        self.interrupt()  # what it holds locked is only its own, and goes when the process does

    def interrupt(self) -> None:
        # The connection belongs to the thread that uses it, so it is not closed from here: what the server is doing is
        # cancelled, and the handler gets no further statement through. The rollback follows when it has ended.
        self.connection.overrun = True
        with suppress(psycopg.Error):  # gone already, which is what is wanted
            self.connection.cancel_safe(timeout=5)

    def close(self) -> None:
        if not self._joined:
            self.connection.force_close()


class AsyncPostgresSession(_PostgresSession):
    """One async connection and its transaction."""

    async def perform(self, request: Any) -> Any:
        if isinstance(request, Call):
            return await self._call(request)
        if isinstance(request, Rehearse):
            return await self._rehearse(request)
        if isinstance(request, Reconnect):
            return await self._reconnect()
        if self._is_spent and not await self._reconnect():
            raise _no_other()
        try:
            if isinstance(request, Rollback):
                return await self._roll_back(request)
            plan, answered_by = self._plan(request if isinstance(request, tuple) else (request,))
            if self._joined:
                rows = [await self._run(asked) for asked in plan]
            else:
                rows = await send_async(self.connection, plan)
        except psycopg.Error as error:
            raise translated(error, self.connection) from error
        answers = tuple([] if index is None else rows[index] for index in answered_by)
        return answers if isinstance(request, tuple) else answers[0]

    async def _run(self, asked: Asked) -> list[Any]:
        statement, params = asked
        cursor = psycopg.AsyncRawCursor(self.connection, row_factory=tuple_row)
        await cursor.execute(statement.sql, statement.values(params), binary=True)
        return await cursor.fetchall() if cursor.description else []

    async def _roll_back(self, _: Rollback) -> list[Any]:
        if self._open_transaction():
            await self.connection.rollback()
        return []

    async def _call(self, call: Call) -> Outcome:
        self.connection.hand_over()
        try:
            called = await awaited_outcome(call, self.connection, self._is_infrastructure)
        finally:
            self.connection.take_back()
        return self._judged(called)

    async def _rehearse(self, request: Rehearse) -> Rehearsal:
        notes = self.connection.notes = []
        outcome = await self._call(request.call)

        async def rows(statement: tuple[Any, Any]) -> list[Any]:
            cursor = await psycopg.AsyncCursor(self.connection, row_factory=tuple_row).execute(*statement)
            return await cursor.fetchall()

        with rehearsal.elsewhere(self.connection) as other:
            return await run_async(rehearsal.noted(self.connection, other, request.prefix, outcome, notes), rows)

    async def _reconnect(self) -> bool:
        await self.close()
        try:
            self.connection = await self._reopen() if self._reopen else self.connection
        except StoreUnavailable:
            return False
        return True

    def abandon(self) -> None:
        if not self._joined:
            self.connection.force_close()

    async def close(self) -> None:
        self.abandon()


def _no_other() -> StoreUnavailable:
    return StoreUnavailable("a handler has left its connection changed, and PostgreSQL gives no other just now")
