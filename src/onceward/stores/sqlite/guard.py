"""The `tx` of a handler on SQLite: a sqlite3 connection that begins lazily and cannot end its transaction."""

from __future__ import annotations

import re
import sqlite3
import threading
from contextlib import suppress
from typing import Any, NoReturn

from onceward.errors import ContractViolation
from onceward.flow import Begin
from onceward.stores.calls import Owned, refuse_transaction_control, remembered
from onceward.stores.dry_run import Statement
from onceward.stores.sqlite.writer import begin_within

# What may stand before a statement; SQLite's comments do not nest. Atomic and possessive: what was read as a comment is
# never read again in another way, however many there are. A second statement in a string is an error of sqlite3's own.
_BEFORE = re.compile(r"\A(?>\s|\ufeff|;|--[^\n]*|/\*.*?\*/)*+", re.DOTALL)


def statement(sql: str) -> str:
    """The statement in a query string, without what stands before its first word."""
    return _BEFORE.sub("", sql, count=1)


SAVEPOINT = "SAVEPOINT onceward_savepoint"
"""As `savepoint`: at the beginning of a group's transaction."""
# What outlasts a transaction; a pragma that only asks does not.
_LASTING = re.compile(
    r"PRAGMA\b(?!\s+(?:\w+\s*\.\s*)?(?:\w+_(?:x?info|list|check)\b|\w+\s*;?\s*\Z))"
    r"|(?:ATTACH|DETACH)\b|CREATE\s+TEMP|CREATE\s.*?\btemp\s*\.",
    re.IGNORECASE | re.DOTALL,
)
KEPT_BY_THE_CONNECTION = (
    "create_aggregate",
    "create_collation",
    "create_function",
    "create_window_function",
    "load_extension",
    "set_authorizer",
    "set_progress_handler",
    "set_trace_callback",
    "setlimit",
)


@remembered
def _check(sql: str) -> bool:
    """Refuse what ends the transaction; returns whether what the statement sets or makes outlasts it."""
    one = statement(sql)
    refuse_transaction_control(one)
    return bool(_LASTING.match(one))


own_cursor = sqlite3.Connection.cursor
"""Makes a plain cursor for our own statements, past the handler's.

Not `sqlite3.Cursor(connection)`: a connection notes each of its cursors, and forgets those that are gone only when
it makes the next one itself. A worker's connection would grow for as long as it lives.
"""


class HandlerCursor(sqlite3.Cursor):
    """A cursor that begins the handler's transaction at its first statement."""

    connection: Guard  # type: ignore[assignment] # it is made by one, or stands behind one

    def execute(self, sql: str, parameters: Any = (), /) -> HandlerCursor:
        with self.connection.busy:
            self.connection.before_statement(sql, parameters)
            return super().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Any, /) -> HandlerCursor:
        with self.connection.busy:
            self.connection.before_statement(sql, parameters)
            return super().executemany(sql, parameters)

    def executescript(self, _script: str, /) -> NoReturn:
        raise ContractViolation("executescript() commits the transaction; use execute() for each statement")


