"""OpenTelemetry: a span for every call of a handler, in the trace of its sender, and the same metrics.

    instrument(inbox)                              # after the providers are set

The names are those of OpenTelemetry's messaging conventions (in development: they stand in this module alone), with
ours beside them where they have none.

Invariant: spans may name a message's id, metrics never do; neither ever has a payload.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from onceward.admin.messages import OPEN
from onceward.errors import ConfigurationError, StoreError
from onceward.inbox import Inbox
from onceward.observability.recent import MEANINGS, Recent

try:
    from opentelemetry import metrics, trace
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from opentelemetry.trace import Link, SpanKind, StatusCode, TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise ConfigurationError("telemetry needs its package: pip install 'onceward[opentelemetry]'") from error

_CONTEXT = TraceContextTextMapPropagator()
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""In seconds, as the messaging conventions advise."""


def instrument(
    inbox: Inbox, *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
) -> None:
    """Make spans and metrics of what the handlers of this process do, and of the inbox's numbers."""
    tracer = trace.get_tracer("onceward", tracer_provider=tracer_provider)
    meter = metrics.get_meter("onceward", meter_provider=meter_provider)
    _observe(inbox, meter)
    measured = _Measured(inbox.context.service, meter)

    @contextmanager
    def hook(handler: Any, messages: Sequence[Any]) -> Iterator[None]:
        names = _names(handler)
        # One message continues the trace of its sender; a batch has many, and only links to them.
        parents = [_CONTEXT.extract(dict(message.headers)) for message in messages]
        with (
            measured.call(handler, names, len(messages)),
            tracer.start_as_current_span(
                f"{names['messaging.operation.name']} {handler.type}",
                context=parents[0] if len(messages) == 1 else None,
                kind=SpanKind.CLIENT if handler.external else SpanKind.CONSUMER,
                attributes={**names, **_of_span(handler, messages)},
                links=_links(messages, parents),
                record_exception=False,  # its text may quote the message
                set_status_on_exception=False,
            ) as span,
        ):
            try:
                yield
            except BaseException as failure:
                span.set_status(StatusCode.ERROR, type(failure).__name__)
                span.set_attribute("error.type", type(failure).__name__)
                raise

    inbox.add_hook(hook)


def _names(handler: Any) -> dict[str, str]:
    """What spans and metrics of a call have alike, in the words of the messaging conventions: names of the program."""
    names = {"messaging.system": "onceward", "messaging.destination.name": handler.type}
    if handler.external:  # the relay: its type is the destination
        return {**names, "messaging.operation.name": "publish"}
    return {**names, "messaging.operation.name": "process", "messaging.consumer.group.name": handler.consumer}


def _of_span(handler: Any, messages: Sequence[Any]) -> dict[str, str | int]:
    """What only the span has: ids are too many for metrics. Those of a batch are at its links."""
    kind: dict[str, str | int] = {"messaging.operation.type": "send" if handler.external else "process"}
    if handler.batch:
        return {**kind, "messaging.batch.message_count": len(messages)}
    (message,) = messages
    return {
        **kind,
        "messaging.message.id": message.id,
        "onceward.source": message.source,
        "onceward.seq": message.seq,
        "onceward.attempt": message.attempt,
    }


def _links(messages: Sequence[Any], parents: Sequence[Any]) -> list[Link]:
    """A link to every sender whose trace came along."""
    senders = [trace.get_current_span(parent).get_span_context() for parent in parents]
    return [
        Link(sender, {"messaging.message.id": message.id})
        for message, sender in zip(messages, senders, strict=True)
        if sender.is_valid
    ]


class _Measured:
    """The metrics of calls: ours, and beside them those of the messaging conventions."""

    def __init__(self, service: str, meter: Any) -> None:
        self._service = service
        histogram = partial(meter.create_histogram, unit="s", explicit_bucket_boundaries_advisory=_BUCKETS)
        counter = partial(meter.create_counter, unit="{message}")
        self._ours = meter.create_histogram(
            "onceward.handler.duration", unit="s", description="How long handlers take."
        )
        self._processing = histogram("messaging.process.duration", description="Duration of processing operation.")
        self._consumed = counter(
            "messaging.client.consumed.messages", description="Messages that were delivered to handlers."
        )
        self._publishing = histogram(
            "messaging.client.operation.duration", description="Duration of an operation initiated by a client."
        )
        self._sent = counter("messaging.client.sent.messages", description="Messages that were tried to be sent.")

    @contextmanager
    def call(self, handler: Any, names: Mapping[str, str], count: int) -> Iterator[None]:
        """Measure one call of a handler."""
        ours = {"service": self._service, "consumer": handler.consumer, "type": handler.type}
        began, outcome, theirs = time.perf_counter(), "returned", dict(names)
        try:
            yield
        except BaseException as failure:
            outcome, theirs["error.type"] = "failed", type(failure).__name__
            raise
        finally:
            seconds = time.perf_counter() - began
            self._ours.record(seconds, {**ours, "outcome": outcome})
            (self._publishing if handler.external else self._processing).record(seconds, theirs)
            (self._sent if handler.external else self._consumed).add(count, theirs)


def _observe(inbox: Inbox, meter: Any) -> None:
    """The inbox's numbers, read whenever they are collected."""
    service, latest = {"service": inbox.context.service}, Recent(inbox)

    def states() -> Iterable[Observation]:
        stats = inbox.admin.stats()
        return [Observation(getattr(stats, state), {**service, "state": state}) for state in OPEN]

    def number(name: str) -> Iterable[Observation]:
        return [Observation(getattr(inbox.admin.stats(), name), service)]

    def of_history(name: str) -> Iterable[Observation]:
        return [Observation(one.value, {**service, **one.labels}) for one in latest.of(name)]

    gauge = meter.create_observable_gauge
    gauge("onceward.messages", callbacks=[_read(states)], description="Messages by status.")
    for name in ("oldest_due_seconds", "duplicates", "failures", "done", "outbox_unsent", "workers"):
        gauge(f"onceward.{name}", callbacks=[_read(partial(number, name))])
    for name, meaning in MEANINGS.items():
        gauge(f"onceward.{name}", callbacks=[_read(partial(of_history, name))], description=meaning)


def _read(read: Callable[[], Iterable[Observation]]) -> Callable[[CallbackOptions], Iterable[Observation]]:
    """What collects; nothing while the database is away."""

    def collect(_: CallbackOptions) -> Iterable[Observation]:
        try:
            return read()
        except StoreError:
            return []

    return collect
