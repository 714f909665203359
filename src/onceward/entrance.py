"""How strangers reach an inbox, and how it reaches people: web applications, brokers, alerts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from onceward import checks, identity
from onceward.breaker import CIRCUIT, Circuit
from onceward.deferred import Deferred, asyncio
from onceward.desk import Desk
from onceward.errors import ConfigurationError
from onceward.retry import POLICY, RetryPolicy
from onceward.steps.context import Context
from onceward.steps.prune import declare
from onceward.stores.protocol import Store

if TYPE_CHECKING:
    from onceward import alerts, guarantees, pace, relay
    from onceward import webhooks as web
    from onceward.sinks import protocol as sinks
    from onceward.sources import envelope, intake
    from onceward.sources import poll as polling
    from onceward.sources import protocol as brokers
    from onceward.webhooks.hooks import Receiver
else:
    alerts, guarantees, pace, relay, web = map(Deferred, ("alerts", "guarantees", "pace", "relay", "webhooks"))
    brokers, envelope, intake, polling, sinks = map(
        Deferred, ("sources.protocol", "sources.envelope", "sources.intake", "sources.poll", "sinks.protocol")
    )

F = TypeVar("F", bound=Callable[..., Any])


class Entrance(Desk):
    """Webhooks, brokers and polled APIs in; brokers and alerts out."""

    def __init__(self, context: Context, store: Store) -> None:
        super().__init__(context, store)
        self._intakes: list[intake.Intake] = []
        self._polls: dict[str, polling.Poll] = {}
        self._sinks: dict[str, sinks.Sink] = {}
        self._own_sinks: list[sinks.Closable] = []
        self._alerts: alerts.Alerts | None = None
        self.served: list[web.Webhooks] = []
        """The web applications made so far; `onceward run --http` serves them."""

    def sink(
        self,
        name: str,
        sink: sinks.Sink | str,
        *,
        retry: RetryPolicy | None = None,
        circuit: Circuit | None = None,
    ) -> None:
        """Publish outgoing messages with `to=name` through a sink, or to a broker by its URL.

        The name "default" takes those without `to`. Each destination is published to by itself, and pauses by itself
        after failures in a row (`circuit`, after 5 for 10 seconds unless given).
        """
        if identity.check_name("sink", name) in self._sinks:
            raise ConfigurationError(f"there is a sink named {name!r} already")
        where = f"sink({name!r})"
        if not isinstance(sink, str) and not callable(getattr(sink, "publish", None)):
            checks.refuse(where, "sink", sink, "the URL of a broker, or an object with publish(message)")
        if retry is not None:
            checks.instance(where, "retry", retry, RetryPolicy, POLICY)
        if circuit is not None:
            checks.instance(where, "circuit", circuit, Circuit, CIRCUIT)
        if isinstance(sink, str):  # it is the inbox's own: closed with it
            sink = sinks.open_sink(sink)
            self._own_sinks.append(sink)
        self._sinks[name] = sink
        self._context.registry.add_relay(
            relay.relay_handler(
                name,
                sink,
                retry=retry or RetryPolicy(first=timedelta(seconds=1)),
                circuit=circuit or relay.CIRCUIT,
                timeout=self._context.settings.handler_timeout,
                group=self._context.settings.group,
            )
        )

    def webhooks(self, endpoints: Mapping[str, web.Verifier], *, limits: web.Limits | None = None) -> web.Webhooks:
        """An ASGI application that takes webhooks: `app.mount("/hooks", inbox.webhooks({"/stripe": Stripe(secret)}))`.

        It answers 200 when an event is committed (or was before), 4xx to what is not authentic, and 503 while the
        database is away. `.wsgi` is the same for WSGI, `.wsgi.django("/stripe")` a Django view. A retention that is
        shorter than a sender may still send copies is refused here; so are different secrets under one source.
        """
        if limits is not None:
            checks.instance("webhooks()", "limits", limits, web.Limits, "Limits(...)")
        made = web.Webhooks(web.Hooks(cast("Receiver", self), endpoints, limits=limits))
        web.check_sources(pair for one in (*self.served, made) for pair in one.hooks.endpoints.items())
        for verifier in endpoints.values():
            declare(self._context, verifier.source, verifier.redelivery)
        self.served.append(made)
        return made

    def source(  # noqa: PLR0913 - each is a property of the source
        self,
        url: str,
        *,
        source: str,
        id: str | None = None,  # noqa: A002 - the words every sender uses
        type: str | None = None,  # noqa: A002
        batch: int = 100,
        inline: bool = False,
        redelivers_for: timedelta | None = None,
        rate: float | None = None,
    ) -> None:
        """Take messages from a broker while `run` runs: `inbox.source("redis://host/0?stream=orders", source="shop")`.

        `id` and `type` say where a message carries them: a field, a dotted path, `header:NAME`; `id="position"` is the
        place in the broker (a producer that sends twice has then sent two messages), `type="=order.paid"` the
        type of all. Without them: CloudEvents, or the broker's own properties. `redelivers_for` says how late the
        broker may deliver a copy, where that is not the usual time; `rate` how many messages a second this process
        takes at most.
        """
        checks.text("source()", "url", url)
        checks.whole("source()", "batch", batch)
        checks.flag("source()", "inline", inline)
        if redelivers_for is not None:
            checks.duration("source()", "redelivers_for", redelivers_for, least=timedelta(0))
        opened, names = brokers.open_source(url), envelope.Envelope(source, id, type)
        if id == envelope.POSITION and not opened.positions:
            raise ConfigurationError(
                f"{opened.name}: id={id!r} is not possible, messages have no place of their own there"
            )
        declare(self._context, source, opened.redelivery if redelivers_for is None else redelivers_for)
        self._intakes.append(intake.Intake(opened, names, batch, inline, None if rate is None else pace.Pace(rate)))

    @property
    def intakes(self) -> Sequence[intake.Intake]:
        """The brokers it reads from while `run` runs."""
        return tuple(self._intakes)

    def poll(
        self,
        *,
        every: timedelta,
        source: str,
        type: str | None = None,  # noqa: A002 - the words every sender uses
        timeout: timedelta = timedelta(minutes=1),
        retry: RetryPolicy | None = None,
    ) -> Callable[[F], F]:
        """Poll an API while `run` runs: a generator function, `def` or `async def`, that yields raw responses.

        It is called with the cursor of the last stored response (None at first), by one process at a time. Each
        `yield Response(body, cursor=...)` is stored as a message of `type` (by default "SOURCE.response") together
        with its cursor before the function goes on; a handler reads it. `timeout` is how long it may take for a
        response before another process may take over; `retry` spaces the turns after one that raised.
        """

        def register(function: F) -> F:
            if source in self._polls:
                raise ConfigurationError(f"there is a poll of {source!r} already; give this one a source of its own")
            policy = retry if retry is not None else RetryPolicy(first=timedelta(seconds=1), cap=timedelta(minutes=10))
            kind = f"{source}.response" if type is None else type
            self._polls[source] = polling.Poll(function, source, kind, every, timeout, policy)
            return function

        return register

    def poll_now(self, source: str) -> None:
        """Take a poll's turn now, due or not, unless a process has it; raises `PollFailed` when its function does."""
        asyncio.run(self.apoll_now(source))

    async def apoll_now(self, source: str) -> None:
        """As `poll_now`, awaited."""
        if source not in self._polls:
            raise ConfigurationError(f"there is no poll of {source!r}; register one with @inbox.poll(source=...)")
        await self._polls[source].turn(cast("polling.Polling", self), asyncio.Event(), early=True)

    def alert(self, *hooks: alerts.Hook, rules: alerts.Rules | None = None) -> alerts.Alerts:
        """Tell when something needs a person, while `run` runs: dead letters, mismatches, blocked keys, old backlog.

        A hook is a function of an `Alert`; `alerts.http_hook(url, secrets=[...])` makes one, and without any the log is
        told. Of several processes one tells. A program that does not `run` calls `look()` of what this returns.
        """
        for hook in hooks:
            checks.function("alert()", "hook", hook)
        if rules is not None:
            checks.instance("alert()", "rules", rules, alerts.Rules, "Rules(...)")
        self._alerts = alerts.Alerts(self, hooks, rules or alerts.Rules())
        return self._alerts

    def _check_guarantees(self) -> None:
        """Say what is in force, and refuse to start with less than is declared."""
        guarantees.check(self)

    @contextmanager
    def _attended(self, stop: Callable[[], None]) -> Iterator[None]:
        """Read the sources and look for alerts while the block runs, in threads of their own.

        `stop` is called if reading fails.
        """
        readings: list[intake.Reading] = [
            partial(taking.run, cast("intake.Receiver", self)) for taking in self._intakes
        ]
        readings += [partial(poll.run, cast("polling.Polling", self)) for poll in self._polls.values()]
        with ExitStack() as stack:
            if readings:
                attendance = intake.Attendance(readings, stop)
                attendance.start()
                stack.callback(attendance.end, self._context.settings.stop_timeout)
            if self._alerts is not None:
                self._alerts.start()
                stack.callback(self._alerts.stop)
            yield

    def _leave(self) -> None:
        for made in self.served:
            made.close()
        for sink in self._own_sinks:
            sink.close()
