"""A PostgreSQL connection that performs requests, sync and async: requests become statements, answers are checked.

Invariants: every transaction begins with READ COMMITTED, whatever the role's default; all settings are local to
the transaction, so transaction pooling works; COMMIT counts only when the server answers COMMIT (to an aborted
transaction it answers ROLLBACK).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NoReturn

import psycopg
from psycopg import errors as pg
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
    Rehearsal,
    Rehearse,
    Rollback,
    run_async,
    run_sync,
)
from onceward.stores.calls import awaited_outcome, outcome
from onceward.stores.postgres import rehearsal
from onceward.stores.postgres.columns import Column, as_columns
from onceward.stores.postgres.guard import Guard, Statement, is_infrastructure, translated

_COMMIT = "COMMIT"


class _PostgresSession:
    """What both worlds share: requests become statements, answers are checked."""

    def __init__(
        self,
        statements: Mapping[str, tuple[str, Mapping[str, str]]],
        connection: Any,
        *,
        reopen: Callable[[], Any] | None = None,
    ) -> None:
        self._statements = statements
        self._reopen = reopen
        self._worn = False
        self.connection = connection

    @property
    def _joined(self) -> bool:
        """Whether the transaction is the caller's own: then begin and commit are too."""
        return self._reopen is None

    @property
    def idle(self) -> bool:
        """Whether the connection is proven usable and no transaction is open."""
        return bool(self.connection.info.transaction_status == TransactionStatus.IDLE)

    def _plan(self, requests: tuple[Any, ...]) -> tuple[list[Statement], list[int | None]]:
        """The statements to send, and for each request which of them answers it."""
        plan: list[Statement] = []
        answered_by: list[int | None] = []
        for request in requests:
            statement = self._statement(request, nothing=self.idle and not plan)
            if statement and isinstance(self.connection, Guard):
                plan += self.connection.take_armed()  # BEGIN travels with the first statement
            answered_by.append(len(plan) if statement else None)
            if statement:
                plan.append(statement)
        return plan, answered_by

    def _statement(self, request: Any, *, nothing: bool) -> Statement | None:
        if isinstance(request, Query):
            text, types = self._statements[request.name]
            return text, as_columns(request.params, types)
        if isinstance(request, Each):
            text, types = self._statements[request.name]
            columns = {name: Column(types[name], [record[name] for record in request.records]) for name in types}
            return text, {**request.shared, **columns}
        if self._joined:
            return None
        if isinstance(request, Begin):
            self.connection.armed = self._opening(request)
            return None
        if not isinstance(request, Commit | Rollback):
            raise TypeError(f"a session cannot perform {request!r}")
        # Where nothing was sent since Begin there is nothing to commit or to roll back.
        self.connection.armed = None
        if nothing:
            return None
        return ("ROLLBACK" if isinstance(request, Rollback) else _COMMIT), None

    def _opening(self, begin: Begin) -> list[Statement]:
        limits = {
            "statement_limit": f"{begin.statement_limit * 1000:.0f}",
            "lock_limit": f"{begin.lock_limit * 1000:.0f}",
            "idle_limit": f"{begin.idle_limit * 1000:.0f}",
            "mark": begin.mark,
        }
        # psycopg itself sends BEGIN before it: the connection is never in autocommit mode, so no statement of a
        # handler can be outside of a transaction, however it is sent.
        return [(self._statements["begin_limits"][0], limits)]

    def _prepares(self, statement: Statement) -> bool | None:
        """Our own statements are few and planned once; a connection behind a pooler ignores the wish."""
        return True if statement[1] is not None and not self._joined else None

    def _replaces(self, request: Any) -> bool:
        """Whether the connection is replaced rather than rolled back, which has the same effect.

        A precaution: once, after a refused pipeline, the server did not know a statement that psycopg had taken for
        prepared. It could not be repeated; a new connection has no such memory.
        """
        return isinstance(request, Rollback) and self._worn and not self._joined

    def _is_infrastructure(self, error: BaseException) -> bool:
        return is_infrastructure(error, self.connection)


def _lost() -> NoReturn:
    """Raise where the connection that should replace a worn one cannot be had."""
    raise StoreUnavailable("PostgreSQL cannot be reached; closing the connection has rolled back")


def _check_commit(statement: Statement, status: str | None) -> None:
    if statement == (_COMMIT, None) and status != _COMMIT:
        raise pg.InFailedSqlTransaction(f"COMMIT was answered with {status}")


