"""What this process has seen happen, until it is written into the history.

Invariant: counting never fails, and a process without a history counts nothing. What happened to the messages of a
group is counted at once, so that a message costs next to nothing. What is not written when a process dies is not in the
history; what becomes of messages never depends on it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Literal, NamedTuple

from onceward.domain.histogram import Histogram, sum_of

EVERY_SECONDS = 10.0
"""How often a process writes what it has counted."""

What = Literal["accepted", "duplicate", "mismatch", "spooled", "done", "failed", "dead"]


class Series(NamedTuple):
    """What is counted together."""

    consumer: str
    source: str
    type: str


class Counts:
    """What has happened to the messages of a series."""

    __slots__ = ("dead", "done", "duplicates", "failed", "lateness", "mismatches", "received", "run", "wait")

    def __init__(self) -> None:
        self.received = self.duplicates = self.mismatches = self.done = self.failed = self.dead = 0
        self.lateness, self.wait, self.run = Histogram(), Histogram(), Histogram()

    def count(self, what: What, times: int, seconds: Sequence[float], waited: Sequence[float]) -> None:
        """Count what has happened to so many messages."""
        if what == "accepted":
            self.received += times
        elif what == "duplicate":
            self.duplicates += times
            self.lateness.add(seconds)
        elif what == "mismatch":
            self.mismatches += times
        elif what == "done":
            self.done += times
            self.run.add(seconds)
            self.wait.add(waited)
        elif what != "spooled":  # it comes again, when the spool is drained
            self.failed += times
            self.dead += times if what == "dead" else 0

    def add(self, other: Counts) -> None:
        """Count what another one has."""
        for name in ("received", "duplicates", "mismatches", "done", "failed", "dead"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("lateness", "wait", "run"):
            setattr(self, name, sum_of((getattr(self, name), getattr(other, name))))


class Activity:
    """The counts of a process."""

    def __init__(self, *, kept: bool = False) -> None:
        self.due_at = time.monotonic() + EVERY_SECONDS if kept else float("inf")
        """When it is to be written next, by the clock of the process."""
        self.is_kept = kept
        """Whether this process has a history."""
        self._lock = threading.Lock()
        self._counts: dict[Series, Counts] = {}

    def count(
        self,
        what: What,
        series: Series,
        times: int = 1,
        *,
        seconds: Sequence[float] = (),
        waited: Sequence[float] = (),
    ) -> None:
        """The same has happened to so many messages of a series.

        `seconds` is how long ago the messages had come that duplicates are copies of, or how long the handlers ran of
        those that are done; `waited` how long these had waited for their first attempt, where that was it.
        """
        if self.is_kept:
            with self._lock:
                self._of(series).count(what, times, seconds, waited)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not self._counts

    def take(self, now: float) -> dict[Series, Counts]:
        """What was counted; from now on it is counted anew."""
        self.due_at = now + EVERY_SECONDS
        with self._lock:
            counts, self._counts = self._counts, {}
            return counts

    def give_back(self, counts: dict[Series, Counts]) -> None:
        """What was taken could not be written: it is written with what comes next."""
        with self._lock:
            for series, known in counts.items():
                self._of(series).add(known)

    def _of(self, series: Series) -> Counts:
        counts = self._counts.get(series)
        if counts is None:
            counts = self._counts[series] = Counts()
        return counts
