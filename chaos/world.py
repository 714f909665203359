"""One store under chaos: the fleet of processes, the run from the first message to the verdict."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from chaos import load
from chaos.nemesis import DATABASE, Disk, MariadbNemesis, Nemesis, PostgresNemesis, SqliteNemesis
from chaos.releases import make
from chaos.rollout import Rollout, Step
from chaos.service import LEASE, Kind, create
from chaos.verifier import Verdict, Verifier
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import FaultProxy

WORKERS: tuple[Kind, ...] = ("sync", "sync", "async", "async")
PATIENCE = 20 * LEASE.total_seconds()
"""How long nothing may change before what is left counts as stuck."""


@dataclass
class Member:
    """One process of the fleet, started again whenever it ends."""

    command: list[str]
    environment: dict[str, str]
    process: subprocess.Popen[bytes]
    finished: bool = False


class Fleet:
    """Workers and deliverers; a thread starts again whoever has died."""

    def __init__(self, url: str, folder: Path, environment: dict[str, str]) -> None:
        self._url, self._folder, self._environment = url, folder, environment
        self._output = (folder / "output").open("ab")
        self._over = threading.Event()
        self._keeping = threading.Lock()
        self.deaths = 0
        self.workers = [self._begin("work", url, kind) for kind in WORKERS]
        self.deliverers = [
            self._begin("deliver", url, kind, str(folder), str(number), str(number))
            for number, kind in zip(range(load.PARTITIONS), ("sync", "async"), strict=True)
        ]
        self._keeper = threading.Thread(target=self._keep, name="keeper", daemon=True)
        self._keeper.start()

    def _begin(self, *arguments: str) -> Member:
        command = [sys.executable, "-m", "chaos.program", *arguments]
        return Member(command, self._environment, self.launch(command, self._environment))

    def launch(
        self, command: list[str], environment: dict[str, str], output: IO[bytes] | int | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process of a release; what it prints goes where that of the fleet goes, if nowhere else."""
        stream = self._output if output is None else output
        return subprocess.Popen(command, env={**os.environ, **environment}, stdout=stream, stderr=subprocess.STDOUT)

    def _keep(self) -> None:
        while not self._over.wait(0.05):
            with self._keeping:
                for member in [*self.workers, *self.deliverers]:
                    self._keep_up(member)

    def _keep_up(self, member: Member) -> None:
        if member.finished or member.process.poll() is None:
            return
        if member in self.deliverers and member.process.returncode == 0:
            member.finished = True
            return
        self.deaths += 1
        member.process = self.launch(member.command, member.environment)

    def kill(self, member: Member) -> None:
        """SIGKILL; the keeper starts it again."""
        member.process.kill()

    def stop(self, member: Member) -> None:
        """SIGTERM, as a deployment would; the keeper starts it again."""
        member.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            member.process.wait(5)

    @contextlib.contextmanager
    def away(self, environment: dict[str, str]) -> Iterator[None]:
        """No process is there, until the end; then all of them come back in another environment."""
        with self._keeping:
            members = [*self.workers, *self.deliverers]
            for member in members:
                self.stop(member)
                self.kill(member)
                member.process.wait()
                member.environment = environment
            yield

    @property
    def delivered(self) -> bool:
        """Whether every partition is acknowledged to its end."""
        return all(member.finished for member in self.deliverers)

    def end(self) -> None:
        """The end of everybody."""
        self._over.set()
        self._keeper.join()
        for member in [*self.workers, *self.deliverers]:
            member.process.kill()
            member.process.wait()
        self._output.close()

    def said(self) -> Counter[str]:
        """What the deliverers saw."""
        words: Counter[str] = Counter()
        for number in range(load.PARTITIONS):
            path = self._folder / f"log{number}"
            for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
                if line.startswith("seen "):
                    words[line.removeprefix("seen ")] += 1
        return words


@dataclass
class Outcome:
    """What a run came to."""

    store: str
    messages: int
    faults: Counter[str]
    seen: Counter[str]
    verdict: Verdict
    glances: int
    alarms: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        """Whether nothing was wrong, at any time, and every hard state was reached."""
        return self.verdict.clean and not self.alarms and not self.missing


@dataclass(frozen=True, slots=True)
class Plan:
    """A run on one store; with `skew`, processes of two releases share its tables."""

    store: str
    messages: int
    faults: int
    seed: int
    skew: bool = False


