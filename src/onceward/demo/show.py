"""The demo: two consumers of the same deliveries, through duplicates, kill -9 and poison, and a count of what became.

Invariant: every number in the verdict is read by SQL from the shop's own tables and the inbox's, after the fact;
nothing that the demo remembers is in it. It needs nothing but Python: no other package, no server, no network.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from onceward.demo import careless, shop
from onceward.demo.neighbour import Neighbour, Tally
from onceward.errors import ConfigurationError, OncewardError
from onceward.inbox import Inbox
from onceward.runtime.supervisor import Supervisor

log = logging.getLogger("onceward")

FILE = "demo.db"
LOG = "demo.log"
PATIENCE = timedelta(seconds=180)
LOOK_SECONDS = 0.1
SHOWN_EVENTS = 7
KILLED_SECONDS = 1.5
"""So long a killed process is shown."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the demo does."""

    messages: int = 2000
    processes: int = 2
    kills: int = 6
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the tables say."""

    accepted: int
    duplicates: int
    effects: int
    dead: int
    lost: int
    doubled: int
    unfinished: int
    wrong_balances: int

    @property
    def holds(self) -> bool:
        """Whether every accepted message took effect exactly once, or is visibly dead."""
        nothing_wrong = not (self.lost or self.doubled or self.unfinished or self.wrong_balances)
        return nothing_wrong and self.effects + self.dead == self.accepted

    @property
    def line(self) -> str:
        """The last line of the demo."""
        return (
            f"demo: accepted {self.accepted}, duplicates {self.duplicates}, effects {self.effects}, "
            f"dead {self.dead}, lost {self.lost}, doubled {self.doubled}"
        )


@dataclass(frozen=True, slots=True)
class Result:
    """Both consumers at the end."""

    verdict: Verdict
    careless: Tally


@dataclass(frozen=True, slots=True)
class Scene:
    """The demo at one moment, for those who watch."""

    verdict: Verdict
    careless: Tally
    workers: Mapping[int, int] = field(default_factory=dict)
    """The worker processes of onceward, and how many messages each has in hand."""
    neighbours: Mapping[int, int] = field(default_factory=dict)
    """The careless worker processes, likewise."""
    killed: frozenset[int] = frozenset()
    """Processes of onceward that were killed a moment ago."""
    neighbours_killed: frozenset[int] = frozenset()
    """Careless ones likewise."""
    kills: int = 0
    deaths: int = 0
    seconds: float = 0.0
    events: tuple[str, ...] = ()
    """What has happened last."""


class NotFinished(OncewardError):
    """The demo did not come to its end in time."""


Show = Callable[[Scene], None]
Beside = Callable[[Inbox], AbstractContextManager[Any]]


def play(plan: Plan, folder: Path, show: Show, beside: Beside = nullcontext) -> Result:
    """Run the demo in a folder; `show` is called some times a second, `beside` goes on around it."""
    path = folder.resolve() / FILE
    if path.exists():
        raise ConfigurationError(f"{path} exists already; choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    url = f"sqlite:///{path}"
    with Inbox(url, service="shop", settings=shop.inbox.settings) as inbox, _log(folder / LOG) as output:
        inbox.migrate()
        with inbox.transaction() as connection:
            for table in shop.TABLES:
                connection.execute(table)
        neighbour = Neighbour(path.with_name(careless.FILE), plan.processes, output)
        environment = {**os.environ, shop.STORE: url, shop.CARELESS: str(neighbour.path)}
        stage = Stage(plan, path, environment, output)
        with beside(inbox):
            with neighbour.workers(), stage.workers(inbox) as supervisor:
                stage.watch(supervisor, neighbour, show)
            return Result(stage.count(sent=plan.messages), neighbour.tally(plan.messages))


@contextmanager
def _log(path: Path) -> Iterator[int]:
    """A file for everything that senders, workers and supervisor log, so that the screen stays free."""
    handler = logging.FileHandler(path)
    log.addHandler(handler)
    log.propagate, before = False, log.propagate
    try:
        with path.open("ab") as output:
            yield output.fileno()
    finally:
        log.propagate = before
        log.removeHandler(handler)
        handler.close()


@dataclass(slots=True)
class Stage:
    """Where the demo takes place: the database file, and what the processes get."""

    plan: Plan
    path: Path
    environment: Mapping[str, str]
    output: int
    started: float = field(default_factory=time.monotonic)
    events: list[str] = field(default_factory=list)
    held: dict[int, frozenset[int]] = field(default_factory=dict)
    """What killed workers had in hand, until others have it."""
    killed: dict[int, float] = field(default_factory=dict)

    @contextmanager
    def workers(self, inbox: Inbox) -> Iterator[Supervisor]:
        """Worker processes under a supervisor in a thread of its own."""

        def command(name: str) -> list[str]:
            return [sys.executable, "-m", "onceward.demo.shop", "work", name, str(os.getpid())]

        supervisor = Supervisor(
            inbox.context,
            inbox.store,
            command,
            processes=self.plan.processes,
            longest_pause=timedelta(seconds=0.2),
            environment=self.environment,
            output=self.output,
        )
        thread = threading.Thread(target=supervisor.run, name="onceward-demo-supervisor")
        thread.start()
        try:
            yield supervisor
        finally:
            supervisor.stop()
            thread.join()

    def watch(self, supervisor: Supervisor, neighbour: Neighbour, show: Show) -> None:
        """Let the senders deliver and the workers work, kill some of these on the way, until everything is settled."""
        plan = self.plan
        chance = random.Random(plan.seed)  # noqa: S311 - picks victims
        self.started = time.monotonic()
        senders = [self._sender(number) for number in range(shop.SENDERS)]
        kills = 0
        try:
            while True:
                now = self.count()
                neighbour.look()
                self._follow(supervisor)
                show(self._scene(now, supervisor, neighbour, kills))
                due = plan.messages * (kills + 1) / (plan.kills + 1)
                # The poisonous ones have no effect, so the last kill must not wait for all.
                if kills < plan.kills and now.effects >= min(due, plan.messages - 3):
                    kills += self._kill_one(supervisor, neighbour, chance)
                delivered = all(sender.poll() == 0 for sender in senders)
                settled = not now.unfinished and not neighbour.backlog
                if delivered and settled and kills == plan.kills:
                    return
                late = time.monotonic() - self.started > PATIENCE.total_seconds()
                if late or any(sender.poll() for sender in senders):
                    raise NotFinished(f"the demo did not finish; so far {now.line}\n{self._last_lines()}")
                time.sleep(LOOK_SECONDS)
        finally:
            for sender in senders:
                sender.kill()
                sender.wait()

    def _scene(self, now: Verdict, supervisor: Supervisor, neighbour: Neighbour, kills: int) -> Scene:
        query = (
            "SELECT w.pid, count(q.token) FROM onceward_worker w LEFT JOIN onceward_queue q ON q.worker = w.id "
            "GROUP BY w.pid ORDER BY w.pid"
        )
        pids = set(supervisor.pids)
        seconds = time.monotonic() - self.started
        return Scene(
            verdict=now,
            careless=neighbour.tally(),
            workers={pid: held for pid, held in self._ask(query) if pid in pids},
            neighbours=neighbour.held(),
            killed=frozenset(pid for pid, at in self.killed.items() if seconds - at < KILLED_SECONDS),
            neighbours_killed=frozenset(
                pid for pid, at in neighbour.killed.items() if time.monotonic() - at < KILLED_SECONDS
            ),
            kills=kills,
            deaths=supervisor.deaths,
            seconds=seconds,
            events=tuple(self.events[-SHOWN_EVENTS:]),
        )

    def _sender(self, number: int) -> subprocess.Popen[bytes]:
        words = map(str, (self.plan.seed, self.plan.messages, number))
        return subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "onceward.demo.shop", "deliver", *words],
            env=self.environment,
            stdout=self.output,
            stderr=self.output,
        )

    def _kill_one(self, supervisor: Supervisor, neighbour: Neighbour, chance: random.Random) -> int:
        """Kill -9 a worker of each side, best one that has messages in hand; returns how many of onceward's died."""
        pids = set(supervisor.pids)
        query = "SELECT w.pid, q.seq FROM onceward_worker w JOIN onceward_queue q ON q.worker = w.id"
        held: dict[int, set[int]] = {}
        for pid, seq in self._ask(query):
            held.setdefault(pid, set()).add(seq)
        victims = sorted(held.keys() & pids or pids)
        if not victims:
            return 0
        victim = chance.choice(victims)
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:  # it has just died of something else
            return 0
        mine = self.held[victim] = frozenset(held.get(victim, ()))
        self._tell(f"onceward: kill -9 worker {victim}, {_messages(len(mine))} in hand")
        self.killed[victim] = time.monotonic() - self.started
        if (other := neighbour.kill_one(chance)) is not None:
            self._tell(f"careless: kill -9 worker {other}, its delivery comes again")
        return 1

    def _follow(self, supervisor: Supervisor) -> None:
        """Tell where the messages of killed workers went."""
        pids = set(supervisor.pids)
        for victim, seqs in list(self.held.items()):
            if victim in pids:
                continue
            query = "SELECT count(*) FROM onceward_queue q JOIN onceward_worker w ON w.id = q.worker WHERE w.pid = ?"
            if not self._ask(query, victim)[0][0]:
                del self.held[victim]
                if seqs:
                    self._tell(
                        f"onceward: {_messages(len(seqs))} of worker {victim} rolled back, and moved to the others"
                    )

    def _tell(self, event: str) -> None:
        self.events.append(f"{time.monotonic() - self.started:5.1f} s  {event}")

    def count(self, sent: int = 0) -> Verdict:
        """Read the verdict from the shop's tables and the inbox's, at one moment; `sent` is how many must be there."""
        return Verdict(*self._ask(COUNT, sent)[0])

    def _ask(self, query: str, *parameters: Any) -> list[Any]:
        with closing(sqlite3.connect(self.path)) as connection:
            return connection.execute(query, parameters).fetchall()

    def _last_lines(self) -> str:
        lines = self.path.with_name(LOG).read_text(errors="replace").splitlines()
        return "\n".join(lines[-10:])


def _messages(count: int) -> str:
    return f"{count} message" if count == 1 else f"{count} messages"


COUNT = """
SELECT
    (SELECT count(*) FROM onceward_ledger),
    (SELECT coalesce(sum(copies), 0) FROM onceward_duplicate),
    (SELECT count(*) FROM payment),
    (SELECT count(*) FROM onceward_queue WHERE state = 'dead'),
    -- Lost: finished for the inbox and yet without an effect, or acknowledged to a sender and yet not in the ledger.
    (SELECT count(*) FROM onceward_body b
     WHERE NOT EXISTS (SELECT 1 FROM onceward_queue q WHERE q.seq = b.seq)
       AND b.id NOT IN (SELECT message FROM payment))
    + max(0, ? - (SELECT count(*) FROM onceward_ledger)),
    (SELECT count(*) - count(DISTINCT message) FROM payment),
    (SELECT count(*) FROM onceward_queue WHERE state <> 'dead'),
    (SELECT count(*) FROM account a
     WHERE a.balance <> (SELECT sum(p.amount) FROM payment p WHERE p.account = a.name))
"""
