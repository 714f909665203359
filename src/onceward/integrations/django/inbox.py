"""`DjangoInbox`: an inbox in a database of `DATABASES`, whose handlers' ORM is in the transaction of their message.

Invariant: a call that commits by itself never runs inside a transaction of Django's, which could not undo it; what can
join one does.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Unpack

from django.db import connections

from onceward.domain import checks, identity
from onceward.errors import ConfigurationError, ContractViolation
from onceward.inbox import Inbox
from onceward.integrations.django.addresses import settings_of
from onceward.integrations.django.callers import is_in_transaction
from onceward.integrations.django.handlers import Orm
from onceward.integrations.django.store import DjangoStore
from onceward.message import Arguments, Receipt, SendArguments
from onceward.settings import Settings
from onceward.stores.migrate import DEFAULT_PREFIX
from onceward.stores.protocol import StoreOptions

_made: list[weakref.ref[DjangoInbox]] = []


class DjangoInbox(Inbox):
    """An inbox in the database that `DATABASES` has under an alias.

    `inbox = DjangoInbox()` in a module of the project; handlers in `inbox_handlers.py` of its apps are found. They are
    `def`, may take the message alone, and what their ORM does is in the transaction that finishes the message.
    """

    def __init__(
        self, using: str = "default", *, prefix: str | None = None, settings: Settings | None = None, **options: Any
    ) -> None:
        checks.text("DjangoInbox", "using", using)
        if options.pop("sessions", None) is not None:
            raise ConfigurationError("DjangoInbox: sessions= is for SQLAlchemy; handlers have Django's ORM")
        settings_of(using)
        self.using = using
        """The alias of its database."""
        kept = settings or Settings()
        named = identity.check_prefix(DEFAULT_PREFIX if prefix is None else prefix)
        store: Any = DjangoStore(using, StoreOptions(named, kept.lock_wait, kept.pool, kept.pipelining), self._forget)
        super().__init__(store, settings=settings, **options)
        self.context.registry.providers.around = Orm(using)
        _made[:] = [*(one for one in _made if one() is not None), weakref.ref(self)]

    def _forget(self) -> None:
        """The settings lead to another database: what was known of the one before is not so there."""
        if "inline" in vars(self):
            self.inline.close()
            self.context.forget()

    def receive(self, *, tx: Any = None, **message: Unpack[Arguments]) -> Receipt:
        """Store a message for the workers: inside `atomic()` with its commit, outside at once."""
        return super().receive(tx=self._transaction(tx), **message)

    def receive_many(self, messages: Iterable[Arguments]) -> list[Receipt]:
        """As `receive`, for many."""
        if self._transaction() is None:
            return super().receive_many(messages)
        return [self.receive(**message) for message in messages]

    def send(self, type: str, data: Any = None, *, tx: Any = None, **message: Unpack[SendArguments]) -> str:  # noqa: A002
        """Send a message: inside `atomic()` with its commit, outside at once."""
        return super().send(type, data, tx=self._transaction(tx), **message)

    def process(self, *, tx: Any = None, raise_on_failure: bool = False, **message: Unpack[Arguments]) -> Receipt:
        """Handle a message now: inside `atomic()` with its commit, outside in a transaction of its own."""
        return super().process(tx=self._transaction(tx), raise_on_failure=raise_on_failure, **message)

    def process_many(self, messages: Iterable[Arguments]) -> list[Receipt]:
        """As `process`, for many."""
        if self._transaction() is None:
            return super().process_many(messages)
        return [self.process(**message) for message in messages]

    def drain(self, *, concurrency: int = 1) -> int:
        """Run whatever is due, outside of `atomic()`."""
        self._commits_by_itself("drain()")
        return super().drain(concurrency=concurrency)

    def run(self, **options: Any) -> int:
        """Work until stopped, outside of `atomic()`."""
        self._commits_by_itself("run()")
        return super().run(**options)

    def migrate(self) -> list[str]:
        """Create or update the tables, as `manage.py migrate` does."""
        self._commits_by_itself("migrate()")
        return super().migrate()

    def transaction(self) -> AbstractContextManager[Any]:
        """A plain connection of the driver, committed at the end; for the ORM, use `transaction.atomic()`."""
        return super().transaction()

    def _transaction(self, given: Any = None) -> Any:
        """The one to join: what was given, or Django's if there is one."""
        if given is not None:
            return given
        connection = connections[self.using]
        return connection if is_in_transaction(connection) else None

    def _commits_by_itself(self, call: str) -> None:
        if self._transaction() is not None:
            raise ContractViolation(
                f"inbox.{call} inside atomic(): it commits by itself, on a connection that does not see what this "
                "transaction has done. Call it after the block, or use inbox.receive(), which joins it. In a test: "
                "TransactionTestCase, or @pytest.mark.django_db(transaction=True)"
            )


def inboxes(using: str | None = None) -> list[DjangoInbox]:
    """Those that the program has made, in their order; of one database, if it is named."""
    found = [inbox for one in _made if (inbox := one()) is not None]
    return [inbox for inbox in found if using in (None, inbox.using)]
