"""Callers with a connection of Django's: `tx=connection` joins the `atomic()` block around it.

Invariant: what is stored is stored when that block is committed, and workers are notified then.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NoReturn

from onceward.errors import ConfigurationError
from onceward.stores.callers import Lender, Lent
from onceward.stores.protocol import AsyncSession, Session, Store


class DjangoCaller:
    """Finds the transaction of Django's connection."""

    def join(self, store: Store, tx: Any) -> Session:
        """A session inside it."""
        self._check(tx)
        session = store.join(tx.connection)
        if tx.in_atomic_block:
            tx.on_commit(store.notify)
        return session

    def lend(self, store: Lender, tx: Any) -> Lent[Session]:
        """The same for handlers."""
        self._check(tx)
        session = store.lend(tx.connection)
        if not tx.in_atomic_block:
            return Lent(session)
        tx.on_commit(store.notify)
        return Lent(session, partial(tx.on_commit, robust=True))

    def _check(self, tx: Any) -> None:
        tx.validate_no_broken_transaction()
        if not is_in_transaction(tx):
            raise ConfigurationError(
                f"tx= is the connection {tx.alias!r} outside of atomic(), so there is no transaction to join and "
                "nothing was stored; put the call into `with transaction.atomic():`"
            )
        tx.ensure_connection()

    async def async_join(self, store: Store, tx: Any) -> AsyncSession:
        """Django has no async transactions."""
        self._refuse(store, tx)

    async def async_lend(self, store: Lender, tx: Any) -> Lent[AsyncSession]:
        """As `async_join`."""
        self._refuse(store, tx)

    def _refuse(self, _: Store, tx: Any) -> NoReturn:
        raise ConfigurationError(
            f"tx= is Django's connection {tx.alias!r}, whose transactions are for def only: call inbox.receive() "
            "inside a function that sync_to_async() runs"
        )


def is_in_transaction(connection: Any) -> bool:
    """Whether what is written through a connection waits for a commit."""
    if connection.in_atomic_block or not connection.settings_dict["AUTOCOMMIT"]:
        return True
    return connection.connection is not None and not connection.autocommit


CALLER = DjangoCaller()
