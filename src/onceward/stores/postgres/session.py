"""A PostgreSQL connection that performs requests, sync and async: requests become statements, answers are checked.

Invariants: every transaction begins with READ COMMITTED, whatever the role's default; all settings are local to
the transaction, so transaction pooling works; COMMIT counts only when the server answers COMMIT (to an aborted
transaction it answers ROLLBACK).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from onceward.errors import StoreUnavailable
from onceward.flow import (
    Begin,
    Call,
    Commit,
    DryRun,
    Each,
    Outcome,
    Query,
    Reconnect,
    Rollback,
    run_async,
    run_sync,
)
from onceward.stores.calls import awaited_outcome, outcome
from onceward.stores.dry_run import DryRunResult
from onceward.stores.dry_run import Statement as Recorded
from onceward.stores.leftovers import Left
from onceward.stores.postgres import cursors, dry_run
from onceward.stores.postgres.cursors import BEGIN, COMMIT
from onceward.stores.postgres.failures import is_infrastructure, left_behind, translated
from onceward.stores.postgres.statement import Asked, Statement
from onceward.stores.postgres.wire import (
    BY_INDEX,
    BY_RANGE,
    OWN_PLANS,
    RESET_ALL,
    USUAL_PLANS,
    send,
    send_async,
)

_NEED_NO_PLAN = frozenset(["savepoint", "rollback_to_savepoint", "finish_direct", "commit"])
"""Statements that read no table, so that no plan of theirs can age; one is all that PostgreSQL takes after an error."""

_BEFORE_HANDLERS = frozenset(
    ["lock_free_keys", "lock_free_keys_of_one", "busy_keys", "busy_keys_of_one", "progress_of"]
)
"""Statements that read tables in the transaction of a handler before that runs."""

_BY_RANGE = frozenset(["forget_messages", "requeue_own"])
"""Statements that look for runs by the range of their numbers."""


_Calls = Generator[Callable[[], Any], Any, Any]
"""The calls that a request is made of; the answer to each comes back."""


class _PostgresSession:
    """What both worlds share: requests become statements, answers are checked."""

    def __init__(
        self, statements: Mapping[str, Statement], connection: Any, *, reopen: Callable[[], Any] | None = None
    ) -> None:
        self._statements = statements
        self._reopen = reopen
        self._joined = reopen is None
        """Whether the transaction is the caller's own: then begin and commit are too."""
        self._limits: dict[str, Any] = {}
        self._is_cut = False
        self.connection = connection

    @property
    def idle(self) -> bool:
        """Whether the connection is proven usable and no transaction is open."""
        return bool(self.connection.pgconn.transaction_status == TransactionStatus.IDLE)

    def _plan(self, requests: tuple[Any, ...]) -> tuple[list[Asked], list[int | None]]:
        """The statements to send, and for each request which of them answers it."""
        plan: list[Asked] = []
        answered_by: list[int | None] = []
        owned = False
        for request in requests:
            asked = self._asked(request, plan)
            if asked and not self._joined:
                name = asked[0].name
                precedes_handler = name in _BEFORE_HANDLERS and not self._limits.get("plans")
                if owned and name == "savepoint":  # else going back to it would bring our plans back
                    plan.append(USUAL_PLANS)
                    owned = False
                plan += self._before(name, own_plans=precedes_handler and not owned)  # with the first statement
                owned = owned or precedes_handler
            answered_by.append(len(plan) if asked else None)
            if asked:
                plan.append(asked)
        if owned:  # a handler is not to meet what was for our statements before it
            plan.append(USUAL_PLANS)
        return plan, answered_by

    def _before(self, name: str, *, own_plans: bool) -> list[Asked]:
        """What must come before our next statement: the beginning, or what a handler is not to see."""
        before: list[Asked] = self.connection.take_pending_begin()
        plans: list[Asked] = [(BY_RANGE, {})] if name in _BY_RANGE else []
        if name == "rollback_to_savepoint":
            self.connection.undone()
        elif not before:  # else no statement of a handler has run
            before = self.connection.restoring(self._limits)
        if own_plans or (self.connection.handled and name not in _NEED_NO_PLAN):
            self.connection.handled = False
            plans = [OWN_PLANS, *plans]
        if name == "commit" and self.connection.left >= Left.SESSION:
            before = [*before, (RESET_ALL, {})]
        return [*before, *plans]

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
        self.connection.pending_begin = None
        # Where nothing was sent since Begin there is nothing to commit.
        return None if not before and self.idle else (COMMIT, {})

    def _opening(self, begin: Begin) -> list[Asked]:
        self._limits = {
            "statement_limit": f"{begin.statement_limit * 1000:.0f}",
            "lock_limit": f"{begin.lock_limit * 1000:.0f}",
            "idle_limit": f"{begin.idle_limit * 1000:.0f}",
            "fence": begin.fence,
            "durable": begin.durable,
            "plans": BY_INDEX if begin.by_index else None,
        }
        # psycopg would send a BEGIN if this one were missing: the connection is never in autocommit mode, so that no
        # statement of a handler can be outside of a transaction.
        opening: list[Asked] = [(BEGIN, {}), (self._statements["begin_limits"], self._limits)]
        return [*opening, (self._statements["savepoint"], {})] if begin.savepoint else opening

    def _open_transaction(self) -> bool:
        """Whether there is something to roll back; what has not begun never does."""
        if self._joined:
            return False
        self.connection.pending_begin = None
        self.connection.undone()
        return not self.idle

    @property
    def _is_spent(self) -> bool:
        """Whether a handler has left something on the connection that the next transaction must not meet."""
        return not self._joined and self.connection.is_spent

    def _examined(self, outcome: Outcome) -> Outcome:
        """What a handler did to its transaction: used it, left it aborted, or lost it. The driver knows."""
        connection = self.connection
        outcome.leaves = bool(connection.left)
        outcome.touched, outcome.savepoints = connection.statements > 0, connection.savepoints
        outcome.inside = connection.inside
        status = connection.pgconn.transaction_status
        if status == TransactionStatus.INTRANS or connection.pending_begin is not None:
            return outcome
        outcome.lost = status != TransactionStatus.INERROR
        if outcome.error is None:
            outcome.error = left_behind(status)
            outcome.infrastructure = isinstance(outcome.error, StoreUnavailable)
        return outcome

    def _is_infrastructure(self, error: BaseException) -> bool:
        return is_infrastructure(error, self.connection)

    # What a request is, once for both worlds: it yields the calls that block, which a session makes or awaits.

    _send: Callable[..., Any]
    _roll_back: Callable[..., Any]
    _outcome: Callable[..., Any]
    _look: Callable[..., Any]
    _open: Callable[..., Any]

    def _performing(self, request: Any) -> _Calls:
        if isinstance(request, Call):
            return (yield from self._calling(request))
        if isinstance(request, DryRun):
            recorded = self.connection.recorded = []
            outcome = yield from self._calling(request.call)
            return (yield partial(self._look, request, outcome, recorded))
        if isinstance(request, Reconnect):
            return (yield from self._reconnecting())
        if self._is_spent and not (yield from self._reconnecting()):
            raise _no_other()
        try:
            if isinstance(request, Rollback):
                # By psycopg, which forgets what it had prepared for the handler: that may have been about tables of
                # this transaction.
                if self._open_transaction():
                    yield partial(self._roll_back, request)
                return []
            if self._is_cut:
                raise StoreUnavailable("this session was cut: its worker has ended, and its messages are given back")
            plan, answered_by = self._plan(request if isinstance(request, tuple) else (request,))
            rows = (yield partial(self._send, plan)) if plan else []
        except psycopg.Error as error:
            raise translated(error, self.connection) from error
        answers = tuple([[] if index is None else rows[index] for index in answered_by])
        return answers if isinstance(request, tuple) else answers[0]

    def _calling(self, call: Call) -> _Calls:
        self.connection.lend()
        try:
            called = yield partial(self._outcome, call)
        finally:
            self.connection.reclaim()
        return self._examined(called)

    def _reconnecting(self) -> _Calls:
        self.abandon()
        if self._is_cut:
            return False
        try:
            self.connection = yield self._open
        except StoreUnavailable:
            return False
        return True

    def abandon(self) -> None:
        """Close the connection at once, unless it is the caller's."""
        if not self._joined:
            self.connection.force_close()


