"""What the metrics read of the history: the last minutes, by type and by source.

Invariant: no label is what a sender chooses freely. A type is named here only once a handler has run for it, and a
source is a name of the program.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

from onceward.admin.concerns import RECENT
from onceward.admin.history import COUNTS, together_by
from onceward.domain.histogram import Histogram
from onceward.inbox import Inbox

QUANTILES = (50, 95)
READ_FOR = 2.0
"""For so many seconds numbers are those of one collection."""
MEANINGS = {
    "recent": "What happened to messages in the last 15 minutes, by what.",
    "recent_wait_seconds": "How long messages of the last 15 minutes were due until their first attempt.",
    "recent_run_seconds": "How long handlers took for messages of the last 15 minutes.",
    "recent_lateness_seconds": "How long after the first delivery copies of the last 15 minutes came.",
    "redelivery_window_seconds": "How long a source has said that it may redeliver.",
}


class Number(NamedTuple):
    """A number with its labels."""

    name: str
    labels: dict[str, str]
    value: float


class Recent:
    """The numbers of the last minutes, read once for all the instruments that are collected together."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._read_at = float("-inf")
        self._numbers: list[Number] = []

    def of(self, name: str) -> list[Number]:
        """Those of a name."""
        if time.monotonic() - self._read_at > READ_FOR:
            self._numbers, self._read_at = list(recent(self._inbox)), time.monotonic()
        return [one for one in self._numbers if one.name == name]


def recent(inbox: Inbox) -> Iterator[Number]:
    """The numbers of the last minutes."""
    if "history" in inbox.store.capabilities:
        yield from _of_types(inbox)
        yield from _of_sources(inbox)


def _of_types(inbox: Inbox) -> Iterator[Number]:
    periods = inbox.admin.history(since=RECENT, by="minute", per="type")
    for (consumer, kind), known in together_by(periods, lambda one: (one.consumer, one.type)).items():
        if not known.done + known.failed:
            continue
        labels = {"consumer": consumer, "type": kind}
        for what in COUNTS:
            yield Number("recent", {**labels, "what": what}, getattr(known, what))
        yield from _durations("recent_wait_seconds", labels, known.wait)
        yield from _durations("recent_run_seconds", labels, known.run)


def _of_sources(inbox: Inbox) -> Iterator[Number]:
    sources = together_by(inbox.admin.history(since=RECENT, by="minute", per="source"), lambda one: one.source)
    for one in inbox.admin.sources():
        if one.redelivers_for is not None:
            labels = {"source": one.name}
            yield Number("redelivery_window_seconds", labels, one.redelivers_for.total_seconds())
            if one.name in sources:
                yield from _durations("recent_lateness_seconds", labels, sources[one.name].lateness, (*QUANTILES, 100))


def _durations(
    name: str, labels: dict[str, str], durations: Histogram, percents: tuple[int, ...] = QUANTILES
) -> Iterator[Number]:
    for percent in percents:
        seconds = durations.percentile(percent)
        if seconds is not None:
            yield Number(name, {**labels, "quantile": f"{percent / 100:g}"}, seconds)
