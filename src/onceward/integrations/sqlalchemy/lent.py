"""The transaction of a handler as SQLAlchemy's: a Connection and a Session that cannot end it.

Invariant: a rollback that SQLAlchemy makes by itself, as after a flush that failed, is not passed on, for the messages
of a group share the transaction; it is remembered, and the handler has failed whatever it returns. So nothing that
was flushed before it is ever committed without what came after.
"""

from __future__ import annotations

from typing import Any, NoReturn

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import PoolProxiedConnection

from onceward.errors import ContractViolation, TransactionAborted


def refuse(what: str) -> NoReturn:
    """Raise: a handler tried to end its transaction."""
    raise ContractViolation(
        f"the handler called {what}; the transaction belongs to onceward: returning commits, raising rolls back"
    )


class LentTransaction(PoolProxiedConnection):
    """What SQLAlchemy takes for a connection of a pool: the `tx` of one call of a handler."""

    def __init__(self, connection: Any, driver_connection: Any) -> None:
        self.dbapi_connection, self.driver_connection = connection, driver_connection
        self._connection = connection
        self.info: dict[Any, Any] = {}
        self.over = False
        """The handler has ended; from here on SQLAlchemy tidies up, and nothing reaches the database."""
        self.rolled_back = False
        """SQLAlchemy believes that nothing of it is left."""

    @property
    def is_valid(self) -> bool:
        return not self.over

    @property
    def is_detached(self) -> bool:
        return False

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        """A cursor of the handler's connection, which looks at what is sent."""
        if self.over:
            raise ContractViolation(
                "a Session or Connection was used outside of its handler; its transaction is over. Each call of a "
                "handler gets its own"
            )
        if self.rolled_back:
            raise self.undone()
        return self._connection.cursor(*args, **kwargs)

    def commit(self) -> None:
        """As SQLAlchemy would commit."""
        refuse("commit()")

    def rollback(self) -> None:
        """As SQLAlchemy rolls back when a flush has failed."""
        self.rolled_back = not self.over

    def undone(self) -> TransactionAborted:
        """The error of a handler that goes on after that."""
        return TransactionAborted(
            "SQLAlchemy rolled the handler's transaction back (an error in flush(), or rollback()) and the handler "
            "went on as if nothing had happened, so nothing of it could be kept. Let the error out, or put what may "
            "fail into a savepoint: `with session.begin_nested():`"
        )

    def close(self) -> None:
        """Not given back: the connection is the worker's."""

    def _close_special(self, transaction_reset: bool = False) -> None:  # noqa: FBT001, FBT002 - SQLAlchemy's own
        """As `close`."""

    def detach(self) -> NoReturn:
        """Not to be had."""
        refuse("detach()")

    def invalidate(self, e: BaseException | None = None, soft: bool = False) -> None:  # noqa: FBT001, FBT002 - as above
        """Whether the connection is lost is seen by its owner."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


class HandlerConnection(Connection):
    """The Connection of a handler."""

    def __init__(self, engine: Engine, lent: LentTransaction) -> None:
        super().__init__(engine, lent)
        self.lent = lent
        self.begin()

    def commit(self) -> None:
        refuse("commit()")

    def rollback(self) -> None:
        self.lent.rollback()
        refuse("rollback()")

    def close(self) -> None:
        if not self.lent.over:
            refuse("close()")
        super().close()

    def detach(self) -> None:
        refuse("detach()")


class HandlerSession(Session):
    """Mixed into the class of a handler's Session."""

    def commit(self) -> None:
        refuse("commit()")

    def rollback(self) -> None:
        _lent(self).rollback()
        refuse("rollback()")

    def close(self) -> None:
        if not _lent(self).over:
            refuse("close()")
        super().close()

    def reset(self) -> None:
        if not _lent(self).over:
            refuse("reset()")
        super().reset()

    def invalidate(self) -> None:
        refuse("invalidate()")

    def get_bind(self, *_: Any, **__: Any) -> Any:
        """Always the handler's transaction, whatever its class would choose."""
        return self.bind


def _lent(session: Session) -> LentTransaction:
    connection = session.bind
    assert isinstance(connection, HandlerConnection)  # noqa: S101 - nobody else makes one
    return connection.lent


def finish(session: Session) -> None:
    """Write whatever a Session still holds: its handler has returned."""
    check(_lent(session))
    while (nested := session.get_nested_transaction()) is not None:
        nested.commit()
    session.flush()
    check(_lent(session))


def check(lent: LentTransaction) -> None:
    """Raise for a handler that has swallowed a rollback."""
    if lent.rolled_back:
        raise lent.undone()
