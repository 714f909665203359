"""What every adapter shares: the body of a job, and what a job does."""

from __future__ import annotations

import json
import time

from bench.messages import body

Answer = tuple[int, int, float, float]
"""How many jobs, the sum of their numbers, when the first began, and when all were done."""


class Tally:
    """The jobs that this process has run."""

    def __init__(self) -> None:
        self.count = self.total = 0
        self.first = 0.0

    def run(self, text: str | bytes) -> None:
        """What a job does: decode the body, and nothing else."""
        self.add(json.loads(text)["number"])

    def add(self, number: int) -> None:
        """A job whose body was decoded on its way to it."""
        self.first = self.first or time.perf_counter()
        self.count += 1
        self.total += number

    def answer(self) -> Answer:
        """For the race: all jobs are done, in the database too."""
        return self.count, self.total, self.first, time.perf_counter()


TALLY = Tally()


def text(number: int) -> str:
    """The body of a job."""
    return json.dumps(body(number))
