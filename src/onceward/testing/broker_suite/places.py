"""What the suite must be told of a broker: how to publish, look, cut and kill; and where effects are."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

from onceward.inbox import Inbox
from onceward.stores.parameters import execute
from onceward.testing.proxy import FaultProxy
from onceward.testing.sink_contract import Arrived
from onceward.testing.store_suite.place import Note


class Broker(Protocol):
    """A real broker with a queue of one test's own, which is read from."""

    positions: bool
    """Whether messages have a place in it."""
    readers: int
    """How many processes may read with one address."""

    @property
    def proxy(self) -> FaultProxy:
        """What stands before it, to be cut; for the cases that need a "proxy"."""

    def url(self, *, proxied: bool = False) -> str:
        """The source's address; past the proxy, or through it."""

    def publish(self, body: bytes, *, id: str | None = None, type: str | None = None, **headers: str) -> None:  # noqa: A002
        """Deliver a message, as a producer does; a header `x_note` is `x-note` on its way."""

    def unsettled(self) -> int:
        """How many messages the broker has not been told to forget."""

    def restart(self) -> None:
        """Kill -9, and start again; for the case that needs a "restart"."""

    def another(self) -> Broker:
        """Another queue on the same server."""

    def close(self) -> None:
        """Close what this made."""


class Outlet(Protocol):
    """The same broker, seen from behind: what was published to it."""

    @property
    def repeats(self) -> bool:
        """Whether its client repeats by itself what was not confirmed, in a way that the broker knows the copy by."""

    @property
    def broker(self) -> Broker:
        """The broker, whose queue what is published comes to."""

    def url(self, *, proxied: bool = False) -> str:
        """The sink's address."""

    def nowhere(self) -> str:
        """The address of a sink that nothing can be published to; for the case that needs a "refusal"."""

    def received(self) -> Arrived:
        """Id, type and body of everything that has arrived, in order."""

    def close(self) -> None:
        """Close what this made."""


class SqlPlace:
    """A database of ours behind the broker, by its URL; effects are rows of a table `effects`."""

    def __init__(self, url: str) -> None:
        self.url = url

    def store(self) -> str:
        """Its URL."""
        return self.url

    def prepare(self, inbox: Inbox) -> None:
        """Make the table."""
        with inbox.transaction() as tx:
            tx.execute("CREATE TABLE IF NOT EXISTS effects (message_id text, note text)")

    def write(self, tx: Any, note: Note) -> Awaitable[Any] | None:
        """Add a row."""
        words = dict(zip(("id", "note"), note, strict=True))
        done: Awaitable[Any] | None = execute(tx, "INSERT INTO effects (message_id, note) VALUES (:id, :note)", words)
        return done

    def effects(self, inbox: Inbox) -> list[Note]:
        """The rows."""
        with inbox.transaction() as tx:
            rows: Sequence[Any] = tx.execute("SELECT message_id, note FROM effects").fetchall()
        return [(message_id, note) for message_id, note in rows]
