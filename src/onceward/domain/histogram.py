"""Durations, counted in buckets whose width grows with them: small to keep, exact to add up.

Invariant: a bucket never moves, so histograms of other processes, minutes and releases add up. A percentile is the
upper bound of its bucket: at most 41 % above the true value, and never below it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from math import inf

FIRST = 0.001
"""The upper bound of the first bucket, in seconds."""
PER_DOUBLING = 2
"""So many buckets until the bound has doubled."""
LAST = 63
"""The bucket for all that is longer, some five weeks."""


def bound(bucket: int) -> float:
    """The upper bound of a bucket, in seconds."""
    return float(FIRST * 2 ** (bucket / PER_DOUBLING))


_BOUNDS = [*map(bound, range(LAST)), inf]


def bucket_of(seconds: float) -> int:
    """The bucket of a duration."""
    return bisect_left(_BOUNDS, seconds)


class Histogram:
    """How many durations were in each bucket."""

    __slots__ = ("_counts",)

    def __init__(self, counts: dict[int, int] | None = None) -> None:
        self._counts = counts or {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Histogram) and self._counts == other._counts

    __hash__ = None  # type: ignore[assignment] # it changes

    def __repr__(self) -> str:
        return f"Histogram({self._counts})"

    def __bool__(self) -> bool:
        return bool(self._counts)

    @property
    def count(self) -> int:
        """How many durations there are."""
        return sum(self._counts.values())

    def add(self, durations: Sequence[float]) -> None:
        """Count durations. In their order those of a bucket are next to each other, and counted at once."""
        ordered, counted = sorted(durations), 0
        while counted < len(ordered):
            bucket = bucket_of(ordered[counted])
            until = bisect_right(ordered, _BOUNDS[bucket], counted + 1)
            self._counts[bucket] = self._counts.get(bucket, 0) + until - counted
            counted = until

    def percentile(self, percent: float) -> float | None:
        """The duration, in seconds, that so many percent did not exceed; None where there is none."""
        bucket = self._bucket(percent)
        return None if bucket is None else bound(bucket)

    def least(self, percent: float) -> float | None:
        """The duration, in seconds, that all but so many percent reached at least; None where there is none."""
        bucket = self._bucket(percent)
        return bound(bucket - 1) if bucket else None if bucket is None else 0.0

    def _bucket(self, percent: float) -> int | None:
        left = self.count * percent / 100
        for bucket in sorted(self._counts):
            left -= self._counts[bucket]
            if left <= 0:
                return bucket
        return None

    def text(self) -> str | None:
        """As it is stored: `bucket:count`, with spaces between; None where it is empty."""
        return " ".join(f"{bucket}:{self._counts[bucket]}" for bucket in sorted(self._counts)) or None

    @classmethod
    def read(cls, text: str | None) -> Histogram:
        """What was stored; of several texts with spaces between, all of it. Pairs that are alike are read once."""
        counts: dict[int, int] = {}
        for pair, times in Counter((text or "").split()).items():
            bucket, _, count = pair.partition(":")
            counts[int(bucket)] = counts.get(int(bucket), 0) + int(count) * times
        return cls(counts)


def sum_of(histograms: Iterable[Histogram]) -> Histogram:
    """All of them together."""
    counts: dict[int, int] = {}
    for histogram in histograms:
        for bucket, count in histogram._counts.items():  # noqa: SLF001 - of the same class
            counts[bucket] = counts.get(bucket, 0) + count
    return Histogram(counts)
