"""What the plots show: the inbox's numbers over the last hour, sampled while somebody watches."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import Any

from onceward.errors import OncewardError
from onceward.inbox import Inbox

log = logging.getLogger("onceward")

EVERY = 2.0
KEPT = 1800
FORGOTTEN_AFTER = 900.0
"""Sampling ends when nobody has asked for so many seconds."""
SERIES = ("due", "waiting", "retrying", "running", "dead", "duplicates", "failures", "done", "oldest_due_seconds")
TRAFFIC_EVERY = 10.0


class Samples:
    """A ring of samples that fills itself from a thread of its own."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._kept: deque[tuple[float, ...]] = deque(maxlen=KEPT)
        self._traffic: list[Any] = []
        self._traffic_at = 0.0
        self._asked_at = 0.0
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def asked(self) -> dict[str, Any]:
        """The samples so far; begins to take them if nobody does."""
        self._asked_at = time.monotonic()
        if self._thread is None or not self._thread.is_alive():
            with self._lock:
                if self._thread is None or not self._thread.is_alive():
                    self._sample()
                    self._thread = threading.Thread(target=self._run, name="onceward-samples", daemon=True)
                    self._thread.start()
        return {"series": ["at", *SERIES], "samples": list(self._kept), "traffic": self._traffic}

    def _run(self) -> None:
        while time.monotonic() - self._asked_at < FORGOTTEN_AFTER:
            time.sleep(EVERY)
            try:
                self._sample()
            except OncewardError as error:
                log.warning("the dashboard could not read the inbox's numbers: %s", error)

    def _sample(self) -> None:
        stats = self._inbox.stats()
        self._kept.append((time.time(), *(getattr(stats, name) for name in SERIES)))
        if time.monotonic() - self._traffic_at >= TRAFFIC_EVERY:
            self._traffic_at = time.monotonic()
            minutes = self._inbox.traffic()
            self._traffic = [[minute.ago, minute.received, minute.done, minute.failed] for minute in minutes]
