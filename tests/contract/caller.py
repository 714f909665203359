"""The caller's own transaction, on a connection of its own: of sqlite3, aiosqlite, psycopg, PyMySQL or asyncmy."""

from __future__ import annotations

import inspect
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import aiosqlite
import asyncmy
import psycopg
import pymysql
from psycopg.rows import dict_row

from onceward import Receipt
from onceward.stores.mysql.address import Address
from tests.contract.harness import Shop


@dataclass
class Own:
    """An open transaction of a caller."""

    shop: Shop
    connection: Any

    def receive(self, message_id: str, **more: Any) -> Receipt:
        """Receive a message in this transaction."""
        return self.shop.receive(message_id, tx=self.connection, **more)

    def process(self, message_id: str, **more: Any) -> Receipt:
        """Handle a message in this transaction."""
        return self.shop.process(message_id, tx=self.connection, **more)

    def execute(self, statement: str) -> None:
        """Run a statement of the caller's own."""
        self._do("execute", statement)

    def fetch(self, statement: str) -> Any:
        """The first row of a statement of the caller's own."""
        cursor = self._do("execute", statement)
        answer = cursor.fetchone()
        return self.shop.await_(_awaited(answer)) if self.shop.kind == "async" else answer

    def end(self, *, commit: bool) -> None:
        """Commit or roll back."""
        self._do("commit" if commit else "rollback")

    def close(self) -> None:
        """Close the connection."""
        self._do("close")

    def _do(self, method: str, *args: Any) -> Any:
        answer = getattr(self.connection, method)(*args)
        return self.shop.await_(_awaited(answer)) if inspect.isawaitable(answer) else answer


@contextmanager
def own_transaction(shop: Shop, *, commit: bool, autocommit: bool = False, habits: bool = False) -> Iterator[Own]:
    """A transaction of the caller's, committed or rolled back at the end of the block.

    With `habits` the connection gives rows and text in the caller's own way.
    """
    own = Own(shop, _connect(shop, autocommit=autocommit, habits=habits))
    try:
        if not autocommit and shop.dialect == "sqlite":
            own.execute("BEGIN IMMEDIATE")
        yield own
        own.end(commit=commit)
    finally:
        own.close()


def _connect(shop: Shop, *, autocommit: bool, habits: bool) -> Any:
    if shop.dialect == "postgres":
        options: dict[str, Any] = {"autocommit": autocommit, **({"row_factory": dict_row} if habits else {})}
        if shop.kind == "def":
            return psycopg.connect(shop.url, **options)
        return shop.await_(psycopg.AsyncConnection.connect(shop.url, **options))
    if shop.dialect == "mysql":
        arguments = {**Address.of(shop.url).arguments(), "autocommit": autocommit}
        if shop.kind == "def":
            return pymysql.connect(**arguments, ssl_disabled=True)
        return shop.await_(_awaited(asyncmy.connect(**arguments)))
    path = shop.url.removeprefix("sqlite:///")
    level: Literal["DEFERRED"] | None = None if autocommit else "DEFERRED"
    if shop.kind == "def":
        connection: Any = sqlite3.connect(path, isolation_level=level)
    else:
        connection = shop.await_(_awaited(aiosqlite.connect(path, isolation_level=level)))
    if habits:
        connection.row_factory = lambda cursor, row: dict(zip([c[0] for c in cursor.description], row, strict=True))
        connection.text_factory = bytes
    return connection


async def _awaited(awaitable: Any) -> Any:
    return await awaitable