class PostgresSession(_PostgresSession):
    """One connection and its transaction."""

    def perform(self, request: Any) -> Any:
        if isinstance(request, Call):
            return self._call(request)
        if isinstance(request, Rehearse):
            return self._rehearse(request)
        if isinstance(request, Reconnect):
            return self._reconnect()
        if self._replaces(request):
            return [] if self._reconnect() else _lost()
        plan, answered_by = self._plan(request if isinstance(request, tuple) else (request,))
        try:
            rows = self._send(plan)
        except psycopg.Error as error:
            raise translated(error, self.connection) from error
        answers = tuple([] if index is None else rows[index] for index in answered_by)
        return answers if isinstance(request, tuple) else answers[0]

    def _send(self, plan: list[Statement]) -> list[list[Any]]:
        if len(plan) == 1:
            cursors = [self._run(plan[0])]
        else:
            cursors, first = [], None
            try:
                with psycopg.Connection.pipeline(self.connection):
                    try:
                        cursors = [self._run(statement) for statement in plan]
                    except psycopg.Error as error:  # keep it: leaving the pipeline only says "aborted"
                        first = error
            except psycopg.Error as error:
                first = first or error
            if first:
                self._worn = True
                raise first
        answers = []
        for statement, cursor in zip(plan, cursors, strict=True):
            answers.append(cursor.fetchall() if cursor.description else [])
            _check_commit(statement, cursor.statusmessage)
        return answers

    def _run(self, statement: Statement) -> Any:
        cursor = psycopg.Cursor(self.connection, row_factory=tuple_row)
        return cursor.execute(*statement, binary=True, prepare=self._prepares(statement))

    def _call(self, call: Call) -> Outcome:
        with self.connection.handling():
            return outcome(call, self.connection, self._is_infrastructure)

    def _rehearse(self, request: Rehearse) -> Rehearsal:
        notes = self.connection.notes = []
        outcome = self._call(request.call)

        def rows(statement: Statement) -> list[Any]:
            return psycopg.Cursor(self.connection, row_factory=tuple_row).execute(*statement).fetchall()

        with rehearsal.elsewhere(self.connection) as other:
            return run_sync(rehearsal.noted(self.connection, other, request.prefix, outcome, notes), rows)

    def _reconnect(self) -> bool:
        self.close()
        try:
            self.connection = self._reopen() if self._reopen else self.connection
            self._worn = False
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
        if self._replaces(request):
            return [] if await self._reconnect() else _lost()
        plan, answered_by = self._plan(request if isinstance(request, tuple) else (request,))
        try:
            rows = await self._send(plan)
        except psycopg.Error as error:
            raise translated(error, self.connection) from error
        answers = tuple([] if index is None else rows[index] for index in answered_by)
        return answers if isinstance(request, tuple) else answers[0]

    async def _send(self, plan: list[Statement]) -> list[list[Any]]:
        if len(plan) == 1:
            cursors = [await self._run(plan[0])]
        else:
            cursors, first = [], None
            try:
                async with psycopg.AsyncConnection.pipeline(self.connection):
                    try:
                        cursors = [await self._run(statement) for statement in plan]
                    except psycopg.Error as error:  # keep it: leaving the pipeline only says "aborted"
                        first = error
            except psycopg.Error as error:
                first = first or error
            if first:
                self._worn = True
                raise first
        answers = []
        for statement, cursor in zip(plan, cursors, strict=True):
            answers.append(await cursor.fetchall() if cursor.description else [])
            _check_commit(statement, cursor.statusmessage)
        return answers

    async def _run(self, statement: Statement) -> Any:
        cursor = psycopg.AsyncCursor(self.connection, row_factory=tuple_row)
        return await cursor.execute(*statement, binary=True, prepare=self._prepares(statement))

    async def _call(self, call: Call) -> Outcome:
        with self.connection.handling():
            return await awaited_outcome(call, self.connection, self._is_infrastructure)

    async def _rehearse(self, request: Rehearse) -> Rehearsal:
        notes = self.connection.notes = []
        outcome = await self._call(request.call)

        async def rows(statement: Statement) -> list[Any]:
            cursor = await psycopg.AsyncCursor(self.connection, row_factory=tuple_row).execute(*statement)
            return await cursor.fetchall()

        with rehearsal.elsewhere(self.connection) as other:
            return await run_async(rehearsal.noted(self.connection, other, request.prefix, outcome, notes), rows)

    async def _reconnect(self) -> bool:
        await self.close()
        try:
            self.connection = await self._reopen() if self._reopen else self.connection
            self._worn = False
        except StoreUnavailable:
            return False
        return True

    def abandon(self) -> None:
        if not self._joined:
            self.connection.force_close()

    async def close(self) -> None:
        self.abandon()
