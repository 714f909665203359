"""`execute`: one way to write parameters, for every driver."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

import pytest

from onceward import Inbox, Message, execute
from onceward.stores.parameters import pyformat

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("statement", "wanted"),
    [
        ("INSERT INTO t VALUES (:id, :a_1)", "INSERT INTO t VALUES (%(id)s, %(a_1)s)"),
        ("SELECT :a::int, now()::date", "SELECT %(a)s::int, now()::date"),
        ("SELECT ':a', 'it''s :b', \":c\"", "SELECT ':a', 'it''s :b', \":c\""),
        ("SELECT 1 -- :a\n, :b /* :c\n:d */", "SELECT 1 -- :a\n, %(b)s /* :c\n:d */"),
        ("SELECT $$:a$$, $x$ :b $$ $x$, :c", "SELECT $$:a$$, $x$ :b $$ $x$, %(c)s"),
        ("SELECT 5 % 2, '50%', :a", "SELECT 5 %% 2, '50%%', %(a)s"),
        ("SELECT t[1:2], t[a:b]", "SELECT t[1:2], t[a:b]"),
    ],
)
def test_only_parameters_are_changed(statement: str, wanted: str) -> None:
    assert pyformat(statement) == wanted


def test_one_statement_runs_on_every_store(store_url: str) -> None:
    with Inbox(store_url) as inbox:
        inbox.migrate()
        with inbox.transaction() as tx:
            execute(tx, "CREATE TABLE paid (id text, amount integer)")

        @inbox.on("paid")
        def book(message: Message, tx: Any) -> None:
            execute(tx, "INSERT INTO paid VALUES (:id, :amount)", message.data)

        @inbox.on("paid", consumer="async")
        async def count(message: Message, tx: Any) -> None:
            await execute(tx, "INSERT INTO paid VALUES (:id, :amount % 5)", message.data)

        inbox.receive(source="bank", id="1", type="paid", data={"id": "it's", "amount": 7, "unused": None})
        assert inbox.drain() == 2
        with inbox.transaction() as tx:
            found = execute(tx, "SELECT amount FROM paid WHERE id = :id ORDER BY amount", {"id": "it's"}).fetchall()
        assert [tuple(row) for row in found] == [(2,), (7,)]


def test_plain_connections_of_sqlite_are_known(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "x.db")
    assert execute(connection, "SELECT :a", {"a": 1}).fetchone() == (1,)
    connection.close()
