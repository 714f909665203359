"""Where messages come from: brokers, polled APIs, and the web applications that take webhooks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

from onceward.domain import checks
from onceward.domain.rate_limit import Pace
from onceward.errors import ConfigurationError
from onceward.retry import RetryPolicy
from onceward.sources import intake, protocol
from onceward.sources.envelope import POSITION, Envelope
from onceward.sources.poll import Poll, Polling
from onceward.steps.prune import declare
from onceward.webhooks import Hooks, Limits, Verifier, Webhooks, check_sources
from onceward.webhooks.hooks import Receiver

POLL_RETRY = RetryPolicy(first=timedelta(seconds=1), cap=timedelta(minutes=10))


class Host(intake.Receiver, Polling, Protocol):
    """What an inbox is to those it fetches messages from."""


class Ingress:
    """What an inbox takes messages from."""

    def __init__(self, inbox: Host, receiver: Receiver) -> None:
        self._inbox, self._receiver = inbox, receiver
        self.intakes: list[intake.Intake] = []
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
        batch: int,
        inline: bool,
        redelivers_for: timedelta | None,
        rate: float | None,
    ) -> None:
        """Read from a broker while `run` runs."""
        checks.text("add_source()", "url", url)
        checks.whole("add_source()", "batch", batch)
        checks.flag("add_source()", "inline", inline)
        if redelivers_for is not None:
            checks.duration("add_source()", "redelivers_for", redelivers_for, least=timedelta(0))
        opened, envelope = protocol.open_source(url), Envelope(source, id, type)
        if id == POSITION and not opened.positions:
            raise ConfigurationError(
                f"{opened.name}: id={POSITION!r} is not possible, messages have no place of their own there"
            )
        window = opened.redelivery if redelivers_for is None else redelivers_for
        declare(self._inbox.context, source, window)
        limit = None if rate is None else Pace(rate)
        self.intakes.append(intake.Intake(opened, envelope, batch, inline, limit))

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
        readings: list[intake.Reading] = [partial(one.run, self._inbox) for one in self.intakes]
        readings += [partial(one.run, self._inbox) for one in self.polls.values()]
        if not readings:
            yield
            return
        attendance = intake.Attendance(readings, stop)
        attendance.start()
        try:
            yield
        finally:
            attendance.end(self._inbox.context.settings.stop_timeout)

    def close(self) -> None:
        """Close the web applications."""
        for made in self.served:
            made.close()
