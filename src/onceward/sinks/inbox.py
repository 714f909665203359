"""Another inbox as the destination: inbox, outbox, inbox, exactly once on both sides."""

from __future__ import annotations

from typing import Any, Protocol, Unpack

from onceward.message import Arguments, Message


class Receiver(Protocol):
    """What an inbox is to a sink."""

    def receive(self, **message: Unpack[Arguments]) -> Any:
        """Store a message; returns when it is committed."""


class InboxSink:
    """Hands outgoing messages to another inbox, on the same database or another one.

    The message keeps its id, so what the relay publishes twice is a duplicate over there.
    """

    def __init__(self, inbox: Receiver, *, source: str) -> None:
        self._inbox, self._source = inbox, source

    def publish(self, message: Message) -> None:
        self._inbox.receive(
            source=self._source,
            id=message.id,
            type=message.type,
            body=message.body,
            headers=message.headers,
            key=message.key,
            version=message.version,
        )
