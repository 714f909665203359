"""Statements one by one, through psycopg's own cursors.

So it is in the transaction that a caller brings, and everywhere where `Settings(pipelining=False)` asks for it, as
behind a proxy that knows no pipelines.

Invariant: a transaction ends where it would end on the way of `wire.py`. What is sent while none is open, and begins
none, is one of its own; COMMIT counts only when the server answers COMMIT.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg.adapt import Transformer
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from onceward.flow import run_async, run_sync
from onceward.stores.postgres.statement import Asked, Statement

BEGIN = Statement.of("begin", "BEGIN ISOLATION LEVEL READ COMMITTED")
COMMIT = Statement.of("commit", "COMMIT")
ROLLBACK = Statement.of("rollback", "ROLLBACK")


def send(connection: Any, plan: Sequence[Asked], *, joined: bool) -> list[list[Any]]:
    """Run statements; the rows of each. What is joined is never committed here."""
    return run_sync(_in_turn(connection, plan, joined=joined), Cursors(connection).run)  # type: ignore[arg-type]


async def send_async(connection: Any, plan: Sequence[Asked], *, joined: bool) -> list[list[Any]]:
    """As `send`, awaited."""
    return await run_async(
        _in_turn(connection, plan, joined=joined),  # type: ignore[arg-type]
        Cursors(connection).run_async,
    )


def loaded(answer: Any) -> list[Any]:
    """As psycopg reads rows by default: what a handler has registered on its connection is for its own statements."""
    loader = Transformer()
    loader.set_pgresult(answer)
    return loader.load_rows(0, answer.ntuples, tuple)


def check_committed(statement: Statement, answer: Any) -> None:
    """Raise where the server has rolled back instead: to an aborted transaction it answers ROLLBACK."""
    if statement is COMMIT and answer.command_status != b"COMMIT":
        raise pg.InFailedSqlTransaction(f"COMMIT was answered with {answer.command_status!r}")


def _in_turn(connection: Any, plan: Sequence[Asked], *, joined: bool) -> Generator[Asked, Any, list[list[Any]]]:
    idle = connection.pgconn.transaction_status == TransactionStatus.IDLE
    whole = bool(plan) and idle and not joined and plan[0][0] is not BEGIN
    found: list[list[Any]] = []
    try:
        for statement, params in plan:
            if statement is BEGIN:  # psycopg begins by itself, with the isolation that the connection has
                found.append([])
                continue
            answer = yield statement, params
            check_committed(statement, answer)
            found.append(loaded(answer) if answer.ntuples else [])
        if whole:
            yield COMMIT, {}
    except psycopg.Error:
        if whole:
            yield ROLLBACK, {}
        raise
    return found


class Cursors:
    """Statements on their way over one connection, one by one."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def run(self, asked: Asked) -> Any:
        """Run one; what the server has answered."""
        statement, params = asked
        cursor = psycopg.RawCursor(self.connection, row_factory=tuple_row)
        cursor.execute(statement.sql, statement.values(params), binary=True)
        return cursor.pgresult

    async def run_async(self, asked: Asked) -> Any:
        """As `run`, awaited."""
        statement, params = asked
        cursor = psycopg.AsyncRawCursor(self.connection, row_factory=tuple_row)
        await cursor.execute(statement.sql, statement.values(params), binary=True)
        return cursor.pgresult
