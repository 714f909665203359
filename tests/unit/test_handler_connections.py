"""What a handler may do with its connection on SQLite, and what of it is left for the next one."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from onceward.errors import ContractViolation
from onceward.flow import Begin
from onceward.stores.sqlite.guard import HandlerConnection, HandlerCursor


@pytest.fixture
def connection() -> Iterator[HandlerConnection]:
    connection = sqlite3.connect(":memory:", factory=HandlerConnection)
    connection.isolation_level = None
    yield connection
    connection.close()


def lend(connection: HandlerConnection) -> None:
    connection.pending_begin = Begin(statement_limit=60.0, lock_limit=10.0, idle_limit=60.0)
    connection.lend()


@pytest.mark.parametrize(("name", "value"), [("row_factory", sqlite3.Row), ("text_factory", bytes)])
def test_how_rows_look_is_forgotten_after_the_handler(connection: HandlerConnection, name: str, value: Any) -> None:
    lend(connection)
    setattr(connection, name, value)
    connection.execute("SELECT 'a' AS a")
    connection.reclaim()
    assert (connection.row_factory, connection.text_factory) == (None, str)
    assert not connection.is_changed


@pytest.mark.parametrize(
    "call", [lambda tx: tx.close(), lambda tx: setattr(tx, "isolation_level", None)], ids=["close", "isolation level"]
)
def test_what_would_end_the_transaction_is_refused_to_a_handler_alone(
    connection: HandlerConnection, call: Callable[[HandlerConnection], None]
) -> None:
    lend(connection)
    connection.execute("SELECT 1")
    with pytest.raises(ContractViolation):
        call(connection)
    assert connection.in_transaction
    connection.reclaim()
    sqlite3.Connection.rollback(connection)
    call(connection)


def test_the_isolation_level_can_be_read(connection: HandlerConnection) -> None:
    assert connection.isolation_level is None
    connection.isolation_level = "IMMEDIATE"
    assert connection.isolation_level == "IMMEDIATE"


@pytest.mark.parametrize(
    ("call", "changed"),
    [
        (lambda tx: tx.create_function("f", 0, lambda: 1), True),
        (lambda tx: tx.execute("PRAGMA cache_size = 10"), True),
        (lambda tx: tx.execute("CREATE TEMP TABLE t (n)"), True),
        (lambda tx: tx.execute("PRAGMA table_info(t)"), False),
        (lambda tx: tx.execute("CREATE TABLE t (n)"), False),
    ],
    ids=["function", "setting", "temporary table", "question", "table"],
)
def test_what_outlasts_the_transaction_is_noticed(
    connection: HandlerConnection, call: Callable[[HandlerConnection], None], *, changed: bool
) -> None:
    lend(connection)
    call(connection)
    connection.reclaim()
    assert connection.is_changed is changed
    sqlite3.Connection.rollback(connection)


class Named(sqlite3.Cursor):
    """A cursor of the handler's own."""

    name = "mine"


class Guarded(HandlerCursor):
    """One that is guarded already."""


@pytest.mark.parametrize(
    ("factory", "kind"),
    [(sqlite3.Cursor, HandlerCursor), (Named, Named), (Guarded, Guarded), (HandlerCursor, HandlerCursor)],
)
def test_every_cursor_is_guarded(connection: HandlerConnection, factory: type, kind: type) -> None:
    lend(connection)
    cursor = connection.cursor(factory)
    assert isinstance(cursor, kind)
    assert isinstance(cursor, HandlerCursor)
    with pytest.raises(ContractViolation):
        cursor.execute("COMMIT")
    connection.reclaim()
