"""What a sink must be: something that publishes a message and returns when the other side has it."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from onceward.message import Message


class Sink(Protocol):
    """A destination of outgoing messages.

    Obligations: return only when the other side has confirmed; publish under `message.id`, which is the same on every
    attempt; raise `Reject` for what can never be published, `Retry(after=...)` where the other side named a time, and
    anything else for what may work later. May be called from several threads. May be `async def`.
    """

    def publish(self, message: Message) -> Awaitable[None] | None:
        """Publish one message."""
