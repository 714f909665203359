"""What the plots show: the inbox's numbers while somebody watches, at most one hour of them."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

from onceward.inbox import Inbox

EVERY = 1.8
"""A page asks every two seconds; however many pages are open, the database is asked once."""
KEPT = 1800
SERIES = ("due", "waiting", "retrying", "running", "dead", "duplicates", "failures", "done", "oldest_due_seconds")
TRAFFIC_EVERY = 10.0


class Samples:
    """A ring of samples; taken when a page asks, so nothing runs when nobody looks."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._kept: deque[tuple[float, ...]] = deque(maxlen=KEPT)
        self._traffic: list[list[int]] = []
        self._sampled_at = self._traffic_at = float("-inf")
        self._stats: dict[str, float] = {}
        self._lock = threading.Lock()

    def asked(self) -> dict[str, Any]:
        """The numbers of now, and the samples so far."""
        with self._lock:
            now = time.monotonic()
            if now - self._sampled_at >= EVERY:
                self._sample()
                self._sampled_at = now
            if now - self._traffic_at >= TRAFFIC_EVERY:
                minutes = self._inbox.admin.traffic()
                self._traffic = [[minute.ago, minute.received, minute.done, minute.failed] for minute in minutes]
                self._traffic_at = now
            samples = list(self._kept)
        return {"stats": self._stats, "series": ["at", *SERIES], "samples": samples, "traffic": self._traffic}

    def _sample(self) -> None:
        stats = self._inbox.admin.stats()
        self._stats = {name: getattr(stats, name) for name in stats.__dataclass_fields__}
        self._kept.append((time.time(), *(self._stats[name] for name in SERIES)))
