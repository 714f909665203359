"""A circuit for handlers whose downstream may break: a pause, instead of burning every message's attempts."""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from onceward.domain import checks

log = logging.getLogger("onceward")

_UNREACHABLE = {errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETRESET}
_CLIENTS = {
    "socket.gaierror",
    "socket.herror",
    "aiohttp.ClientConnectionError",
    "botocore.ConnectionError",
    "botocore.HTTPClientError",
    "httpx.TransportError",
    "httpx2.TransportError",
    "redis.ConnectionError",
    "redis.TimeoutError",
    "requests.ConnectionError",
    "requests.Timeout",
    "urllib3.MaxRetryError",
    "urllib3.ProtocolError",
    "urllib3.TimeoutError",
}
"""Connection errors that are no `ConnectionError`, by package and class: none of the packages need be here."""


def is_connection_error(error: BaseException) -> bool:
    """Whether the other side could not be reached or did not answer, also as the cause of another error."""
    seen: BaseException | None = error
    for _ in range(10):  # a chain of causes may be a ring
        if seen is None:
            return False
        if isinstance(seen, ConnectionError | TimeoutError) or _names(seen) & _CLIENTS:
            return True
        if isinstance(seen, OSError) and seen.errno in _UNREACHABLE:
            return True
        reason = getattr(seen, "reason", None) if isinstance(seen, OSError) else None  # urllib's own way of saying it
        seen = seen.__cause__ or (reason if isinstance(reason, BaseException) else None)
    return False


def _names(error: BaseException) -> set[str]:
    return {f"{one.__module__.partition('.')[0]}.{one.__name__}" for one in type(error).__mro__}


@dataclass(frozen=True, slots=True)
class Circuit:
    """After so many failures in a row, pause; then let one message try."""

    failures: int = 5
    pause: timedelta = timedelta(seconds=30)
    counts: Callable[[BaseException], bool] | None = None
    """Which errors count as failures; all, if it is None. `Reject` never does."""

    def __post_init__(self) -> None:
        checks.whole("Circuit", "failures", self.failures)
        checks.duration("Circuit", "pause", self.pause)
        if self.counts is not None:
            checks.function("Circuit", "counts", self.counts)


CIRCUIT = "a Circuit, for example Circuit(failures=5), or None"
"""What `circuit=` must be."""
_NEVER = float("-inf")
CONNECTIONS = Circuit(counts=is_connection_error)
"""The circuit of a handler that names none."""
FLAPPING = 10
"""Two outages within so many pauses are one that is not over."""


class Breaker:
    """The state of one handler's circuit in this process."""

    def __init__(self, circuit: Circuit, clock: Callable[[], float] = time.monotonic) -> None:
        self.circuit, self.clock = circuit, clock
        self.failed_in_row = 0
        self.was_open = False
        """It was open at least once."""
        self._open_until = self._closed_at = _NEVER
        self._lock = threading.Lock()

    @property
    def is_open(self) -> bool:
        """Whether messages of this handler must wait."""
        return self.clock() < self._open_until

    @property
    def seconds_left(self) -> float:
        """How long messages of this handler must still wait."""
        return max(0.0, self._open_until - self.clock())

    def succeeded(self) -> bool:
        """A message went through: everything is well. Returns whether that ends an outage, for good as it seems."""
        if not self.failed_in_row:
            return False
        with self._lock:
            was_out, self.failed_in_row = self.failed_in_row >= self.circuit.failures, 0
            if not was_out:
                return False
            now, before = self.clock(), self._closed_at
            self._closed_at = now
            return now - before > FLAPPING * self.circuit.pause.total_seconds()

    def failed(self, error: BaseException) -> None:
        """A message failed; the pause begins with the last allowed failure, and again with each one after it."""
        if not self._counts(error):
            return
        with self._lock:
            self.failed_in_row += 1
            if self.failed_in_row >= self.circuit.failures:
                self.was_open = True
                self._open_until = self.clock() + self.circuit.pause.total_seconds()

    def _counts(self, error: BaseException) -> bool:
        try:
            return self.circuit.counts is None or bool(self.circuit.counts(error))
        except Exception:
            log.exception("Circuit: counts= raised an error; the failure counts")
            return True
