"""What every adapter shares: the body of a job, and what a job does."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from bench.messages import body

Settings = dict[str, Any]
"""As `bench/lineup.py` has them."""


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

    def answer(self) -> dict[str, float]:
        """For the race: how many jobs, the sum of their numbers, and when the first began."""
        return {"jobs": self.count, "total": self.total, "first": self.first}


TALLY = Tally()


def text(number: int) -> str:
    """The body of a job."""
    return json.dumps(body(number))


def texts(count: int, part: int = 1000) -> Iterator[list[str]]:
    """The bodies of all jobs, in parts."""
    for first in range(0, count, part):
        yield [text(number) for number in range(first, min(first + part, count))]
