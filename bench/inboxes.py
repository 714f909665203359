"""Onceward as a contender: an inbox with a handler for each workload."""

from __future__ import annotations

from typing import Any

from onceward import Inbox, Message, RetryPolicy, Settings
from onceward.steps.lot import MOST_GROUPS

ONE = {
    "postgres": "UPDATE target SET n = n + 1 WHERE id = %s",
    "mysql": "UPDATE target SET n = n + 1 WHERE id = %s",
    "sqlite": "UPDATE target SET n = n + 1 WHERE id = ?",
}
MANY = (
    "UPDATE target SET n = target.n + i.n FROM (SELECT row, count(*) AS n FROM unnest(%b::integer[]) AS row GROUP BY row) AS i"
    " WHERE target.id = i.row"
)
GROUP, SET_GROUP = Settings().group, 500
"""How many messages share a transaction: by default, and for the handler that writes a set."""
CLAIM = GROUP * MOST_GROUPS
"""How many share a claim at most, where their handler is quick and takes one at a time."""
WIDE, TYPES, SOURCES, KEYS = "wide", 1_000, 200, 10_000
"""A service with many types, from many sources, about many keys."""
FAILING = 50
"""One message in so many fails."""


class Refused(Exception):
    """What a failing handler raises."""


def inbox_at(url: str, settings: Settings | None = None) -> Inbox:
    """The inbox under test, with default settings if nothing else is said."""
    inbox = Inbox(url, settings=settings or Settings())
    _idle_handlers(inbox)
    _handlers(inbox, ONE[inbox.store.dialect])
    _batch_handlers(inbox, ONE[inbox.store.dialect])
    return inbox


def wide_inbox_at(url: str) -> Inbox:
    """An inbox with a handler for each of many types, in order within a key."""
    inbox = Inbox(url)
    for number in range(TYPES):

        @inbox.on(f"{WIDE}-{number}", key="key")
        def nothing(message: Message, _tx: Any) -> None:
            assert message.data["number"] >= 0

    return inbox


def _idle_handlers(inbox: Inbox) -> None:
    """They read the body, which is decoded by then, and do nothing."""

    def nothing(message: Message, _tx: Any) -> None:
        assert message.data["number"] >= 0

    inbox.on("nothing")(nothing)
    inbox.on("keyed", key="key")(nothing)


def _handlers(inbox: Inbox, update: str) -> None:
    """One UPDATE for each message, whose row count they check."""

    def apply(message: Message, tx: Any, row: str = "row") -> None:
        if tx.execute(update, [message.data[row]]).rowcount != 1:
            raise LookupError(f"no row {message.data[row]}")

    inbox.on("update")(apply)
    inbox.on("alone", group=1)(apply)

    @inbox.on("hot")
    def hot(message: Message, tx: Any) -> None:
        apply(message, tx, "hot")

    @inbox.on("failing", retry=RetryPolicy(attempts=1))
    def failing(message: Message, tx: Any) -> None:
        if message.data["number"] % FAILING == 0:
            raise Refused(str(message.data["number"]))
        apply(message, tx)


def _batch_handlers(inbox: Inbox, update: str) -> None:
    """They take many messages at a time."""

    @inbox.on("pipelined", batch=True)
    def pipelined(messages: list[Message], tx: Any) -> None:
        with tx.pipeline():
            for message in messages:
                tx.execute(update, [message.data["row"]])

    @inbox.on("set", batch=True, group=SET_GROUP)
    def set_based(messages: list[Message], tx: Any) -> None:
        tx.execute(MANY, [[message.data["row"] for message in messages]])
