"""A small shop on either store, with handlers that are careful and handlers that are not.

Every careless one does what people really do. Each names, in `CARELESS`, what the kit must say about it.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg

from onceward import Inbox, Message
from onceward.testing import Report, prove_exactly_once

ORDER = {"source": "shop", "id": "evt_1", "type": "order.paid", "data": {"order": 7, "line": "first"}}
LATER = {"source": "shop", "id": "evt_2", "type": "order.paid", "data": {"order": 7, "line": "second"}}

PAY = "UPDATE orders SET paid = paid + 1 WHERE id = 7"
NOTE = "INSERT INTO journal (line) VALUES ('paid')"


@dataclass(slots=True)
class Shop:
    """An inbox with two tables, and fakes for what is outside of it."""

    inbox: Inbox
    mails: list[str] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)

    def open(self) -> Shop:
        """Make the tables."""
        self.inbox.migrate()
        with self.inbox.transaction() as tx:
            tx.execute("CREATE TABLE orders (id integer PRIMARY KEY, paid integer NOT NULL, line text)")
            tx.execute("CREATE TABLE journal (line text NOT NULL)")
            tx.execute("INSERT INTO orders (id, paid) VALUES (7, 0)")
        return self

    def forget(self) -> None:
        """What lives in memory is new before every case, as after a start."""
        self.seen.clear()

    def effect(self, tx: Any) -> list[Any]:
        """What the messages have led to."""
        orders = tx.execute("SELECT id, paid, line FROM orders ORDER BY id").fetchall()
        return [*orders, *tx.execute("SELECT line FROM journal").fetchall()]

    def prove(self, handler: Callable[..., Any], *, options: dict[str, Any] | None = None, **more: Any) -> Report:
        """Register a handler and prove it."""
        self.inbox.on("order.paid", **(options or {}))(handler)
        return self.prove_again(**more)

    def prove_again(self, **more: Any) -> Report:
        """Prove the handler that is registered."""
        return prove_exactly_once(self.inbox, ORDER, check=self.effect, setup=self.forget, **more)

    def elsewhere(self, statement: str) -> None:
        """What a repository with a connection of its own does."""
        if self.inbox.store.dialect == "sqlite":
            with closing(sqlite3.connect(self.inbox.url.removeprefix("sqlite:///"), timeout=0.05)) as connection:
                connection.execute(statement)
                connection.commit()
        elif self.inbox.store.dialect == "mysql":
            with self.inbox.transaction() as other:
                other.execute(statement)
        else:
            with psycopg.connect(self.inbox.url) as connection:
                connection.execute(statement.encode())


# Careless


def own_connection(shop: Shop) -> Callable[..., Any]:
    def handler(_message: Message, tx: Any) -> None:
        shop.elsewhere(PAY)
        tx.execute(NOTE)

    return handler


def own_connection_at_the_end(shop: Shop) -> Callable[..., Any]:
    """Not on SQLite: it has one writer, which tx is by then."""

    def handler(_message: Message, tx: Any) -> None:
        tx.execute(NOTE)
        shop.elsewhere(PAY)

    return handler


def commits(_shop: Shop) -> Callable[..., Any]:
    def handler(_message: Message, tx: Any) -> None:
        tx.execute(PAY)
        tx.commit()

    return handler


def swallows(_shop: Shop) -> Callable[..., Any]:
    def handler(_message: Message, tx: Any) -> None:
        with suppress(Exception):
            tx.execute(PAY)
            tx.execute(NOTE)

    return handler


def mails(shop: Shop) -> Callable[..., Any]:
    def handler(message: Message, tx: Any) -> None:
        tx.execute(PAY)
        shop.mails.append(message.id)
        tx.execute(NOTE)

    return handler


def mails_async(shop: Shop) -> Callable[..., Any]:
    async def handler(message: Message, tx: Any) -> None:
        await tx.execute(PAY)
        shop.mails.append(message.id)
        await tx.execute(NOTE)

    return handler


def remembers_in_memory(shop: Shop) -> Callable[..., Any]:
    """The home-made dedupe: after a failed attempt it takes the retry for a duplicate."""

    def handler(message: Message, tx: Any) -> None:
        if message.id not in shop.seen:
            shop.seen.add(message.id)
            tx.execute(PAY)

    return handler


def only_the_first_attempt(_shop: Shop) -> Callable[..., Any]:
    def handler(message: Message, tx: Any) -> None:
        if message.attempt == 1:
            tx.execute(PAY)
        tx.execute(NOTE)

    return handler


def uses_a_uuid(_shop: Shop) -> Callable[..., Any]:
    def handler(_message: Message, tx: Any) -> None:
        tx.execute(f"INSERT INTO journal (line) VALUES ('{uuid.uuid4()}')")

    return handler


def sends_outside(shop: Shop) -> Callable[..., Any]:
    def handler(_message: Message, tx: Any) -> None:
        shop.inbox.send("order.shipped", {"order": 7})
        tx.execute(PAY)

    return handler


def last_writer_wins(_shop: Shop) -> Callable[..., Any]:
    """Right for one message; with several of one order it needs key=."""

    def handler(message: Message, tx: Any) -> None:
        tx.execute(f"UPDATE orders SET line = '{message.data['line']}' WHERE id = 7")

    return handler


# Careful


def careful(_shop: Shop) -> Callable[..., Any]:
    def handler(message: Message, tx: Any) -> dict[str, int]:
        tx.execute(PAY)
        tx.execute(f"INSERT INTO journal (line) VALUES ('{message.data['line']}')")
        message.send("order.shipped", {"order": 7})
        return {"order": 7}

    return handler


def careful_async(_shop: Shop) -> Callable[..., Any]:
    async def handler(message: Message, tx: Any) -> dict[str, int]:
        cursor = await tx.execute(PAY)
        await cursor.execute(f"INSERT INTO journal (line) VALUES ('{message.data['line']}')")
        return {"order": 7}

    return handler


def careful_batch(_shop: Shop) -> Callable[..., Any]:
    def handler(messages: list[Message], tx: Any) -> None:
        for message in messages:
            tx.execute(PAY)
            tx.execute(f"INSERT INTO journal (line) VALUES ('{message.data['line']}')")

    return handler


def careful_call(shop: Shop) -> Callable[..., Any]:
    def handler(message: Message, tx: Any) -> None:
        message.once("mail", lambda: shop.mails.append(message.id))
        tx.execute(PAY)

    return handler


def careful_call_async(shop: Shop) -> Callable[..., Any]:
    async def handler(message: Message, tx: Any) -> None:
        async def mail() -> str:
            shop.mails.append(message.id)
            return "sent"

        await message.once("mail", mail, idempotent=True)
        await tx.execute(PAY)

    return handler
