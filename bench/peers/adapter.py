"""What every adapter shares: the body of a job, and what a job does."""

from __future__ import annotations

import json
import time

from bench.messages import body

Answer = tuple[int, int, float, float]
"""How many jobs, the sum of their numbers, and when the first and the last of them began."""


class Tally:
    """The jobs that this process has run."""

    def __init__(self) -> None:
        self.count = self.total = 0
        self.first = self.last = 0.0

    def run(self, text: str | bytes) -> None:
        """What a job does: decode the body, and nothing else."""
        self.last = time.perf_counter()
        self.first = self.first or self.last
        self.count += 1
        self.total += json.loads(text)["number"]

    def end(self) -> None:
        """All jobs are done, in the database too."""
        self.last = time.perf_counter()

    def answer(self) -> Answer:
        """For the race."""
        return self.count, self.total, self.first, self.last


TALLY = Tally()


def text(number: int) -> str:
    """The body of a job."""
    return json.dumps(body(number))
