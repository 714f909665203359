"""A rate limit: so many a second on the average, with what a quiet second has saved up at most."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from onceward.domain import checks
from onceward.errors import ConfigurationError

SLOWEST = 1 / 60
"""A client that waits for longer than a minute is taken for dead by some brokers."""


class RateLimit:
    """Says how many may go now. May be asked from several threads."""

    def __init__(self, rate: Any, *, clock: Callable[[], float] = time.monotonic) -> None:
        if not isinstance(rate, int | float) or not rate >= SLOWEST:
            raise ConfigurationError(f"rate={checks.shown(rate)} must be a number a second, one a minute at least")
        self._rate, self._clock = rate, clock
        self._most = max(1.0, rate)
        self._saved, self._seen = self._most, clock()
        self._guard = threading.Lock()

    def take(self, wanted: int = 1) -> int:
        """How many of the wanted may go now; they count as gone."""
        with self._guard:
            granted = min(wanted, int(self._refilled()))
            self._saved -= granted
            return granted

    def give_back(self, count: int) -> None:
        """So many of those that might have gone did not."""
        with self._guard:
            self._saved = min(self._most, self._refilled() + count)

    @property
    def seconds_left(self) -> float:
        """How long until the next may go."""
        with self._guard:
            return max(0.0, (1 - self._refilled()) / self._rate)

    def _refilled(self) -> float:
        now = self._clock()
        self._saved = min(self._most, self._saved + (now - self._seen) * self._rate)
        self._seen = now
        return self._saved
