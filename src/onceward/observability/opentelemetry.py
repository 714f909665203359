"""OpenTelemetry: a span for every call of a handler, in the trace of whoever sent the message, and the same metrics.

    instrument(inbox)                              # after the providers are set

Invariant: spans may name a message's id, metrics never do; neither ever has a payload.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from onceward.admin.messages import OPEN
from onceward.errors import ConfigurationError, StoreError
from onceward.inbox import Inbox

try:
    from opentelemetry import metrics, trace
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from opentelemetry.trace import Link, SpanKind, StatusCode, TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise ConfigurationError("telemetry needs its package: pip install 'onceward[opentelemetry]'") from error

_CONTEXT = TraceContextTextMapPropagator()


def instrument(
    inbox: Inbox, *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
) -> None:
    """Make spans and metrics of what the handlers of this process do, and of the inbox's numbers."""
    tracer = trace.get_tracer("onceward", tracer_provider=tracer_provider)
    meter = metrics.get_meter("onceward", meter_provider=meter_provider)
    duration = meter.create_histogram("onceward.handler.duration", unit="s", description="How long handlers take.")
    _observe(inbox, meter)

    @contextmanager
    def watcher(handler: Any, messages: Sequence[Any]) -> Iterator[None]:
        first = messages[0]
        names = {"service": inbox.context.service, "consumer": handler.consumer, "type": handler.type}
        began, outcome = time.perf_counter(), "failed"
        # One message continues the trace of its sender; a batch has many, and only links to them, each of them.
        parents = [_CONTEXT.extract(dict(message.headers)) for message in messages]
        senders = [trace.get_current_span(parent).get_span_context() for parent in parents]
        links = [Link(sender) for sender in senders if sender.is_valid] if len(messages) > 1 else []
        attributes = {
            "messaging.system": "onceward",
            "messaging.operation.type": "process",
            "messaging.destination.name": first.type,
            "messaging.message.id": first.id,
            "messaging.batch.message_count": len(messages),
            "onceward.source": first.source,
            "onceward.seq": first.seq,
            "onceward.attempt": first.attempt,
        }
        with tracer.start_as_current_span(
            f"process {handler.type}",
            context=parents[0] if len(messages) == 1 else None,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=links,
            record_exception=False,  # its text may quote the message
            set_status_on_exception=False,
        ) as span:
            try:
                yield
                outcome = "returned"
            except BaseException as failure:
                span.set_status(StatusCode.ERROR, type(failure).__name__)
                span.set_attribute("error.type", type(failure).__name__)
                raise
            finally:
                duration.record(time.perf_counter() - began, {**names, "outcome": outcome})

    inbox.watch(watcher)


def _observe(inbox: Inbox, meter: Any) -> None:
    """The inbox's numbers, read whenever they are collected."""
    service = {"service": inbox.context.service}

    def states(_: CallbackOptions) -> Iterable[Observation]:
        try:
            stats = inbox.admin.stats()
        except StoreError:
            return []
        return [Observation(getattr(stats, state), {**service, "state": state}) for state in OPEN]

    def number(name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def read(_: CallbackOptions) -> Iterable[Observation]:
            try:
                return [Observation(getattr(inbox.admin.stats(), name), service)]
            except StoreError:
                return []

        return read

    meter.create_observable_gauge("onceward.messages", callbacks=[states], description="Messages by state.")
    for name in ("oldest_due_seconds", "duplicates", "failures", "done", "outbox_unsent", "workers"):
        meter.create_observable_gauge(f"onceward.{name}", callbacks=[number(name)])
