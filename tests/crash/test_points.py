"""A process dies at every point of every way through the code; afterwards everything is as if it had not.

R53, HZ-20, HZ-23, C01-C06, C20, C22, C38; invariants I1-I6, I9, I11, I13 and I16 of the hazard list. Each run takes a
sample of the points (four of each play, or ONCEWARD_CRASH_SAMPLE); ONCEWARD_CRASH_SAMPLE=all visits every one. The seed
is in the summary and in every failure; ONCEWARD_CRASH_SEED repeats a run.
"""

from __future__ import annotations

import itertools
import random
import re
import signal
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from onceward import Inbox
from onceward.errors import SchemaMissing
from onceward.steps.presence import take_over_lapsed, take_over_process
from onceward.stores.statements import load
from onceward.transact import perform
from tests.crash.conftest import TALLY
from tests.crash.points import Point, chosen, seed
from tests.crash.program import Job
from tests.crash.scenarios import SCENARIOS, Scenario, Stage
from tests.crash.service import Kind, Orders, Service, message
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.crash.ground import Ground
    from tests.crash.zygote import Child, Zygote

PLAYS = [(name, kind) for name, scenario in SCENARIOS.items() for kind in scenario.kinds]
STORES = ("sqlite", "postgres")
NO_HEARTBEAT = 3600
"""A lease in seconds, so long that no heartbeat comes between the requests that are counted."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """How the world goes on after a death."""

    by_supervisor: bool
    """The parent saw the process die; else its lease runs out."""
    redelivery_first: bool
    """The message comes again before anybody has taken over what the dead process held."""


RECOVERIES = [Recovery(a, b) for a in (True, False) for b in (True, False)]


class Play:
    """One scenario on one store with one kind of handler."""

    def __init__(self, name: str, kind: Kind, ground: Ground, zygote: Zygote) -> None:
        self.scenario: Scenario = SCENARIOS[name]
        self._name, self._kind, self._ground, self._zygote = name, kind, ground, zygote

    def perform(self, point: Point | None = None) -> Child:
        """Make the world and let a process play, to its end or to its death."""
        self._ground.reset()
        with self._service("sync") as service:
            self.scenario.prepare(Stage(self._ground, service, self._kill_a_worker))
        return self._zygote.run(self._job(point))

    def _job(self, point: Point | None) -> Job:
        return Job(
            url=self._ground.victims_url,
            act="rehearse",
            output=self._ground.new_output(),
            kind=self._kind,
            numbers={"lease": NO_HEARTBEAT, **self.scenario.numbers},
            point=(point.number, point.moment) if point else None,
            arguments={"scenario": self._name, "relay": self.scenario.relay},
        )

    def _service(self, kind: Kind) -> Service:
        """The service in the test process, which finishes what its victims left."""
        return Service(
            self._ground.url, kind, orders=Orders(folder=str(self._ground.folder), relay=self.scenario.relay)
        )

    def _kill_a_worker(self) -> None:
        job = Job(url=self._ground.victims_url, act="work", output=self._ground.new_output(), kind=self._kind)
        assert self._zygote.run(job).end() == -signal.SIGKILL
        self._ground.await_silence()

    def check_death(self, child: Child) -> None:
        """What holds before anybody has repaired anything: effects and "done" agree, promises are kept."""
        self._ground.await_silence()
        self._ground.check_at_rest()
        self.scenario.always(self._ground)
        statuses = self._ground.statuses()
        for said in child.said("receipt"):
            receipt = said["receipt"]
            mine = [name for name in statuses if name.partition("/")[2] == receipt["id"]]
            assert mine, f"lost after its receipt: {receipt}"
            if receipt["finished"]:
                assert {statuses[name] for name in mine} <= {"done", "skipped"}, f"not as it says: {receipt}"

    def recover(self, recovery: Recovery) -> None:
        """Let another process go on, and check that everything ends as it should."""
        ground, scenario = self._ground, self.scenario
        crashes = ground.charges("crash").total() + ground.lone_notes()
        dead = [name for (name,) in ground.rows("SELECT process FROM onceward_worker")]
        ground.let_leases_lapse()
        with self._service(self._kind) as service:
            if recovery.redelivery_first:
                scenario.act(service, _ignored)
            context, store = service.inbox.context, service.inbox.store
            if recovery.by_supervisor:
                for name in dead:
                    perform(store, partial(take_over_process, context, name, "seen"))
            else:
                perform(store, lambda: take_over_lapsed(context, 0))
            self._drain(service)
            if not recovery.redelivery_first:
                scenario.act(service, _ignored)
                self._drain(service)
            if scenario.aftercare is not None:
                scenario.aftercare(service)
                self._drain(service)
        ground.check_settled()
        assert ground.statuses() == dict(scenario.final)
        scenario.always(ground)
        scenario.check(ground)
        if scenario.errors is not None:
            assert ground.charges("error") == Counter(scenario.errors), "charged for failures"
        if scenario.crashes is not None:
            assert ground.charges("crash") == Counter(scenario.crashes), "charged for crashes"
        assert ground.charges("crash").total() == crashes, "charged for crashes"

    def _drain(self, service: Service) -> None:
        """Run what is due, and wait for what will be soon."""
        later = "SELECT count(*) FROM onceward_queue WHERE state = 'retry'"
        wait_until(lambda: service.drain() >= 0 and not self._ground.number(later), message="the last retry")


def _ignored(*_: object) -> None:
    pass


@pytest.fixture(params=STORES)
def stage(request: pytest.FixtureRequest) -> Ground:
    """The store that plays are given on."""
    found: Ground = request.getfixturevalue(f"{request.param}_stage")
    return found


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("name", "kind"), PLAYS, ids=[f"{kind}-{name}" for name, kind in PLAYS])
def test_a_process_may_die_anywhere(
    name: str, kind: Kind, stage: Ground, zygote: Zygote, record_property: Callable[[str, Any], None]
) -> None:
    """R53, C01-C06, C22, HZ-20, HZ-50: nothing lost, nothing doubled, nobody charged who was not alone."""
    drawn = seed()
    rng = random.Random(f"{drawn} {name} {kind} {stage.dialect}")
    play = Play(name, kind, stage, zygote)
    violations = []
    tally = Counter({"points": 0, "deaths": 0, "missed": 0, "violations": 0})

    def attempt(point: Point | None, requests: list[str]) -> Child:
        child = play.perform(point)
        recovery = rng.choice(RECOVERIES)
        try:
            _count_end(child, point, tally)
            play.check_death(child)
            play.recover(recovery)
        except AssertionError as error:
            place = f"{point} {requests[point.number - 1]!r}" if point else "no death"
            violations.append(f"{place}, {recovery}: {error}")
        return child

    requests: list[str] = attempt(None, []).hear("requests")["requests"]["names"]
    points = chosen(requests, rng)
    for point in points:
        attempt(point, requests)
    tally.update(points=2 * len(requests), violations=len(violations))
    record_property(TALLY, {**tally, "seed": drawn})
    found = "\n\n".join(violations)
    assert not violations, f"seed {drawn}: {len(violations)} of {len(points) + 1} plays\n{found}"


def _count_end(child: Child, point: Point | None, tally: Counter[str]) -> None:
    """It died where it should, or got through: where it looks for work by the clock, the last requests may vary."""
    assert child.end() in ((0, -signal.SIGKILL) if point else (0,)), f"it ended with {child.end()}\n{child.errors()}"
    if point:
        tally["deaths" if child.end() else "missed"] += 1


# Statements that no scenario can bring about: they need a handler that ends its transaction behind onceward's back.
UNREACHABLE = {"requeue_own"}
_WRITES = re.compile(r"\b(INSERT|UPDATE|DELETE)\b")


def test_every_statement_that_writes_can_be_died_at(stage: Ground, zygote: Zygote) -> None:
    """R53, HZ-34: a statement that is added without a scenario that reaches it fails here."""
    statements = load(stage.dialect, "onceward_")
    writing = {name for name, parts in statements.items() if any(_WRITES.search(part) for part in parts)}
    reached: set[str] = set()
    for name, scenario in SCENARIOS.items():
        child = Play(name, scenario.kinds[0], stage, zygote).perform()
        for request in child.hear("requests")["requests"]["names"]:
            reached |= set(re.findall(r"\w+", request))
    assert writing - reached == UNREACHABLE


@pytest.mark.timeout(3600)
def test_a_migration_may_die_anywhere(
    store_url: str, tmp_path: Path, zygote: Zygote, record_property: Callable[[str, Any], None]
) -> None:
    """R35, HZ-67: after a death between any two statements there is no schema or a whole one; the next migrates."""
    drawn = seed()
    outputs = (str(tmp_path / f"migration-{number}") for number in itertools.count())

    def migrate(point: Point | None) -> Child:
        _remove_everything(store_url)
        place = (point.number, point.moment) if point else None
        return zygote.run(Job(url=store_url, act="migrate", output=next(outputs), point=place))

    requests: list[str] = migrate(None).hear("requests")["requests"]["names"]
    points = chosen(requests, random.Random(drawn))
    for point in points:
        assert migrate(point).end() == -signal.SIGKILL
        with Service(store_url) as service:
            assert _is_whole_or_missing(service.inbox), point
            service.inbox.migrate()
            assert service.inbox.receive(**message("m1")).status == "accepted", point
            assert service.inbox.migrate() == []
    record_property(TALLY, {"points": 2 * len(requests), "deaths": len(points), "seed": drawn})


def _is_whole_or_missing(inbox: Inbox) -> bool:
    """Whoever starts before the next migration finds every table, or is told that there are none."""
    try:
        return inbox.stats().done == 0
    except SchemaMissing:
        return True


def _remove_everything(url: str) -> None:
    if url.startswith("sqlite"):
        for suffix in ("", "-wal", "-shm"):
            Path(url.removeprefix("sqlite:///") + suffix).unlink(missing_ok=True)
        return
    with psycopg.connect(url) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
