"""The relay: the handler of outgoing messages to a destination. It publishes; then they are finished like any other.

Invariant: a message is finished only after its sink has returned. A crash in between publishes it again, under the
same id: at least once.
"""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import Any

from onceward.brokers.protocol import Closable, Sink, open_sink
from onceward.domain import checks, identity
from onceward.domain.breaker import CIRCUIT as EXAMPLE
from onceward.domain.breaker import Breaker, Circuit
from onceward.errors import ConfigurationError
from onceward.message import Message
from onceward.registry import OUTBOX, Handler
from onceward.retry import POLICY, RetryPolicy
from onceward.steps.context import Context

CIRCUIT = Circuit(failures=5, pause=timedelta(seconds=10))
"""A destination that is away costs an attempt every ten seconds, not one of each message that waits for it."""


class Outlets:
    """The destinations of an inbox."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._names: set[str] = set()
        self._own: list[Closable] = []
        """Those that were opened here, by their URL, and are closed here."""

    def __bool__(self) -> bool:
        return bool(self._names)

    def add(self, name: str, sink: Sink | str, retry: RetryPolicy | None, circuit: Circuit | None) -> None:
        """Publish what is sent to a name through a sink, or to a broker by its URL."""
        if identity.check_name("sink", name) in self._names:
            raise ConfigurationError(f"there is a sink named {name!r} already")
        where = f"add_sink({name!r})"
        if not isinstance(sink, str) and not callable(getattr(sink, "publish", None)):
            checks.refuse(where, "sink", sink, "the URL of a broker, or an object with publish(message)")
        if retry is not None:
            checks.instance(where, "retry", retry, RetryPolicy, POLICY)
        if circuit is not None:
            checks.instance(where, "circuit", circuit, Circuit, EXAMPLE)
        if isinstance(sink, str):
            sink = open_sink(sink)
            self._own.append(sink)
        self._names.add(name)
        settings = self._context.settings
        self._context.registry.add_relay(
            relay_handler(
                name,
                sink,
                retry=retry or RetryPolicy(first=timedelta(seconds=1)),
                circuit=circuit or CIRCUIT,
                timeout=settings.handler_timeout,
                group=settings.group,
            )
        )

    def close(self) -> None:
        """Close the sinks that were opened here."""
        for sink in self._own:
            sink.close()


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
