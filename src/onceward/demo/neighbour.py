"""The careless consumer's processes (`careless.py`): started, killed and replaced, and what its tables say."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from onceward.demo import careless

TRIES = 50
"""How often the demo looks for a worker at the worst moment, before it kills any."""
POISONOUS = 2
"""So many messages of a demo can have no effect."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What the careless consumer has done so far."""

    deliveries: int
    """What its broker still has."""
    effects: int
    doubled: int
    lost: int
    too_much: int
    """What was booked twice, in money."""


class Neighbour:
    """The careless consumer."""

    def __init__(self, path: Path, processes: int, output: int) -> None:
        self.path, self._processes, self._output = path, processes, output
        self._running: list[subprocess.Popen[bytes]] = []
        self.killed: dict[int, float] = {}
        """When each worker was killed."""
        careless.create(path)

    def held(self) -> dict[int, int]:
        """Its workers of now, and how many deliveries each has in hand."""
        with closing(sqlite3.connect(self.path, timeout=60)) as connection:
            counts = dict(connection.execute("SELECT worker, count(*) FROM delivery GROUP BY worker").fetchall())
        return {process.pid: counts.get(process.pid, 0) for process in self._running if process.poll() is None}

    @property
    def backlog(self) -> int:
        """How many deliveries are not done."""
        return self.tally().deliveries

    @contextmanager
    def workers(self) -> Iterator[None]:
        """Its workers run while the block does."""
        try:
            self._running = [self._start() for _ in range(self._processes)]
            yield
        finally:
            for process in self._running:
                process.kill()
                process.wait()

    def look(self) -> None:
        """Replace the dead; the broker delivers again what they had."""
        for place, process in enumerate(self._running):
            if process.poll() is not None:
                careless.deliver_again(self.path, process.pid)
                self._running[place] = self._start()

    def kill_one(self, chance: random.Random) -> int | None:
        """Kill -9 a worker, best one that has done its work and has not remembered it yet; returns its pid."""
        living = [process for process in self._running if process.poll() is None]
        if not living:
            return None
        chance.shuffle(living)
        victim = next((one for _ in range(TRIES) for one in living if self._caught(one)), living[0])
        victim.send_signal(signal.SIGKILL)
        victim.send_signal(signal.SIGCONT)
        self.killed[victim.pid] = time.monotonic()
        return victim.pid

    def _caught(self, process: subprocess.Popen[bytes]) -> bool:
        """Whether a worker, which is held then, is between the work and the memory of it."""
        process.send_signal(signal.SIGSTOP)
        with closing(sqlite3.connect(self.path, timeout=1)) as connection:
            try:
                caught = connection.execute(GAP, [process.pid]).fetchone() is not None
            except sqlite3.OperationalError:  # it was held in the middle of a commit
                caught = False
        if not caught:
            process.send_signal(signal.SIGCONT)
        return caught

    def tally(self, sent: int = 0) -> Tally:
        """Read it from the tables; `sent` is how many messages must have an effect, the poisonous ones apart."""
        with closing(sqlite3.connect(self.path, timeout=60)) as connection:
            found = connection.execute(COUNT).fetchone()
        deliveries, effects, distinct, too_much = found
        lost = max(0, sent - POISONOUS - distinct)
        return Tally(deliveries, effects, effects - distinct, lost, too_much)

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "onceward.demo.careless", str(self.path), str(os.getpid())],
            stdout=self._output,
            stderr=self._output,
        )


GAP = """
SELECT 1 FROM delivery d JOIN payment p ON p.message = d.message
WHERE d.worker = ? AND NOT EXISTS (SELECT 1 FROM seen s WHERE s.message = d.message)
"""

COUNT = """
SELECT
    (SELECT count(*) FROM delivery),
    count(*),
    count(DISTINCT message),
    coalesce(sum(amount), 0) - (SELECT coalesce(sum(amount), 0) FROM (SELECT DISTINCT message, amount FROM payment))
FROM payment
"""
