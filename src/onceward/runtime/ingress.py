"""Where messages come from: brokers, polled APIs, and the web applications that take webhooks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

from onceward.brokers import consumer, protocol
from onceward.brokers.envelope import POSITION, Envelope
from onceward.domain import checks
from onceward.domain.rate_limit import RateLimit
from onceward.errors import ConfigurationError, StoreError
from onceward.polls.poll import Poll, Polling
from onceward.retry import RetryPolicy
from onceward.runtime.runner import perform
from onceward.steps.context import stay_current
from onceward.steps.prune import declare
from onceward.webhooks import Hooks, Limits, Verifier, Webhooks, check_sources
from onceward.webhooks.hooks import Receiver

POLL_RETRY = RetryPolicy(first=timedelta(seconds=1), cap=timedelta(minutes=10))


class Host(consumer.Receiver, Polling, Protocol):
    """What an inbox is to those it fetches messages from."""


class Ingress:
    """What an inbox takes messages from."""

    def __init__(self, inbox: Host, receiver: Receiver) -> None:
        self._inbox, self._receiver = inbox, receiver
        self.consumers: list[consumer.Consumer] = []
        """The brokers it reads from while `run` runs."""
        self.polls: dict[str, Poll] = {}
        self.served: list[Webhooks] = []
        """The web applications made so far; `onceward run --http` serves them."""

    def webhooks(self, endpoints: Mapping[str, Verifier], limits: Limits | None) -> Webhooks:
        """Make a web application that takes webhooks."""
        if limits is not None:
            checks.instance("webhooks()", "limits", limits, Limits, "Limits(...)")
        made = Webhooks(Hooks(self._receiver, endpoints, limits=limits))
        check_sources(pair for one in (*self.served, made) for pair in one.hooks.endpoints.items())
        for verifier in endpoints.values():
            declare(self._inbox.context, verifier.source, verifier.redelivery)
        self.served.append(made)
        return made

    def add_source(  # noqa: PLR0913 - as `Inbox.add_source`
        self,
        url: str,
        *,
        source: str,
        id: str | None,  # noqa: A002
        type: str | None,  # noqa: A002
        envelope: str | None,
        batch: int,
        mode: consumer.Mode,
        redelivers_for: timedelta | None,
        rate: float | None,
    ) -> None:
        """Read from a broker while `run` runs."""
        checks.text("add_source()", "url", url)
        checks.whole("add_source()", "batch", batch)
        checks.one_of("add_source()", "mode", mode, consumer.MODES)
        if redelivers_for is not None:
            checks.duration("add_source()", "redelivers_for", redelivers_for, least=timedelta(0))
        limit, names = None if rate is None else RateLimit(rate), Envelope(source, id, type, envelope)
        opened = protocol.open_source(url)
        if id == POSITION and not opened.positions:
            raise ConfigurationError(
                f"{opened.name} gives messages no position, so id={POSITION!r} is not possible: name a field or header"
            )
        window = opened.redelivery if redelivers_for is None else redelivers_for
        declare(self._inbox.context, source, window)
        self.consumers.append(consumer.Consumer(opened, names, batch, mode, limit))

    def add_poll(  # noqa: PLR0913 - as `Inbox.add_poll`
        self,
        function: Callable[..., Any],
        *,
        every: timedelta,
        source: str,
        type: str | None,  # noqa: A002
        timeout: timedelta,
        retry: RetryPolicy | None,
    ) -> None:
        """Poll an API while `run` runs."""
        if source in self.polls:
            raise ConfigurationError(f"there is a poll of {source!r} already; give this one a source of its own")
        kind = f"{source}.response" if type is None else type
        self.polls[source] = Poll(function, source, kind, every, timeout, POLL_RETRY if retry is None else retry)

    def poll_now(self, source: str) -> None:
        """Take a poll's turn now, due or not, unless a process has it; raises `PollFailed` when its function does."""
        asyncio.run(self.apoll_now(source))

    async def apoll_now(self, source: str) -> None:
        """As `poll_now`, awaited."""
        if source not in self.polls:
            raise ConfigurationError(f"there is no poll of {source!r}; register one with @inbox.add_poll(source=...)")
        await self.polls[source].turn(self._inbox, asyncio.Event(), early=True)

    @contextmanager
    def attended(self, stop: Callable[[], None]) -> Iterator[None]:
        """Read the brokers and poll the APIs while the block runs, in a thread; `stop` is called if that fails."""
        told = self._is_paused
        readings: list[consumer.Reading] = [
            partial(one.run, self._inbox, ask=self._positions, is_paused=told) for one in self.consumers
        ]
        readings += [partial(one.run, self._inbox, is_paused=told) for one in self.polls.values()]
        if not readings:
            yield
            return
        thread = consumer.ReaderThread(readings, stop, self._inbox.store.async_close)
        thread.start()
        try:
            yield
        finally:
            thread.end(self._inbox.context.settings.stop_timeout)

    def _positions(self, source: str) -> dict[str, str]:
        """How far the parts of a source were read, as the database has it."""
        return perform(self._inbox.store, lambda: self._inbox.context.moves.ledger.positions(source))

    async def _is_paused(self, source: str) -> bool:
        """Whether an operator has paused a source; while the database cannot be asked, as it was known last."""
        context = self._inbox.context
        if context.cache.catalog.version < 0 or context.clock() >= context.look_at:
            with suppress(StoreError, ConfigurationError):  # what is wrong is said where something is stored
                await asyncio.to_thread(perform, self._inbox.store, partial(stay_current, context))
        return context.cache.catalog.pauses.reading(source) is not None

    def close(self) -> None:
        """Close the web applications."""
        for made in self.served:
            made.close()