def run(plan: Plan, say: Callable[[str], None]) -> Outcome:
    """All of it."""
    started, store = time.monotonic(), plan.store
    rng = random.Random(f"{plan.seed} {store}")
    partitions = load.make(plan.messages, rng, load.WITH_NOVEL if plan.skew else load.KINDS)
    parcels = [parcel for partition in partitions for parcel in partition]
    with tempfile.TemporaryDirectory(prefix="onceward-chaos-") as name:
        folder = Path(name)
        (folder / "released").write_text("0")
        for number, partition in enumerate(partitions):
            load.write(folder / f"partition{number}", partition)
        ground = {"postgres": _postgres, "mariadb": _mariadb, "sqlite": _sqlite}[store]
        releases = make(folder) if plan.skew else None
        with ground(folder, rng, releases[0].environment if releases else {}) as (fleet, nemesis, verifier_url):
            if store == "sqlite" and "disk full" not in nemesis.names:
                say("sqlite: a full disk needs root to be made, so it is not among the faults of this run")
            verifier = Verifier(verifier_url, parcels)
            rollout = Rollout(fleet, verifier_url, releases, rng) if releases else None
            watch = _Watch(verifier)
            try:
                _torment(nemesis, plan, folder / "released", rollout.steps() if rollout else [], say)
                _settle(fleet, verifier, store, say)
            finally:
                alarms = watch.end() + ([] if fleet.delivered else ["a deliverer did not come to its end"])
                fleet.end()
            seen = fleet.said() + verifier.seen()
            if rollout:
                seen += rollout.done + verifier.skew()
                alarms += rollout.wrong
            doubles = [word for word in seen if word.startswith("ACCEPTED-TWICE")]
            outcome = Outcome(
                store, plan.messages, nemesis.done, seen, verifier.verdict(), watch.glances, alarms + doubles
            )
            wanted = [*_sometimes(nemesis), *(rollout.wanted if rollout else ())]
            outcome.missing = [name for name in wanted if not (seen[name] or nemesis.done[name])]
            outcome.seconds = time.monotonic() - started
            if not outcome.clean:
                kept = Path(tempfile.mkdtemp(prefix="onceward-chaos-output-")) / "output"
                kept.write_bytes((folder / "output").read_bytes())
                say(f"{store}: what its processes said is in {kept}")
            return outcome


def _sometimes(nemesis: Nemesis) -> list[str]:
    """The hard states that a run must have reached; with few faults, not every kind of fault is drawn."""
    states = [
        "duplicate while in flight",
        "duplicate of a finished",
        "mismatch",
        "finished inline",
        "taken over after a death",
        "failed and tried again",
        "dead",
        "key handed over",
    ]
    if sum(nemesis.done.values()) >= 100:
        states += ["published again", *nemesis.names]
    return states


def _torment(nemesis: Nemesis, plan: Plan, released: Path, steps: Sequence[Step], say: Callable[[str], None]) -> None:
    """Release messages little by little, a fault after each part, and the steps of a rollout spread over the faults."""
    faults = plan.faults
    for number in range(1, faults + 1):
        _release(released, number / (faults + 1))
        time.sleep(0.2)
        nemesis.strike()
        for step in steps[len(steps) * (number - 1) // faults : len(steps) * number // faults]:
            step()
        if number % max(faults // 10, 1) == 0:
            say(f"{plan.store}: {number} of {faults} faults")
    _release(released, 1)


def _release(path: Path, part: float) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(str(int(part * 1_000_000)))
    fresh.replace(path)


def _settle(fleet: Fleet, verifier: Verifier, store: str, say: Callable[[str], None]) -> None:
    """Without faults everything comes to its end; what does not move for long is stuck."""
    left, moved = -1, time.monotonic()
    while time.monotonic() - moved < PATIENCE:
        unfinished = len(verifier.unfinished())
        if fleet.delivered and unfinished == 0:
            return
        state = unfinished * 2 + (not fleet.delivered)
        if state != left:
            left, moved = state, time.monotonic()
            say(f"{store}: {unfinished} unfinished")
        time.sleep(0.5)


class _Watch:
    """A thread that looks all the while."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        self._over = threading.Event()
        self._alarms: set[str] = set()
        self.glances = 0
        self._thread = threading.Thread(target=self._look, name="verifier", daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(1):
            with contextlib.suppress(Exception):  # the server may be down just now
                self._alarms.update(self._verifier.glance())
                self.glances += 1

    def end(self) -> list[str]:
        """Stop; what was wrong at any time."""
        self._over.set()
        self._thread.join()
        return sorted(self._alarms)


@contextlib.contextmanager
def _postgres(folder: Path, rng: random.Random, environment: dict[str, str]) -> Iterator[tuple[Fleet, Nemesis, str]]:
    with PostgresServer(durable=True) as server:
        direct = server.create_database(DATABASE)
        create(direct)
        with FaultProxy("127.0.0.1", server.port) as proxy:
            fleet = Fleet(direct.replace(f":{server.port}/", f":{proxy.port}/"), folder, environment)
            yield fleet, PostgresNemesis(fleet, rng, server, proxy), direct


@contextlib.contextmanager
def _mariadb(folder: Path, rng: random.Random, environment: dict[str, str]) -> Iterator[tuple[Fleet, Nemesis, str]]:
    with MariadbServer(durable=True) as server:
        direct = server.create_database(DATABASE)
        create(direct)
        with FaultProxy("127.0.0.1", server.port) as proxy:
            fleet = Fleet(direct.replace(f":{server.port}/", f":{proxy.port}/"), folder, environment)
            yield fleet, MariadbNemesis(fleet, rng, server, proxy), direct


@contextlib.contextmanager
def _sqlite(folder: Path, rng: random.Random, environment: dict[str, str]) -> Iterator[tuple[Fleet, Nemesis, str]]:
    with Disk(folder / "disk") as disk:
        url = f"sqlite:///{disk.path}/chaos.db"
        create(url)
        fleet = Fleet(url, folder, environment)
        yield fleet, SqliteNemesis(fleet, rng, disk), url
