"""A caller's connection, lent to a handler: for the time of a call there is a second, guarded object over it.

Invariant: the caller's own object is as it was afterwards, with its factories, adapters and handlers of notices; ours
begins nothing, ends nothing and prepares nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from psycopg import errors as pg
from psycopg.pq import TransactionStatus

from onceward.errors import NeedsAlone, StoreError
from onceward.flow import Outcome
from onceward.stores.inside import ended, nested, refuse_nested
from onceward.stores.leftovers import Left
from onceward.stores.postgres import cursors
from onceward.stores.postgres.guard import AsyncHandlerConnection, Guard, HandlerConnection
from onceward.stores.postgres.session import AsyncPostgresSession, PostgresSession
from onceward.stores.postgres.statement import Asked
from onceward.stores.postgres.wire import send, send_async

_ENDED = (pg.InvalidSavepointSpecification, pg.NoActiveSqlTransaction)
C = TypeVar("C", HandlerConnection, AsyncHandlerConnection)


def begins(tx: Any) -> bool:
    """Whether the transaction is still to begin; the caller's own connection does that, as its owner wants it."""
    if isinstance(tx, Guard):
        raise refuse_nested()
    return bool(tx.pgconn.transaction_status == TransactionStatus.IDLE)


def over(tx: Any, kind: type[C], *, pipelined: bool) -> C:
    """A guarded connection over the caller's."""
    libpq = tx.pgconn
    told = libpq.notice_handler, libpq.notify_handler
    connection = kind(libpq)
    libpq.notice_handler, libpq.notify_handler = told
    connection.__dict__["lock"] = tx.lock
    connection.__dict__["_pool"] = None  # it is not ours to close, and psycopg need not warn of that
    connection.prepare_threshold = None
    is_ours = libpq.parameter_status(b"client_encoding") == b"UTF8"  # what travels together is encoded by us
    connection.settle_in((), pipelined=pipelined and is_ours)
    connection.begin([])
    connection.pending_begin = None
    return connection


class _Lent:
    """What both worlds share."""

    connection: Any

    def _performing(self, request: Any) -> Any:
        try:
            return (yield from super()._performing(nested(request)))  # type: ignore[misc] # mixed into a session
        except StoreError as error:
            if isinstance(error.__cause__, _ENDED):
                raise ended() from error.__cause__
            raise

    def _examined(self, outcome: Outcome) -> Outcome:
        examined: Outcome = super()._examined(outcome)  # type: ignore[misc] # as above
        if examined.leaves and examined.error is None:
            examined.error = NeedsAlone()  # what it has set would go on in the rest of the caller's transaction
        self.connection.left = Left.NOTHING  # it goes with what the handler did
        return examined


class LentSession(_Lent, PostgresSession):
    """Inside the transaction of a caller, which handlers may get."""

    def _send(self, plan: Sequence[Asked]) -> list[list[Any]]:
        if self.connection.pipelined:
            return send(self.connection, plan)
        return cursors.send(self.connection, plan, joined=True)


class AsyncLentSession(_Lent, AsyncPostgresSession):
    """As `LentSession`, awaited."""

    async def _send(self, plan: Sequence[Asked]) -> list[list[Any]]:
        if self.connection.pipelined:
            return await send_async(self.connection, plan)
        return await cursors.send_async(self.connection, plan, joined=True)
