"""Handlers in a caller's transaction on a driver that only SQLAlchemy knows: asyncpg and psycopg2.

They get a Session or Connection over the caller's own. One that takes the driver's connection is left to a worker.

Invariant: what SQLAlchemy sends for a handler is looked at as on the store's own driver; what gets past that meets the
savepoint of the call.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Self

from sqlalchemy import Connection, event

from onceward.errors import HandlerTimeout, NeedsAlone
from onceward.flow import Call, Outcome
from onceward.integrations.sqlalchemy.lent import HandlerConnection, LentTransaction
from onceward.integrations.sqlalchemy.statements import AsyncTextSession, TextSession, is_infrastructure
from onceward.stores.calls import Owned, awaited_outcome, outcome, refuse_transaction_control
from onceward.stores.inside import nested
from onceward.stores.leftovers import Left
from onceward.stores.postgres.leftovers import left_by
from onceward.stores.postgres.script import statements


class OtherConnection(Owned):
    """The `tx` of a handler, of which providers make a Session or Connection."""

    left: Left = Left.NOTHING
    """What the handler has left behind."""

    def __init__(self, callers: Connection) -> None:
        self.engine = callers.engine
        pooled: Any = callers.connection
        self._dbapi, self._driver = pooled.dbapi_connection, pooled.driver_connection

    def opened(self) -> HandlerConnection:
        """A Connection over the caller's, for one call."""
        connection = HandlerConnection(self.engine, LentTransaction(self._dbapi, self._driver))
        event.listen(connection, "before_cursor_execute", self._look)
        return connection

    def lend(self) -> None:
        self.left = Left.NOTHING
        super().lend()

    def interrupt(self) -> None:
        """The handler has run for too long: its statement fails, and so does the next one."""
        self.overrun = True
        self._dbapi.cancel()

    def _look(self, _: Any, __: Any, script: str, *___: Any) -> None:
        self.check_owner()
        if self.overrun:
            raise HandlerTimeout("the handler has run longer than its timeout")
        for statement in statements(script):
            refuse_transaction_control(statement)
            self.left = max(self.left, left_by(statement, frozenset()))
        self.sends(script)


class _Lent:
    """What both worlds share."""

    guarded: OtherConnection

    def _performing(self, request: Any) -> Any:
        return (yield from super()._performing(nested(request)))  # type: ignore[misc] # mixed into a session

    def _examined(self, called: Outcome) -> Outcome:
        called.touched, called.savepoints = self.guarded.statements > 0, self.guarded.savepoints
        if self.guarded.left and called.error is None:
            called.error = NeedsAlone()  # what it has set would go on in the rest of the caller's transaction
        return called

    def _is_infrastructure(self, error: BaseException) -> bool:
        return is_infrastructure(error)


class LentTextSession(_Lent, TextSession):
    """Inside the transaction of a Connection, which handlers may get."""

    @classmethod
    def inside(cls, store: Any, connection: Any) -> Self:
        session = super().inside(store, connection)
        session.guarded = OtherConnection(connection)
        return session

    def perform(self, request: Any) -> Any:
        if not isinstance(request, Call):
            return super().perform(request)
        self.guarded.lend()
        try:
            called = outcome(request, self.guarded, self._is_infrastructure)
        finally:
            self.guarded.reclaim()
        return self._examined(called)

    def interrupt(self) -> None:
        self.guarded.interrupt()


class AsyncLentTextSession(_Lent, AsyncTextSession):
    """As `LentTextSession`, awaited."""

    @classmethod
    def inside(cls, store: Any, connection: Any) -> Self:
        session = super().inside(store, connection)
        session.guarded = OtherConnection(connection.sync_connection)
        return session

    def _calling(self, call: Call) -> Any:
        self.guarded.lend()
        try:
            called: Outcome = yield partial(self._outcome, call)
        finally:
            self.guarded.reclaim()
        return self._examined(called)

    async def _outcome(self, call: Call) -> Outcome:
        return await awaited_outcome(call, self.guarded, self._is_infrastructure)
