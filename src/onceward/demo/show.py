"""The demo: duplicates, crashes and poison on a real database with real processes, and a count of what became of it.

Invariant: every number in the verdict is read by SQL from the shop's own tables and the inbox's, after the fact;
nothing that the demo remembers is in it.
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
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from onceward.demo import shop
from onceward.errors import ConfigurationError, OncewardError
from onceward.inbox import Inbox
from onceward.runtime.supervisor import Supervisor

log = logging.getLogger("onceward")

FILE = "demo.db"
LOG = "demo.log"
PATIENCE = timedelta(seconds=180)
LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Plan:
    """What the demo does."""

    messages: int = 3000
    processes: int = 3
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
class Scene:
    """The demo at one moment, for whoever watches."""

    verdict: Verdict
    running: int
    kills: int
    deaths: int
    seconds: float


class NotFinished(OncewardError):
    """The demo did not come to its end in time."""


def play(plan: Plan, folder: Path, show: Callable[[Scene], None]) -> Verdict:
    """Run the demo in a folder; `show` is called some times a second."""
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
        stage = Stage(plan, path, {**os.environ, shop.STORE: url}, output)
        with stage.workers(inbox) as supervisor:
            stage.watch(supervisor, show)
        return stage.count(sent=plan.messages)


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


@dataclass(frozen=True, slots=True)
class Stage:
    """Where the demo takes place: the database file, and what the processes get."""

    plan: Plan
    path: Path
    environment: Mapping[str, str]
    output: int

    @contextmanager
    def workers(self, inbox: Inbox) -> Iterator[Supervisor]:
        """Worker processes under a supervisor in a thread of its own."""

        def command(name: str) -> list[str]:
            options = ["--parent", str(os.getpid()), "--child", name]
            return [sys.executable, "-m", "onceward", "run", "onceward.demo.shop:inbox", *options]

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

    def watch(self, supervisor: Supervisor, show: Callable[[Scene], None]) -> None:
        """Let the senders deliver and the workers work, kill some of these on the way, until everything is settled."""
        plan = self.plan
        chance = random.Random(plan.seed)  # noqa: S311 - picks victims
        started = time.monotonic()
        senders = [self._sender(number) for number in range(shop.SENDERS)]
        kills = 0
        try:
            while True:
                seconds = time.monotonic() - started
                now = self.count()
                show(Scene(now, self._running(), kills, supervisor.deaths, seconds))
                due = plan.messages * (kills + 1) / (plan.kills + 1)
                # The poisonous ones have no effect, so the last kill must not wait for all.
                if kills < plan.kills and now.effects >= min(due, plan.messages - 3):
                    kills += self._kill_one(supervisor, chance)
                delivered = all(sender.poll() == 0 for sender in senders)
                if delivered and not now.unfinished and kills == plan.kills:
                    return
                if seconds > PATIENCE.total_seconds() or any(sender.poll() for sender in senders):
                    raise NotFinished(f"the demo did not finish; so far {now.line}\n{self._last_lines()}")
                time.sleep(LOOK_SECONDS)
        finally:
            for sender in senders:
                sender.kill()
                sender.wait()

    def _sender(self, number: int) -> subprocess.Popen[bytes]:
        words = map(str, (self.plan.seed, self.plan.messages, number))
        return subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "onceward.demo.shop", *words],
            env=self.environment,
            stdout=self.output,
            stderr=self.output,
        )

    def _kill_one(self, supervisor: Supervisor, chance: random.Random) -> int:
        """Kill -9 a worker, best one that has messages in hand; answers how many died."""
        pids = set(supervisor.pids)
        query = "SELECT DISTINCT w.pid FROM onceward_worker w JOIN onceward_queue q ON q.worker = w.id"
        busy = {pid for (pid,) in self._ask(query)} & pids
        victims = sorted(busy or pids)
        if not victims:
            return 0
        try:
            os.kill(chance.choice(victims), signal.SIGKILL)
        except ProcessLookupError:  # it has just died of something else
            return 0
        return 1

    def _running(self) -> int:
        return int(self._ask("SELECT count(*) FROM onceward_queue WHERE token IS NOT NULL")[0][0])

    def count(self, sent: int = 0) -> Verdict:
        """Read the verdict from the shop's tables and the inbox's, at one moment; `sent` is how many must be there."""
        return Verdict(*self._ask(COUNT, sent)[0])

    def _ask(self, query: str, *parameters: Any) -> list[Any]:
        with closing(sqlite3.connect(self.path)) as connection:
            return connection.execute(query, parameters).fetchall()

    def _last_lines(self) -> str:
        lines = self.path.with_name(LOG).read_text(errors="replace").splitlines()
        return "\n".join(lines[-10:])


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
