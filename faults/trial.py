"""One contender through all of it: `python -m faults.trial NAME SEED SCALE [OUTPUT]` prints what came of it as JSON."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from faults import effect, judge, lineup, plan
from faults.fleet import Fleet, Unusable
from faults.judge import Lists, Verdict
from faults.lineup import Contender
from faults.nemesis import Nemesis
from faults.place import Place
from faults.plan import Plan, Scale
from tests.processes import die_with
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer
from tests.servers.rabbitmq import RabbitServer
from tests.servers.redis import RedisServer

LOOK_SECONDS = 0.5
SHOW_SECONDS = 3.0
"""How often a tool is asked for its failed messages, once everything is booked."""


@dataclass
class Outcome:
    """What came of a trial."""

    contender: str
    verdict: Verdict
    strikes: dict[str, int]
    deliveries: int
    deaths: int
    attempts: int
    seconds: float
    """From the first delivery to the last payment that was booked for the first time."""
    load: float
    """Of the machine, in the minute when it ended."""
    versions: dict[str, str] = field(default_factory=dict)


def run(contender: Contender, seed: int, scale: Scale, output: Path | None = None) -> Outcome:
    """All of it."""
    planned = plan.make(seed, scale)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onceward-faults-")))
        database, restart, versions, servers = _servers(contender, stack, folder)
        if restart is None:
            planned = plan.without_restarts(planned)
        place = Place(
            database, str(folder), lease_seconds=contender.lease_seconds, settings=dict(contender.settings), **servers
        )
        _lay_out(planned, place)
        fleet = Fleet(contender, place)
        fleet.prepare()
        trial = Trial(contender, planned, place, fleet, Nemesis(fleet, contender.lease_seconds, restart or _nothing))
        try:
            outcome = trial.run()
        finally:
            fleet.end()
            if output is not None:
                shutil.copy(folder / "output", output)
        outcome.versions = versions | fleet.versions()
        return outcome


class Trial:
    """Releases, strikes, waits for the end, and has it judged."""

    def __init__(self, contender: Contender, planned: Plan, place: Place, fleet: Fleet, nemesis: Nemesis) -> None:
        self._contender, self._plan, self._place = contender, planned, place
        self._fleet, self._nemesis = fleet, nemesis
        self._needed = {payment.id for payment in planned.payments if payment.books}
        self._troubles = {payment.id for payment in planned.payments if not payment.books}
        self._began = self._booked_at = time.monotonic()
        self._booked = 0

    def run(self) -> Outcome:
        """From the first message to the verdict."""
        self._fleet.start()
        for number, strike in enumerate(self._plan.strikes, start=1):
            release(self._place, number / (len(self._plan.strikes) + 1))
            self._nemesis.strike(strike)
            self._look()
        release(self._place, 1)
        self._settle()
        before = self._tried()
        time.sleep(self._contender.lease_seconds + 1)  # for what a lease brings back once more
        at_rest = self._tried() == before
        seconds = self._booked_at - self._began
        deaths = self._fleet.deaths
        self._fleet.end()
        lists = Lists(**self._fleet.shown(held=True))
        tried = self._tried()
        verdict = judge.judge(self._plan, judge.read(self._place.database), tried, lists, at_rest=at_rest)
        return Outcome(
            self._contender.name,
            verdict,
            dict(self._nemesis.done),
            self._plan.copies,
            deaths,
            sum(tried.values()),
            round(seconds, 1),
            round(os.getloadavg()[0], 1),
        )

    def _settle(self) -> None:
        """Until everything is booked and every poison is shown as failed, or nothing has moved for long."""
        moved, last, asked = time.monotonic(), (-1, -1), 0.0
        shown: set[str] = set()
        while time.monotonic() - moved < self._contender.patience_seconds:
            booked = self._look()
            if booked and self._fleet.delivered and time.monotonic() - asked > SHOW_SECONDS:
                shown, asked = set(self._fleet.shown(held=False)["failed"]), time.monotonic()
                if self._troubles <= shown:
                    return
            state = (self._booked, len(shown))
            if state != last:
                last, moved = state, time.monotonic()
            if time.monotonic() - self._began > lineup.LONGEST_SECONDS:
                return
            time.sleep(LOOK_SECONDS)

    def _look(self) -> bool:
        """Whether every payment is booked; remembers when the last one was."""
        try:
            booked = len(self._needed & judge.read(self._place.database).booked)
        except Exception:  # noqa: BLE001 - whatever its driver says when the server is down just now
            return False
        if booked != self._booked:
            self._booked, self._booked_at = booked, time.monotonic()
        return booked == len(self._needed)

    def _tried(self) -> dict[str, int]:
        return judge.attempts(self._place.attempts)


def release(place: Place, part: float) -> None:
    """Let the sender go on so far."""
    fresh = Path(place.folder) / "released.new"
    fresh.write_text(str(part))
    fresh.replace(Path(place.folder) / "released")


def _lay_out(planned: Plan, place: Place) -> None:
    """The effect tables, and the files of the trial."""
    place.attempts.mkdir()
    plan.write(Path(place.folder) / "deliveries", planned.deliveries)
    release(place, 0)
    accounts = sorted({payment.account for payment in planned.payments})
    judge.run(place.database, effect.tables(urlsplit(place.database).scheme, accounts))


def _nothing() -> None:
    """There is no server to restart."""


def _servers(
    contender: Contender, stack: contextlib.ExitStack, folder: Path
) -> tuple[str, Callable[[], object] | None, dict[str, str], dict[str, str]]:
    """Start what a contender needs: the database's URL, how to restart it, versions, and the URLs of brokers."""
    restart: Callable[[], object] | None = None
    urls: dict[str, str] = {}
    versions: dict[str, str] = {}
    database = f"sqlite:///{folder}/effects.db"
    if "SQLite" in contender.servers:
        versions["SQLite"] = sqlite3.sqlite_version
    if "PostgreSQL" in contender.servers:
        server = stack.enter_context(PostgresServer())
        database, versions["PostgreSQL"] = server.create_database("effects"), server.version

        def restart() -> None:
            with contextlib.suppress(TimeoutError):  # a busy machine took too long to stop, and it was killed
                server.stop("immediate")
            server.start()

    if "MariaDB" in contender.servers:
        maria = stack.enter_context(MariadbServer())
        database, versions["MariaDB"], restart = maria.create_database("effects"), maria.version, maria.restart
    if "RabbitMQ" in contender.servers:
        rabbit = stack.enter_context(RabbitServer())
        urls["rabbitmq"], versions["RabbitMQ"] = rabbit.address, rabbit.version
    if "Redis" in contender.servers:
        redis = stack.enter_context(RedisServer())
        urls["redis"], versions["Redis"] = redis.address, redis.version
    return database, restart, versions, urls


def main(arguments: list[str]) -> int:
    """Run one trial; the outcome, or why there is none, is the last line."""
    name, seed, scale, *output = arguments
    die_with(os.getppid())
    (contender,) = (one for one in lineup.ALL if one.name == name)
    try:
        answer: dict[str, Any] = asdict(run(contender, int(seed), Scale(**json.loads(scale)), *map(Path, output)))
    except Unusable as error:
        answer = {"contender": name, "error": str(error)}
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
