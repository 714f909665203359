"""Prometheus: the inbox's numbers as they are everywhere else, and how long handlers take in this process.

    REGISTRY.register(InboxCollector(inbox))       # in one process; the numbers are the database's
    watch_handlers(inbox)                          # in each worker process

Invariant: no label is an id, a key or anything else that a sender chooses freely: labels are names out of the program.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from onceward.admin.messages import OPEN
from onceward.errors import ConfigurationError, StoreError
from onceward.inbox import Inbox
from onceward.observability.recent import MEANINGS, Number, recent

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Histogram, generate_latest
    from prometheus_client.core import GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ConfigurationError("metrics need their package: pip install 'onceward[prometheus]'") from error

# All are gauges, also what only grows for a while: retention makes them smaller again.
NUMBERS = {
    "oldest_due_seconds": "Age of the oldest message that may run now.",
    "done": "Messages whose effects are committed, as far back as they are remembered.",
    "done_last_minute": "Messages whose effects were committed in the last minute.",
    "discarded": "Messages that an operator took out.",
    "skipped": "Messages that came after a later number of their key.",
    "duplicates": "Copies that were recognised and not run.",
    "failures": "Failed attempts and crashes that were charged.",
    "workers": "Processes that run handlers.",
    "outbox_unsent": "Outgoing messages that are not published yet.",
    "outbox_dead": "Outgoing messages that wait for an operator's decision.",
    "outbox_sent": "Outgoing messages that were published.",
}


class InboxCollector(Collector):
    """Asks the inbox whenever Prometheus asks us."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox

    def describe(self) -> Iterable[Metric]:
        """Nothing in advance: being registered must not need the database."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The numbers of now; `onceward_up` is 1 where there are any."""
        labels = {"service": self._inbox.context.service}
        up = GaugeMetricFamily("onceward_up", "Whether the inbox could be read.", labels=list(labels))
        try:
            stats = self._inbox.admin.stats()
            blocked = sum(1 for key in self._inbox.admin.blocked_keys() if key.behind)
            failing = self._inbox.admin.failing()
            backlog = self._inbox.admin.backlog()
            numbers = list(recent(self._inbox))
        except StoreError:
            up.add_metric(list(labels.values()), 0)
            yield up
            return
        up.add_metric(list(labels.values()), 1)
        yield up
        states = GaugeMetricFamily("onceward_messages", "Messages by status.", labels=[*labels, "state"])
        for state in OPEN:
            states.add_metric([*labels.values(), state], getattr(stats, state))
        yield states
        for name, meaning in NUMBERS.items():
            yield _gauge(f"onceward_{name}", meaning, labels, getattr(stats, name))
        yield _gauge(
            "onceward_blocked_keys",
            "Keys in which messages wait behind a dead or unhandled one.",
            labels,
            blocked,
        )
        waits = "Messages that may run now, without those that are paused."
        yield _gauge("onceward_backlog", waits, labels, backlog.due)
        age = "Age of the oldest message that may run now and is not paused."
        yield _gauge("onceward_backlog_seconds", age, labels, backlog.oldest_seconds)
        yield _gauge("onceward_pauses", "What operators have paused.", labels, backlog.pauses)
        often = "Messages that have failed 5 times or more and are tried again."
        yield _gauge("onceward_failing", often, labels, failing.messages)
        held = "Keys in which messages have waited for 10 minutes behind a failing one."
        yield _gauge("onceward_held_keys", held, labels, failing.held_keys)
        yield from _recent(numbers, labels)


def _recent(numbers: Sequence[Number], labels: dict[str, str]) -> Iterator[Metric]:
    """What the history says about the last minutes."""
    for name, meaning in MEANINGS.items():
        of_name = [one for one in numbers if one.name == name]
        if of_name:
            gauge = GaugeMetricFamily(f"onceward_{name}", meaning, labels=[*labels, *of_name[0].labels])
            for one in of_name:
                gauge.add_metric([*labels.values(), *one.labels.values()], one.value)
            yield gauge


def _gauge(name: str, meaning: str, labels: dict[str, str], value: float) -> Metric:
    gauge = GaugeMetricFamily(name, meaning, labels=list(labels))
    gauge.add_metric(list(labels.values()), value)
    return gauge


def exposition(inbox: Inbox) -> bytes:
    """The inbox's numbers as Prometheus reads them."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(InboxCollector(inbox))
    return generate_latest(registry)


def watch_handlers(inbox: Inbox, registry: CollectorRegistry = REGISTRY) -> None:
    """Measure how long the handlers of this process take, and how they end."""
    histogram = Histogram(
        "onceward_handler_seconds",
        "How long handlers take.",
        ["service", "consumer", "type", "outcome"],
        registry=registry,
    )

    @contextmanager
    def hook(handler: Any, messages: Sequence[Any]) -> Iterator[None]:
        del messages
        began, outcome = time.perf_counter(), "failed"
        try:
            yield
            outcome = "returned"
        finally:
            names = (inbox.context.service, handler.consumer, handler.type, outcome)
            histogram.labels(*names).observe(time.perf_counter() - began)

    inbox.add_hook(hook)
