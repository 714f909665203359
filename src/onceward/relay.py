"""The relay: the handler of outgoing messages to a destination. It publishes; then they are finished like any other.

Invariant: a message is finished only after its sink has returned. A crash in between publishes it again, under the
same id: at least once.
"""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import Any

from onceward.breaker import Breaker, Circuit
from onceward.message import Message
from onceward.registry import OUTBOX, Handler
from onceward.retry import RetryPolicy
from onceward.sinks.protocol import Sink

CIRCUIT = Circuit(failures=5, pause=timedelta(seconds=10))
"""A destination that is away costs an attempt every ten seconds, not one of each message that waits for it."""


def relay_handler(  # noqa: PLR0913 - each is one decision about a destination
    destination: str, sink: Sink, *, retry: RetryPolicy, circuit: Circuit, timeout: timedelta, group: int
) -> Handler:
    """The handler that publishes to a destination; async when its sink is."""

    def publish(message: Message, _tx: Any) -> None:
        sink.publish(message)

    async def publish_async(message: Message, _tx: Any) -> None:
        await sink.publish(message)  # type: ignore[misc] # it is `async def`

    return Handler(
        function=publish_async if inspect.iscoroutinefunction(sink.publish) else publish,
        type=destination,
        consumer=OUTBOX,
        version=1,
        key=None,
        retry=retry,
        timeout=timeout,
        group=group,
        raw=True,
        breaker=Breaker(circuit),
        external=True,
    )