class PostgresSession(_PostgresSession):
    """One connection and its transaction."""

    def perform(self, request: Any) -> Any:
        if type(request) is not Call:
            return run_sync(self._performing(request), _made)  # type: ignore[arg-type] # not a step: it yields calls
        # As in `_calling`. Every message comes along here, and pays more for a generator than for the call.
        self.connection.lend()
        try:
            called = outcome(request, self.connection, self._is_infrastructure)
        finally:
            self.connection.reclaim()
        return self._examined(called)

    def _send(self, plan: Sequence[Asked]) -> list[list[Any]]:
        way = partial(cursors.send, joined=True) if self._joined else send
        return way(self.connection, plan)

    def _roll_back(self, _: Rollback) -> None:
        self.connection.rollback()

    def _outcome(self, call: Call) -> Outcome:
        return outcome(call, self.connection, self._is_infrastructure)

    def _look(self, request: DryRun, outcome: Outcome, recorded: list[Recorded]) -> DryRunResult:
        def rows(statement: tuple[Any, Any]) -> list[Any]:
            return psycopg.Cursor(self.connection, row_factory=tuple_row).execute(*statement).fetchall()

        with dry_run.elsewhere(self.connection) as other:
            return run_sync(dry_run.result(self.connection, other, request.prefix, outcome, recorded), rows)

    def _open(self) -> Any:
        return self._reopen() if self._reopen else self.connection

    def cut(self) -> None:
        self._is_cut = True  # what it holds locked is only its own, and goes when the process does
        self.interrupt()

    def interrupt(self) -> None:
        # The connection belongs to the thread that uses it, so it is not closed from here: what the server is doing is
        # cancelled, and the handler gets no further statement through. The rollback follows when it has ended.
        self.connection.overrun = True
        with suppress(psycopg.Error):  # gone already, which is what is wanted
            self.connection.cancel_safe(timeout=5)

    def close(self) -> None:
        self.abandon()


