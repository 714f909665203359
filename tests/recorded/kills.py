"""kill -9 at every request of a process, by `make kills`.

A run of the tests takes one request of each scenario; ONCEWARD_CRASH_SEED takes the same again, ONCEWARD_CRASH_SAMPLE
more of them, or all.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from onceward import Inbox
from tests.crash.points import sample, seed, takes_all
from tests.nursery import Child, Nursery
from tests.recorded.service import SCENARIOS, Place, recover

EVERY = list(itertools.product(SCENARIOS, ("sync", "async")))
CASES = EVERY if takes_all() else list(zip(SCENARIOS, random.Random(seed()).sample(("sync", "async"), 2), strict=True))
"""Scenarios with the kind of their handlers: each of them, and in a sample one of each kind."""
_prefixes = itertools.count(1)


@contextmanager
def nursery_of_victims() -> Iterator[Nursery]:
    """What the victims come from."""
    with Nursery("tests.recorded.program") as nursery:
        yield nursery
        nursery.clear()


def fresh_prefix() -> str:
    """Of an inbox of its own."""
    return f"k{next(_prefixes)}_"


def chosen(count: int, *what: object) -> list[int]:
    """Which of so many requests."""
    return sorted(sample(range(1, count + 1), random.Random(f"{seed()} {what}")))


def killed_at_every_request(
    nursery: Nursery, files: Path, place: Callable[[str], Place], scenario: str, kind: str
) -> None:
    """Kill a process at each of its requests, and let another one go on."""

    def victim(number: int) -> tuple[Place, Child]:
        where = place(fresh_prefix())
        with Inbox(where.url, prefix=where.prefix) as inbox:
            inbox.migrate()
        given = {"place": list(where), "scenario": scenario, "kind": kind, "number": number}
        secrets = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        child = nursery.start("tests.recorded.program:play", files, environment=secrets, **given)
        child.end()
        return where, child

    _, first = victim(0)
    count = first.hear("requests")["count"]
    for number in chosen(count, scenario, kind):
        where, child = victim(number)
        try:
            # Who needs fewer requests than the first one may end before it dies.
            assert child.end() == -signal.SIGKILL or child.hear("requests")["count"] < number
            recover(where, child.pid)
        except BaseException as error:
            error.add_note(f"{scenario}, {kind}, killed at request {number} of {count}, seed {seed()}")
            raise
