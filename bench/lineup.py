"""Other queues, each behind a small adapter that runs in an environment of its own (`bench/.venv`).

An adapter has two moves: `fill`, which stores numbered jobs, and `drain`, one process of a race that runs them, adds their
numbers up and answers. A peer that cannot be installed or run is in the report, with its error.
"""

from __future__ import annotations

import subprocess
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache

from bench import race as racing
from bench.figures import Figures, expect
from bench.ground import Ground
from bench.race import Unusable, race, run, theirs
from bench.scale import Scale


@dataclass(frozen=True, slots=True)
class Peer:
    """A queue that is measured beside onceward."""

    name: str
    package: str
    crawls: bool = False
    """A few hundred a second: it gets a shorter backlog."""
    processes: bool = True
    """Whether it gains from a second process."""


POSTGRES = (
    Peer("procrastinate", "procrastinate", crawls=True),
    Peer("pgqueuer", "pgqueuer"),
    Peer("dbos", "dbos", crawls=True),
    Peer("django_tasks_db", "django-tasks-db", crawls=True),
    Peer("chancy", "chancy", crawls=True),
)
PGMQ = (Peer("pgmq", "pgmq"), Peer("pgmq_client", "pgmq"))
"""Not a library but functions inside the server: compared by itself, called by hand and through its client."""
SQLITE = (
    Peer("huey", "huey", crawls=True, processes=False),
    Peer("persist_queue", "persist-queue", crawls=True, processes=False),
    Peer("litequeue", "litequeue", crawls=True, processes=False),
)


def measure(peer: Peer, ground: Ground, scale: Scale, figures: Figures) -> None:
    """One repetition of a peer on PostgreSQL."""
    with ground.bare() as url:
        attempt(peer, url, f"drain: {peer.name}", scale, figures, ground.hastily(url))


def attempt(  # noqa: PLR0913, PLR0917 - who, where, how much
    peer: Peer,
    place: str,
    name: str,
    scale: Scale,
    figures: Figures,
    hastily: AbstractContextManager[None] | None = None,
) -> None:
    """One repetition of a peer, or the reason why there is none."""
    count = scale.crawling if peer.crawls else scale.messages
    processes = scale.processes if peer.processes else 1
    try:
        with hastily or nullcontext():  # the backlog need not be durable, only its end
            run(theirs(peer.name, "fill", place, count), patience=120)
        finish = race([theirs(peer.name, "drain", place, count)] * processes, patience=120)
        busy = [answer for answer in finish.answers if answer[0]]
        done, total = sum(answer[0] for answer in busy), sum(answer[1] for answer in busy)
        expect(f"{name}: (jobs, sum of their numbers)", (done, total), (count, count * (count - 1) // 2))
        # From its first job on: its start does not count against a peer.
        figures.add(name, count / (max(answer[3] for answer in busy) - min(answer[2] for answer in busy)))
    except (Unusable, AssertionError, OSError, ValueError, subprocess.TimeoutExpired) as error:
        figures.errors[name] = f"{type(error).__name__}: {error}"


@cache
def versions() -> dict[str, str]:
    """The versions of the peers that are installed."""
    if not racing.PEERS.exists():
        return {}
    listed = run([str(racing.PEERS), "-m", "pip", "list", "--format", "freeze", "--disable-pip-version-check"])
    installed = dict(line.split("==", 1) for line in listed.splitlines() if "==" in line)
    return {peer.package: installed[peer.package] for peer in POSTGRES + PGMQ + SQLITE if peer.package in installed}
