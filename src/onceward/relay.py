"""The relay: the handler of every outgoing message. It publishes; then the message is finished like any other.

Invariant: a message is finished only after its sink has returned. A crash in between publishes it again, under the
same id: at least once.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from onceward.message import Message
from onceward.registry import ANY_TYPE, DEFAULT, OUTBOX, Handler
from onceward.retry import RetryPolicy
from onceward.sinks.protocol import Sink


def relay_handler(
    sinks: Mapping[str, Sink],
    *,
    retry: RetryPolicy,
    policies: Mapping[str, RetryPolicy] | None = None,
    timeout: timedelta,
    group: int,
) -> Handler:
    """The handler that publishes; async when any sink is. `policies` are of destinations with their own."""

    def sink_of(message: Message) -> Sink:
        name = message.to or DEFAULT
        if name not in sinks:
            raise LookupError(
                f"no sink named {name!r} is registered in this process; known: {', '.join(sorted(sinks))}"
            )
        return sinks[name]

    def publish(message: Message, _tx: Any) -> None:
        sink_of(message).publish(message)

    async def publish_async(message: Message, _tx: Any) -> None:
        sink = sink_of(message)
        if inspect.iscoroutinefunction(sink.publish):
            await sink.publish(message)
        else:
            await asyncio.to_thread(sink.publish, message)

    is_async = any(inspect.iscoroutinefunction(sink.publish) for sink in sinks.values())
    return Handler(
        function=publish_async if is_async else publish,
        type=ANY_TYPE,
        consumer=OUTBOX,
        version=1,
        key=None,
        retry=retry,
        policies=policies or {},
        timeout=timeout,
        group=group,
        raw=True,
        external=True,
    )
