"""A clock that stands still until it is moved, for due times and leases on SQLite.

PostgreSQL uses the server's own clock, which cannot be stopped: there a test makes rows due instead, or waits.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import Any

from onceward.errors import ConfigurationError
from onceward.inbox import Inbox
from onceward.message import moment


class FixedClock:
    """Stands in for the clock of an inbox.

    >>> inbox = Inbox("sqlite://")
    >>> clock = FixedClock(inbox)
    >>> before = clock.now
    >>> clock.advance(hours=1)
    >>> clock.now - before
    datetime.timedelta(seconds=3600)
    >>> clock.release()
    >>> inbox.close()
    """

    def __init__(self, inbox: Inbox) -> None:
        store: Any = inbox.store
        if store.dialect != "sqlite":
            raise ConfigurationError("only SQLite takes its time from this process, others from the server's clock")
        self._inbox, self._store = inbox, store
        self._microseconds = time.time_ns() // 1000
        self._before = inbox.context.clock
        store.clock = lambda: self._microseconds
        inbox.context.clock = self._seconds
        store.close()  # connections in the pool still have the real one
        self._reach_breakers()

    @property
    def now(self) -> datetime:
        """The time it shows."""
        return moment(self._microseconds)

    def advance(self, seconds: float = 0, *, minutes: float = 0, hours: float = 0, days: float = 0) -> None:
        """Move it forward: retries become due, leases run out, circuits close."""
        step = timedelta(seconds=seconds, minutes=minutes, hours=hours, days=days)
        if step < timedelta(0):
            raise ConfigurationError("a clock goes forward")
        self._microseconds += step // timedelta(microseconds=1)
        self._reach_breakers()

    def release(self) -> None:
        """Give the inbox its own clock back."""
        del self._store.clock
        self._inbox.context.clock = self._before
        self._store.close()

    def _seconds(self) -> float:
        return self._microseconds / 1_000_000

    def _reach_breakers(self) -> None:
        for handler in self._inbox.context.registry:
            if handler.breaker is not None:
                handler.breaker.clock = self._seconds
