"""The transaction of a handler as Django's connection: inside `atomic()` from the beginning of a call to its end.

Invariant: nothing that Django does by itself begins, commits, rolls back or closes anything but a savepoint. Where it
would roll back at the end of the block, the handler has failed, whatever it returns.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NoReturn

from django.db.transaction import Atomic

from onceward.errors import ContractViolation, TransactionAborted


class LentConnection:
    """Mixed into the class of a database's own connections."""

    connection: Any
    alias: str
    needs_rollback: bool
    rollback_exc: Any
    run_on_commit: list[Any]

    def lend(self, tx: Any) -> None:
        """A handler is called: its transaction is that of `tx`."""
        self._begin(tx, in_block=True)

    def reclaim(self) -> None:
        """It has ended."""
        self._begin(None, in_block=False)

    def _begin(self, tx: Any, *, in_block: bool) -> None:
        self.connection = tx
        self.autocommit = False
        self.in_atomic_block = in_block
        self.commit_on_exit = True  # else the end of a block inside would be taken for the end of this one
        self.savepoint_ids: list[Any] = []
        self.atomic_blocks = [Atomic(self.alias, savepoint=False, durable=False)] if in_block else []
        self.needs_rollback, self.rollback_exc = False, None
        self.closed_in_transaction = self.errors_occurred = False
        self.run_on_commit = []

    def check(self) -> None:
        """Raise for a handler that has swallowed an error after which Django would roll back."""
        if self.needs_rollback:
            raise TransactionAborted(
                "the handler caught a database error (or called set_rollback) and went on, where Django rolls back to "
                "the last atomic(); there was none inside of the handler. Let the error out, or put what may fail into "
                "a block of its own: `with transaction.atomic():`"
            ) from self.rollback_exc

    def connect(self) -> NoReturn:
        """There is no other connection than the handler's."""
        raise ContractViolation(
            "the ORM was used through a connection of a handler that has ended; its transaction is over. Use "
            "django.db.connection where it is needed, and do not keep it"
        )

    def ensure_connection(self) -> None:
        if self.connection is None:
            self.connect()

    def close(self) -> None:
        """Refused inside a handler: the connection is the worker's."""
        if self.connection is not None:
            raise ContractViolation(
                "the handler called connection.close(); the transaction belongs to onceward: returning commits, "
                "raising rolls back"
            )

    def close_if_unusable_or_obsolete(self) -> None:
        """Whether it is lost is seen by its owner."""


class LentPostgres(LentConnection):
    """On PostgreSQL: cursors are both, the handler's, which look at what is sent, and Django's, which bind values."""

    timezone: Any
    timezone_name: str

    def create_cursor(self, name: str | None = None) -> Any:
        """A cursor, or a named one on the server."""
        from django.conf import settings  # noqa: PLC0415 - with the driver
        from django.db.backends.postgresql.psycopg_any import get_adapters_template  # noqa: PLC0415

        tx = self.connection
        self._set_time_zone(tx)
        own, tx._adapters = tx._adapters, get_adapters_template(settings.USE_TZ, self.timezone)  # noqa: SLF001 - a cursor copies them from there
        try:
            if name:
                return _both(_server_cursor(), tx.server_cursor_factory)(tx, name, scrollable=False, withhold=False)
            return _both(self._usual_cursor(), tx.cursor_factory)(tx)
        finally:
            tx._adapters = own  # noqa: SLF001 - as above

    def _set_time_zone(self, tx: Any) -> None:
        """Times are read as if they were in the zone that Django has set, so it has to be that one."""
        wanted = self.timezone_name
        if wanted and tx.pgconn.parameter_status(b"TimeZone") != wanted.encode():
            tx.execute("SELECT set_config('TimeZone', %s, true)", [wanted])

    def _usual_cursor(self) -> Any:
        found = self.__dict__.get("_cursor_class")
        if found is None:
            found = self._cursor_class = self.get_connection_params()["cursor_factory"]  # type: ignore[attr-defined] # Django's
        return found


class LentSqlite(LentConnection):
    """On SQLite: Django's cursors, which write parameters its way, on the handler's, which look at what is sent."""

    def create_cursor(self, name: str | None = None) -> Any:  # noqa: ARG002 - Django's signature
        """A cursor."""
        from django.db.backends.sqlite3.base import SQLiteCursorWrapper  # noqa: PLC0415 - with the driver

        from onceward.stores.sqlite.guard import HandlerCursor  # noqa: PLC0415

        return self.connection.cursor(_both(SQLiteCursorWrapper, HandlerCursor))


class LentMysql(LentConnection):
    """On MySQL: the handler's connection is PyMySQL's, also where the project's own are mysqlclient's."""

    @property
    def Database(self) -> Any:  # noqa: N802 - Django's name for the driver whose errors it translates
        import pymysql  # noqa: PLC0415 - with the driver

        return pymysql

    def lend(self, tx: Any) -> None:
        """Django wants rows counted as they are found, and times of day as such."""
        super().lend(tx)
        tx.count_matched()
        self._usual = tx.decoders
        tx.decoders = {**tx.decoders, **_times_of_day()}

    def reclaim(self) -> None:
        if self.connection is not None:
            self.connection.decoders = self._usual
        super().reclaim()


_KINDS: dict[str, type[LentConnection]] = {"postgresql": LentPostgres, "sqlite": LentSqlite, "mysql": LentMysql}


def lent_like(connection: Any) -> Any:
    """A connection like Django's own, that has none of its own."""
    return _lent_class(connection.__class__)(connection.settings_dict, connection.alias)


@cache
def _lent_class(kind: Any) -> Any:
    mixed = _KINDS.get(kind.vendor, LentConnection)
    return type(f"Handler{kind.__name__}", (mixed, kind), {})


@cache
def _both(django: type, handlers: type) -> Any:
    return type(django.__name__, (django, handlers), {})


@cache
def _times_of_day() -> dict[int, Any]:
    from django.db.backends.utils import typecast_time  # noqa: PLC0415 - with the driver
    from pymysql.constants import FIELD_TYPE  # noqa: PLC0415 - as above

    return {FIELD_TYPE.TIME: typecast_time}


def _server_cursor() -> type:
    from django.db.backends.postgresql.base import ServerSideCursor  # noqa: PLC0415 - with the driver

    return ServerSideCursor  # type: ignore[no-any-return] # it has no types