class AsyncPostgresSession(_PostgresSession):
    """One async connection and its transaction."""

    async def perform(self, request: Any) -> Any:
        return await run_async(self._performing(request), _made)  # type: ignore[arg-type] # not a step: it yields calls

    async def _send(self, plan: Sequence[Asked]) -> list[list[Any]]:
        way = partial(cursors.send_async, joined=True) if self._joined else send_async
        return await way(self.connection, plan)

    async def _roll_back(self, _: Rollback) -> None:
        await self.connection.rollback()

    async def _outcome(self, call: Call) -> Outcome:
        return await awaited_outcome(call, self.connection, self._is_infrastructure)

    async def _look(self, request: DryRun, outcome: Outcome, recorded: list[Recorded]) -> DryRunResult:
        async def rows(statement: tuple[Any, Any]) -> list[Any]:
            cursor = await psycopg.AsyncCursor(self.connection, row_factory=tuple_row).execute(*statement)
            return await cursor.fetchall()

        with dry_run.elsewhere(self.connection) as other:
            return await run_async(dry_run.result(self.connection, other, request.prefix, outcome, recorded), rows)

    async def _open(self) -> Any:
        return await self._reopen() if self._reopen else self.connection

    async def close(self) -> None:
        self.abandon()


def _made(call: Callable[[], Any]) -> Any:
    """Make a call that a session needs; an awaited one is awaited by its driver."""
    return call()


def _no_other() -> StoreUnavailable:
    return StoreUnavailable("a handler has left its connection changed, and PostgreSQL gives no other just now")
