"""Other queues, each behind a small adapter that runs in an environment of its own (`bench/.venv`).

An adapter has two moves: `fill`, which stores numbered jobs, and `drain`, one process of a race that runs them and adds
their numbers up. It gets its settings from here, so that the page shows what was used. A peer that cannot be installed or
run is in the report, with its error.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from bench import race as racing
from bench.contest import Contender, compete
from bench.figures import Figures, expect
from bench.ground import Ground
from bench.observers import at_sqlite
from bench.race import Finish, Unusable, race, run, theirs
from bench.scale import Scale

PATIENCE = 180


@dataclass(frozen=True, slots=True)
class Peer:
    """A queue that is measured beside onceward, with the driver and the settings with which it was fastest here."""

    name: str
    package: str
    driver: str
    left: str
    """A query that finds a row while a job is unfinished, seen from the end of the backlog (`bench/observers.py`)."""
    guess: int
    """Jobs a second, to begin with."""
    source: str
    """Where its documentation has the settings."""
    processes: int = 2
    settings: Mapping[str, Any] = field(default_factory=dict)

    def contender(self, workload: str) -> Contender:
        """As it is shown."""
        used = {"processes": self.processes, **self.settings}
        return Contender(f"{workload}: {self.name}", self.guess, self.driver, self.source, used, self.package)


POSTGRES = (
    Peer(
        "procrastinate",
        "procrastinate",
        "psycopg",
        "SELECT id FROM procrastinate_jobs WHERE status IN ('todo', 'doing') ORDER BY id DESC LIMIT 1",
        600,
        "https://procrastinate.readthedocs.io/en/stable/howto/production/concurrency.html",
        settings={"concurrency": 20, "listen_notify": False, "delete_jobs": "never"},
    ),
    Peer(
        "pgqueuer",
        "pgqueuer",
        "asyncpg",
        "SELECT id FROM pgqueuer ORDER BY id DESC LIMIT 1",
        28_000,
        "https://pgqueuer.readthedocs.io/en/latest/guides/performance-tuning/",
        settings={"batch_size": 1000, "loop": "uvloop"},
    ),
    Peer(
        "dbos",
        "dbos",
        "psycopg",
        "SELECT 1 FROM dbos.workflow_status WHERE status <> 'SUCCESS' LIMIT 1",
        450,
        "https://docs.dbos.dev/python/reference/queues",
        settings={"worker_concurrency": 100, "polling_interval_sec": 0.05},
    ),
    Peer(
        "django_tasks_db",
        "django-tasks-db",
        "psycopg",
        "SELECT 1 FROM django_tasks_database_dbtaskresult WHERE status <> 'SUCCESSFUL' LIMIT 1",
        130,
        "https://github.com/RealOrangeOne/django-tasks-db",
    ),
    Peer(
        "chancy",
        "chancy",
        "psycopg",
        "SELECT id FROM chancy_jobs WHERE state <> 'succeeded' ORDER BY id DESC LIMIT 1",
        2_800,
        "https://tkte.ch/chancy/chancy.queue.html",
        settings={"concurrency": 1000, "polling_interval": 1, "eager_polling": True, "send_outgoing_interval": 0.1},
    ),
)
_PGMQ = Peer(
    "pgmq",
    "pgmq",
    "psycopg",
    "SELECT msg_id FROM pgmq.q_bench ORDER BY msg_id DESC LIMIT 1",
    48_000,
    "https://pgmq.github.io/pgmq/",
    settings={"batch": 1000},
)
PGMQ = (_PGMQ, replace(_PGMQ, name="pgmq_client", guess=32_000))
"""Not a library but functions inside the server: compared by itself, called by hand and through its client."""
SQLITE = (
    Peer(
        "huey",
        "huey",
        "sqlite3",
        "SELECT id FROM task ORDER BY id DESC LIMIT 1",
        2_000,
        "https://huey.readthedocs.io/en/latest/api.html#SqliteHuey",
        processes=1,
        settings={"journal_mode": "wal", "fsync": True},
    ),
    Peer(
        "persist_queue",
        "persist-queue",
        "sqlite3",
        "SELECT _id FROM queue_default ORDER BY _id DESC LIMIT 1",
        20_000,
        "https://github.com/peter-wangxu/persist-queue#readme",
        processes=1,
        settings={"auto_commit": False, "group": 100, "journal_mode": "wal", "synchronous": "FULL"},
    ),
    Peer(
        "litequeue",
        "litequeue",
        "sqlite3",
        "SELECT 1 FROM Queue WHERE status < 2 ORDER BY rowid DESC LIMIT 1",
        1_500,
        "https://github.com/litements/litequeue#readme",
        processes=1,
        settings={"journal_mode": "wal", "synchronous": "FULL"},
    ),
)
ALL = POSTGRES + PGMQ + SQLITE


def measure(peer: Peer, ground: Ground, scale: Scale, figures: Figures) -> None:
    """One repetition of a peer on PostgreSQL."""

    def run_once(count: int) -> tuple[int, Finish]:
        with ground.bare() as url:
            with ground.hastily(url):  # the backlog need not be durable, only its end
                run(_command(peer, "fill", url, count), patience=PATIENCE)
            return _checked(peer, count, ground.race(url, _drains(peer, url), peer.left, patience=PATIENCE))

    _attempt(peer.contender("drain"), scale, figures, run_once)


def measure_file(peer: Peer, folder: Path, scale: Scale, figures: Figures) -> None:
    """One repetition of a peer on SQLite."""

    def run_once(count: int) -> tuple[int, Finish]:
        place = folder / f"{peer.name}_{count}"
        place.mkdir()
        file = place / "data.db"
        run(_command(peer, "fill", file, count), patience=PATIENCE)
        with at_sqlite(file, peer.left) as observer:
            finish = race(_drains(peer, file), observer, patience=PATIENCE)
            figures.notes[f"sqlite: {peer.name}: journal"] = observer.journal()
        for left in (*place.iterdir(), place):
            left.rmdir() if left.is_dir() else left.unlink()
        return _checked(peer, count, finish)

    _attempt(peer.contender("sqlite"), scale, figures, run_once)


def _attempt(
    contender: Contender, scale: Scale, figures: Figures, run_once: Callable[[int], tuple[int, Finish]]
) -> None:
    """One repetition of a peer, or the reason why there is none."""
    if not racing.PEERS.exists():
        figures.contenders[contender.name] = contender
        figures.errors[contender.name] = "not installed (make bench-peers)"
        return
    try:
        compete(contender, scale, figures, run_once)
    except (Unusable, AssertionError, OSError, ValueError, subprocess.TimeoutExpired) as error:
        figures.errors[contender.name] = f"{type(error).__name__}: {error}"


def _checked(peer: Peer, count: int, finish: Finish) -> tuple[int, Finish]:
    """Exact, and timed from its first job on: its start does not count against a peer."""
    busy = [answer for answer in finish.answers if answer["jobs"]]
    found = sum(answer["jobs"] for answer in busy), sum(answer["total"] for answer in busy)
    expect(f"{peer.name}: (jobs, sum of their numbers)", found, (count, count * (count - 1) // 2))
    return count, replace(finish, started=min(answer["first"] for answer in busy))


def _command(peer: Peer, move: str, place: Path | str, count: int) -> list[str]:
    return theirs(peer.name, move, place, count, json.dumps(peer.settings))


def _drains(peer: Peer, place: Path | str) -> list[list[str]]:
    return [_command(peer, "drain", place, 0)] * peer.processes


@cache
def versions() -> dict[str, str]:
    """The versions of what is installed for the peers."""
    if not racing.PEERS.exists():
        return {}
    listed = run([str(racing.PEERS), "-m", "pip", "list", "--format", "freeze", "--disable-pip-version-check"])
    return dict(line.split("==", 1) for line in listed.splitlines() if "==" in line)