class Guard(Owned):
    """Keeps a handler inside its one transaction; mixed into what it has for a connection."""

    target: str = ""
    """Of which database it is."""
    pending_begin: Begin | None = None
    busy: threading.RLock
    """Held from the check of a statement until it has run, so that no handler ends in between."""
    is_changed: bool = False
    """A handler has set or made something on it that outlasts its transaction: the next one gets another connection."""
    is_callers: bool = False
    """The transaction is that of a caller of the inbox."""
    recorded: list[Statement] | None = None
    """Where the handler's statements are recorded, in a dry run."""

    in_transaction: bool
    row_factory: Any
    text_factory: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.__dict__["busy"] = threading.RLock()

    def before_statement(self, sql: str, parameters: Any) -> None:
        """Begin lazily, and keep the handler inside its one transaction."""
        self.check_owner()
        if self.recorded is not None:
            self.recorded.append(Statement.of(sql, parameters))
        if _check(sql):
            self.__dict__["is_changed"] = True
        self.sends(sql)
        self.start()
        if not self.in_transaction:
            raise ContractViolation(
                "the transaction has ended before the handler did, perhaps because the disk is full"
            )

    def reclaim(self) -> None:
        """The handler has ended; what it set for itself is forgotten."""
        with self.busy:
            super().reclaim()
        if self.row_factory is not None or self.text_factory is not str:
            self.row_factory, self.text_factory = None, str

    def start(self) -> None:
        """Begin the transaction, unless it has begun already."""

    def cursor(self, factory: Any = HandlerCursor) -> Any:
        if isinstance(factory, type) and not issubclass(factory, HandlerCursor):
            plain = issubclass(HandlerCursor, factory)
            factory = HandlerCursor if plain else type(factory.__name__, (HandlerCursor, factory), {})
        return super().cursor(factory)  # type: ignore[misc] # mixed into a connection

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        return super().cursor(HandlerCursor).execute(sql, parameters)  # type: ignore[misc,no-any-return] # as above

    def executemany(self, sql: str, parameters: Any, /) -> sqlite3.Cursor:
        return super().cursor(HandlerCursor).executemany(sql, parameters)  # type: ignore[misc,no-any-return] # as above

    def executescript(self, script: str, /) -> sqlite3.Cursor:
        return super().cursor(HandlerCursor).executescript(script)  # type: ignore[misc,no-any-return] # as above

    def commit(self) -> None:
        self.refuse("commit()")

    def rollback(self) -> None:
        self.refuse("rollback()")

    def __enter__(self) -> NoReturn:
        self.refuse("`with tx:`, which commits at its end")

    def refuse(self, what: str) -> NoReturn:
        """Raise: the handler tried to end its transaction."""
        raise refused(what)


def refused(what: str) -> ContractViolation:
    """The error of a handler that tried to end its transaction."""
    return ContractViolation(
        f"the handler called {what}; the transaction belongs to onceward: returning commits, raising rolls back"
    )


class HandlerConnection(Guard, sqlite3.Connection):
    """The `tx` of a handler: an ordinary sqlite3 connection that cannot end the transaction it is in."""

    def start(self) -> None:
        """BEGIN, as the only writer where it may write, unless the transaction has begun already."""
        if self.pending_begin is not None:
            opening, self.pending_begin = self.pending_begin, None
            if opening.reads:
                own_cursor(self).execute("BEGIN")
            elif opening.writer_limit is None:
                own_cursor(self).execute("BEGIN IMMEDIATE")
            else:
                begin_within(own_cursor(self), opening.writer_limit)
            if opening.savepoint:
                own_cursor(self).execute(SAVEPOINT)

    def close(self) -> None:
        if self.in_handler:
            self.refuse("close()")
        # Whoever still holds a cursor, as a traceback does, would keep the connection and its lock alive after close().
        with suppress(sqlite3.Error):  # closed already
            if self.in_transaction:
                own_cursor(self).execute("ROLLBACK")
        super().close()


def _changing(name: str) -> Any:
    """A method of the connection after which it is not as it was."""
    usual = getattr(sqlite3.Connection, name)

    def changing(self: HandlerConnection, *args: Any, **kwargs: Any) -> Any:
        self.__dict__["is_changed"] = True
        return usual(self, *args, **kwargs)

    return changing


def _committing(name: str) -> Any:
    """An attribute of the connection whose change commits what is under way."""
    usual = getattr(sqlite3.Connection, name)

    def change(self: HandlerConnection, value: Any) -> None:
        if self.in_handler:
            self.refuse(f"a change of {name}, which commits")
        usual.__set__(self, value)

    return property(usual.__get__, change)


for _name in ("isolation_level", "autocommit"):
    if hasattr(sqlite3.Connection, _name):  # `autocommit` is of Python 3.12
        setattr(HandlerConnection, _name, _committing(_name))
for _name in KEPT_BY_THE_CONNECTION:
    if hasattr(sqlite3.Connection, _name):
        setattr(HandlerConnection, _name, _changing(_name))
