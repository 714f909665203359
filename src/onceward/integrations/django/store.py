"""The store of a `DjangoInbox`: that of its database as the settings have it now.

Invariant: it is never the store of another database than Django's own connections lead to, also where a test run has
put another one in its place after the inbox was made.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from django.apps import apps
from django.db.backends.sqlite3._functions import register as register_functions
from django.db.backends.sqlite3.base import Database

from onceward.errors import ConfigurationError, SchemaMissing
from onceward.integrations.django.addresses import Address, address_of, settings_of
from onceward.stores.protocol import Store, StoreOptions, open_store
from onceward.stores.sqlite.guard import HandlerConnection, own_cursor
from onceward.stores.sqlite.store import SqliteStore


class _Unguarded:
    """A handler's connection before there is a handler."""

    def __init__(self, connection: HandlerConnection) -> None:
        self._connection = connection

    def execute(self, sql: str) -> Any:
        """As the connection's own, past the look at what a handler sends."""
        return own_cursor(self._connection).execute(sql)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


class DjangoSqliteStore(SqliteStore):
    """A SQLite file whose handlers' connections have what Django's have: its functions, types and foreign keys."""

    def __init__(self, using: str, address: Address, options: StoreOptions) -> None:
        self._using, self._in_memory = using, address.in_memory
        super().__init__(address.url, options.prefix, options.lock_wait)

    def _options(self) -> dict[str, Any]:
        return {**super()._options(), "detect_types": Database.PARSE_DECLTYPES | Database.PARSE_COLNAMES}

    def _prepared(self, connection: HandlerConnection) -> HandlerConnection:
        super()._prepared(connection)
        register_functions(_Unguarded(connection))
        own_cursor(connection).execute("PRAGMA foreign_keys = ON")
        connection.is_changed = False  # by us, not by a handler
        return connection

    def _target(self) -> str:
        return self._refuse_memory() if self._in_memory else super()._target()

    def check_schema(self) -> list[str]:
        return self._refuse_memory() if self._in_memory else super().check_schema()

    def make_missing(self) -> None:
        """`manage.py migrate` makes them, and knows that it has."""

    def _refuse_memory(self) -> NoReturn:
        raise ConfigurationError(
            f"the database {self._using!r} is in memory, where only Django's own connection reaches it. In a test, "
            f'give it a file: DATABASES[{self._using!r}]["TEST"] = {{"NAME": BASE_DIR / "test.sqlite3"}}. '
            "inbox.receive() inside atomic() works as it is"
        )


class DjangoStore:
    """Stands for the store that the settings lead to."""

    def __init__(self, using: str, options: StoreOptions, changed: Callable[[], None]) -> None:
        # Past the `__setattr__` below.
        self.__dict__.update(
            _using=using,
            _options=options,
            _changed=changed,
            _lock=threading.Lock(),
            _opened=None,
            prefix=options.prefix,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._store(), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._store(), name)

    def _store(self) -> Any:
        """The one of now."""
        name = settings_of(self._using)["NAME"]
        opened = self.__dict__["_opened"]
        if opened is not None and opened[0] == name:
            return opened[1]
        with self._lock:
            opened = self.__dict__["_opened"]
            if opened is None or opened[0] != name:
                if opened is not None:
                    opened[1].close()
                    self._changed()
                opened = self.__dict__["_opened"] = (name, _open(self._using, self._options))
        return opened[1]


def _open(using: str, options: StoreOptions) -> Store:
    address = address_of(using)
    store: Any = (
        DjangoSqliteStore(using, address, options) if address.vendor == "sqlite" else open_store(address.url, options)
    )
    if apps.is_installed("onceward.integrations.django"):
        store.check_schema = partial(_checked, using, store.check_schema)
    return store  # type: ignore[no-any-return] # it is one


def _checked(using: str, check_schema: Callable[[], list[str]]) -> list[str]:
    """As the store's own, with the command of a Django project."""
    try:
        return check_schema()
    except SchemaMissing:
        raise SchemaMissing(
            f"DATABASES[{using!r}] has no onceward tables; create them: python manage.py migrate --database {using}"
        ) from None
