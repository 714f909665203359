"""What the suite must be told of a store: how to open one, and how a handler has an effect there."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol

from onceward.inbox import Inbox
from onceward.stores.protocol import Store

Note = tuple[str, str]
"""An effect: the id of a message, and a word about it."""


class Place(Protocol):
    """An empty database of one test's own."""

    def store(self) -> str | Store:
        """A store on it, each time another one, as each process has its own; or its URL."""

    def prepare(self, inbox: Inbox) -> None:
        """Make what effects need, such as a table."""

    def write(self, tx: Any, note: Note) -> Awaitable[Any] | None:
        """Have an effect, through the `tx` of a handler: awaitable where the handler is `async def`, if need be."""

    def effects(self, inbox: Inbox) -> list[Note]:
        """The effects that are committed, in the order of their writing."""
