"""A caller's connection, lent to a handler: what it gets stands before the caller's own, and lets nothing end.

Invariant: the caller's connection is as it was afterwards; rows and text come in its own way again.
"""

from __future__ import annotations

import sqlite3
from typing import Any, NoReturn

from onceward.stores.inside import refuse_nested
from onceward.stores.sqlite.guard import KEPT_BY_THE_CONNECTION, Guard, HandlerCursor

_COMMITTING = ("isolation_level", "autocommit")
_FACTORIES = ("row_factory", "text_factory")


class _Before:
    """What stands before a connection."""

    _callers: sqlite3.Connection

    def cursor(self, factory: type[HandlerCursor]) -> HandlerCursor:
        """A cursor of the caller's connection that knows only what stands before that."""
        known: dict[Any, type[HandlerCursor]] = self.__dict__.setdefault("_cursors", {})
        if factory not in known:
            known[factory] = type(factory.__name__, (factory,), {"connection": self})
        return self._callers.cursor(known[factory])


class LentConnection(Guard, _Before):
    """The `tx` of a handler in the transaction of a caller."""

    is_callers = True

    def __init__(self, callers: sqlite3.Connection, target: str) -> None:
        super().__init__()
        self.__dict__.update(_callers=callers, target=target)

    def lend(self) -> None:
        callers = self._callers
        self.__dict__["_usual"] = callers.row_factory, callers.text_factory
        callers.row_factory, callers.text_factory = None, str
        super().lend()

    def reclaim(self) -> None:
        super().reclaim()
        self._callers.row_factory, self._callers.text_factory = self.__dict__["_usual"]

    def close(self) -> NoReturn:
        self.refuse("close()")

    def __exit__(self, *_: object) -> None:
        """What `with tx:` would enter is refused."""

    def __getattr__(self, name: str) -> Any:
        if name in KEPT_BY_THE_CONNECTION:
            self.__dict__["is_changed"] = True
        return getattr(self._callers, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _COMMITTING:
            self.refuse(f"a change of {name}, which commits")
        setattr(self._callers, name, value) if name in _FACTORIES else super().__setattr__(name, value)


def lent_over(tx: sqlite3.Connection, target: str) -> LentConnection:
    """What a handler gets in place of a caller's connection."""
    if isinstance(tx, Guard):
        raise refuse_nested()
    return LentConnection(tx, target)


def callers(tx: Any) -> Any:
    """The caller's own connection behind one that is lent, which must be the handler's that asks."""
    if isinstance(tx, LentConnection):
        tx.check_owner()
        return tx._callers  # noqa: SLF001 - it is of this module
    return tx
