"""The faults. Each has ended when its call returns."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable

from faults.fleet import Fleet
from faults.plan import Strike

BEYOND = 1.5
"""A suspension lasts so many leases."""


class Nemesis:
    """Strikes as planned."""

    def __init__(self, fleet: Fleet, lease_seconds: float, restart: Callable[[], object]) -> None:
        self._fleet, self._lease_seconds, self._restart = fleet, lease_seconds, restart
        self.done: Counter[str] = Counter()

    def strike(self, strike: Strike) -> None:
        """One fault."""
        time.sleep(strike.wait)
        if strike.fault == "kill":
            self._fleet.signal(strike.worker, signal.SIGKILL)
        elif strike.fault == "restart":
            self._restart()
        else:
            self._fleet.signal(strike.worker, signal.SIGSTOP)
            time.sleep(BEYOND * self._lease_seconds)
            self._fleet.signal(strike.worker, signal.SIGCONT)
        self.done[strike.fault] += 1
