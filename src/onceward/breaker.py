"""A circuit for handlers whose downstream may break: a pause, instead of burning every message's attempts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from onceward.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Circuit:
    """After so many failures in a row, pause; then let one message try."""

    failures: int = 5
    pause: timedelta = timedelta(seconds=30)

    def __post_init__(self) -> None:
        if self.failures < 1 or self.pause <= timedelta(0):
            raise ConfigurationError("Circuit: failures must be at least 1 and pause longer than nothing")


class Breaker:
    """The state of one handler's circuit in this process."""

    def __init__(self, circuit: Circuit, clock: Callable[[], float] = time.monotonic) -> None:
        self.circuit, self.clock = circuit, clock
        self._failed = 0
        self._open_until = float("-inf")
        self._lock = threading.Lock()

    @property
    def is_open(self) -> bool:
        """Whether messages of this handler must wait."""
        return self.clock() < self._open_until

    @property
    def seconds_left(self) -> float:
        """How long messages of this handler must still wait."""
        return max(0.0, self._open_until - self.clock())

    def succeeded(self) -> None:
        """A message went through: everything is well."""
        with self._lock:
            self._failed = 0

    def failed(self) -> None:
        """A message failed; the pause begins with the last allowed failure, and again with each one after it."""
        with self._lock:
            self._failed += 1
            if self._failed >= self.circuit.failures:
                self._open_until = self.clock() + self.circuit.pause.total_seconds()
