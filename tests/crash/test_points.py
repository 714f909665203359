"""Something goes wrong at every point of every way through the code; afterwards everything is as if it had not.

R53, HZ-20, HZ-23, HZ-26, C01-C06, C20, C22, C38; invariants I1-I6, I9, I11, I13 and I16 of the hazard list. Each run
takes a sample: some of the plays, and of each one point and fault (or ONCEWARD_CRASH_SAMPLE); ONCEWARD_CRASH_SAMPLE=all
takes every one. The seed is in the summary and in every failure; ONCEWARD_CRASH_SEED repeats a run.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import psycopg
import pytest

from onceward import Inbox
from onceward.errors import SchemaMissing, SchemaOutdated, StoreError
from onceward.runtime.runner import perform
from onceward.steps.membership import take_over_lapsed, take_over_process
from onceward.stores.migrate import COMMITS_DDL
from onceward.stores.mysql.address import Address
from onceward.stores.mysql.guard import PlainConnection
from onceward.stores.statements import load
from tests.crash.conftest import TALLY
from tests.crash.ground import dialect_of
from tests.crash.points import (
    FAULTS,
    Boundary,
    Fault,
    Point,
    boundaries,
    faults_at,
    in_shard,
    sample,
    seed,
    takes_all,
)
from tests.crash.program import Job
from tests.crash.retention_scenarios import REPERTOIRE
from tests.crash.scenarios import Scenario, Stage
from tests.crash.service import Kind, Orders, Service, message, settings
from tests.stores import with_mariadb
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.crash.ground import Ground
    from tests.crash.zygote import Zygote
    from tests.nursery import Child

INTRODUCTIONS = ("receive new", "handle one", "process", "fan out", "deregister with a claim")
REFUSED = "process in own transaction"
"""What begins with this is refused on MySQL."""
DIAGONAL = (("sqlite", "sync"), ("postgres", "async"))
SOME = {"sqlite and postgres": 60, "mariadb": 4}
"""How many are taken of a sample; on MariaDB a play takes longest."""
CHOSEN = os.environ.get("ONCEWARD_CRASH_STORE")
"""The only store, if one is named; then all its plays are taken."""


def _plays(stores: Sequence[str], some: int) -> list[tuple[str, str, Kind]]:
    """Which are taken of those on some stores: all of them, or a sample."""
    found = [
        (store, name, kind)
        for store in stores
        for name, scenario in REPERTOIRE.items()
        for kind in scenario.kinds
        # A sample takes both kinds; on both stores where there is but one kind, or all are wanted.
        if takes_all() or len(scenario.kinds) == 1 or stores == ("mariadb",) or (store, kind) in DIAGONAL
        if not (store == "mariadb" and name.startswith(REFUSED))
    ]
    return found if takes_all() or CHOSEN else sorted(random.Random(seed()).sample(found, some))


PLAYS = [
    play
    for names, some in SOME.items()
    for play in _plays(tuple(names.split(" and ")), some)
    if CHOSEN in (None, play[0])
]
NO_HEARTBEAT = 3600
"""A lease in seconds, so long that no heartbeat comes between the requests that are counted."""


Who = Literal["another", "same", "redelivery"]
RECOVERIES: tuple[Who, Who, Who] = ("another", "same", "redelivery")
"""Who goes on after a fault: another worker; the same one, started anew where it was killed; or first the message comes
again, before anybody has taken over what was held."""


@dataclass(frozen=True, slots=True)
class Injection:
    """A fault at a point, and how the world goes on after it."""

    point: Point
    fault: Fault
    who: Who
    by_supervisor: bool
    """A parent saw the process die; else its lease runs out."""


class Play:
    """One scenario on one store with one kind of handler."""

    def __init__(self, name: str, kind: Kind, ground: Ground, zygote: Zygote) -> None:
        self.scenario: Scenario = REPERTOIRE[name]
        self._name, self._kind, self._ground, self._zygote = name, kind, ground, zygote

    def perform(self, injection: Injection | None = None) -> Child:
        """Make the world and let a process play, to its end or to its death."""
        self._ground.reset()
        with self._service("sync") as service:
            self.scenario.prepare(Stage(self._ground, service, self._kill_a_worker))
        return self._zygote.run(self._job(injection))

    def _job(self, injection: Injection | None) -> Job:
        again = injection is not None and injection.who == "same" and injection.fault != "kill"
        return Job(
            url=self._ground.victims_url,
            act="perform",
            output=self._ground.new_output(),
            kind=self._kind,
            numbers={"lease": NO_HEARTBEAT, **self.scenario.numbers},
            point=(injection.point.number, injection.point.moment) if injection else None,
            fault=injection.fault if injection else "kill",
            arguments={"scenario": self._name, "relay": self.scenario.relay, "again": again}
            | {"blobs": self.scenario.blobs},
        )

    def _service(self, kind: Kind) -> Service:
        """The service in the test process, which finishes what its victims left."""
        return Service(
            self._ground.url,
            kind,
            numbers=settings(**self.scenario.numbers),
            orders=Orders(folder=str(self._ground.folder), relay=self.scenario.relay, blobs=self.scenario.blobs),
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
        for receipt in child.said("receipt"):
            mine = [name for name in statuses if name.partition("/")[2] == receipt["id"]]
            assert mine, f"lost after its receipt: {receipt}"
            if receipt["finished"]:
                assert {statuses[name] for name in mine} <= {"done", "skipped", "imported"}, (
                    f"not as it says: {receipt}"
                )

    def recover(self, injection: Injection) -> None:
        """Let somebody go on, and check that everything ends as it should."""
        ground, scenario = self._ground, self.scenario
        crashes = ground.charges("crash").total() + ground.lone_claims()
        dead = [name for (name,) in ground.rows("SELECT process FROM onceward_worker")]
        ground.let_leases_lapse()
        with self._service(self._kind) as service:
            if injection.who == "redelivery":
                scenario.act(service, _ignored)
            context, store = service.inbox.context, service.inbox.store
            if injection.by_supervisor:
                for name in dead:
                    perform(store, partial(take_over_process, context, name, "seen"))
            else:
                perform(store, lambda: take_over_lapsed(context, 0))
            if injection.who == "same" and injection.fault == "kill":
                assert self._zygote.run(self._job(None)).end() == 0, "the same program, once more"
            self._drain(service)
            if injection.who == "another":
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


@pytest.fixture
def stage(request: pytest.FixtureRequest) -> Ground:
    """The store that plays are given on."""
    found: Ground = request.getfixturevalue(f"{request.param}_stage")
    return found


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("stage", "name", "kind"), PLAYS, indirect=["stage"], ids=["-".join(play) for play in PLAYS])
def test_anything_may_go_wrong_anywhere(
    name: str, kind: Kind, stage: Ground, zygote: Zygote, record_property: Callable[[str, Any], None]
) -> None:
    """R53, C01-C06, C22, HZ-20, HZ-50: nothing lost, nothing doubled, nobody charged who was not alone."""
    drawn, whole = seed(), f"{stage.dialect} {name} {kind}"
    rng = random.Random(f"{drawn} {whole}")
    play = Play(name, kind, stage, zygote)
    requests: list[str] = play.perform().hear("requests")["names"]
    found = [
        one
        for one in boundaries(requests, stage.dialect, introduced=name in INTRODUCTIONS)
        if in_shard(whole, one.number)
    ]
    injections = [_injection(one, fault, f"{drawn} {whole}") for one in found for fault in faults_at(one)]
    violations = []
    tally = Counter({"points": len(found), "runs": 0, "deaths": 0})
    for injection in sample(injections, rng):
        child = play.perform(injection)
        tally["runs"] += 1
        tally["deaths"] += child.end() == -signal.SIGKILL
        try:
            _check_end(child, injection)
            play.check_death(child)
            play.recover(injection)
        except (AssertionError, StoreError, TimeoutError) as error:
            where = f"at {requests[injection.point.number - 1]!r}, {injection}"
            violations.append(f"{where}: {error}\n{child.said('told')}")
    record_property(TALLY, {**tally, "violations": len(violations), "seed": drawn, "store": stage.dialect})
    assert not violations, f"seed {drawn}: {len(violations)} of {tally['runs']}\n" + "\n\n".join(violations)


def _injection(boundary: Boundary, fault: Fault, drawn: str) -> Injection:
    """A fault there and how the world goes on, by seed and place alone: the same in a shard as in the whole."""
    recovery = RECOVERIES[(boundary.number + FAULTS.index(fault)) % len(RECOVERIES)]
    by_supervisor = random.Random(f"{drawn} {boundary.number} {fault}").random() < 0.5
    return Injection(boundary.point(fault), fault, recovery, by_supervisor)


def _check_end(child: Child, injection: Injection) -> None:
    """It died where it should, or got through: where it looks for work by the clock, the last requests may vary."""
    expected = [0, -signal.SIGKILL] if injection.fault == "kill" else [0]
    if injection.fault == "cancel" and child.errors.rstrip().endswith("KeyboardInterrupt"):
        expected.append(1)  # it came while the program was closing, where nobody is left to catch it
    assert child.end() in expected, f"it ended with {child.end()}\n{child.errors}"


# What no scenario can bring about: it needs a handler that ends its transaction behind onceward's back, or a database
# that refuses a row (tests/contract/test_refused_messages.py).
# `retry_revised` is for messages that wait for another try, and what recovers here makes those due at once
# (the suite of stores edits them).
UNREACHABLE = {"requeue_own", "mark_refused", "retry_revised"}
# What only comes after a fault. Most of it only looks: each lost answer of a finish (of a poll) leads to it; the way
# back in a caller's transaction is taken where the database fails inside `process(tx=...)`.
AFTER_A_FAULT = {"poll_state", "ages", "rollback_inside"}
# What is asked of a handler that runs long, of one that lost its answer, or of neither: time decides.
NOW_AND_THEN = {"still_claimed"}
# What only looks, for people; nothing follows from it. On PostgreSQL `begin_limits` is the beginning of a transaction.
# `debris` lists what a measurement leaves behind in tables of its own.
REPORTS = {
    *(
        "ahead",
        "apart",
        "record_use",
        "audit",
        "begin_limits",
        "blocked_keys",
        "catalog_holders",
        "dead_groups",
        "debris",
        "failing",
        "find_id",
        "history",
    ),
    *(
        "illegal",
        "keyless",
        "list_finished",
        "oldest",
        "positions",
        "refused",
        "running",
        "search",
        "settings",
        "sizes",
        "sources",
        "stats",
        "traffic",
    ),
}
# Whether a person is still signed in to the dashboard: no message depends on it, and each is one statement or two that
# may be repeated.
SESSIONS = {"forget_sessions", "sign_out", "signed_out"}
# What MySQL refuses, handlers in a caller's transaction, and what it has not, partitions.
OF_OTHERS = {"begin_inside", "commit_inside", "release_savepoint", "dequeue", "advance_inline", "drop_partition"}
PARTITIONS = "prune a partition"
"""The only scenario that is another one on PostgreSQL, where bodies have partitions."""


def test_every_statement_gets_a_fault(sqlite_stage: Ground, postgres_stage: Ground, zygote: Zygote) -> None:
    """R53, HZ-34: a statement that is added without a scenario that reaches it fails here.

    The steps are the same on each store, and so are the names of their statements.
    """
    reached = _reached([(sqlite_stage, name) for name in REPERTOIRE] + [(postgres_stage, PARTITIONS)], zygote)
    unreached = set(load("sqlite", "onceward_")) - reached - NOW_AND_THEN
    expected = UNREACHABLE | AFTER_A_FAULT | REPORTS | SESSIONS
    assert unreached == expected, f"without a fault: {unreached - expected}; with one: {expected - unreached}"


if CHOSEN == "mariadb":  # it plays every scenario once, without a fault

    def test_every_statement_of_mysql_gets_a_fault(mariadb_stage: Ground, zygote: Zygote) -> None:
        """R53: the same of the texts that MySQL has for itself; a message has no partition there."""
        reached = _reached([(mariadb_stage, name) for name in REPERTOIRE if not name.startswith(REFUSED)], zygote)
        expected = UNREACHABLE | AFTER_A_FAULT | REPORTS | SESSIONS
        unreached = set(load("mysql", "onceward_")) - reached - NOW_AND_THEN
        assert unreached == expected | OF_OTHERS


def _reached(plays: Sequence[tuple[Ground, str]], zygote: Zygote) -> set[str]:
    """The statements that get a fault in some plays."""
    reached: set[str] = set()
    for stage, name in plays:
        child = Play(name, REPERTOIRE[name].kinds[0], stage, zygote).perform()
        requests = child.hear("requests")["names"]
        for boundary in boundaries(requests, stage.dialect, introduced=name in INTRODUCTIONS):
            reached.add(boundary.path[-1].partition(".")[0])
    return reached


@pytest.mark.timeout(3600)
@with_mariadb
def test_anything_may_go_wrong_in_a_migration(
    store_url: str, tmp_path: Path, zygote: Zygote, record_property: Callable[[str, Any], None]
) -> None:
    """R35, HZ-67: whatever happens between two statements there is no schema or a whole one; the next migrates.

    Where DDL commits by itself, a program that meets what was left is told to migrate, and the next migrator goes on.
    """
    drawn = seed()
    rng = random.Random(drawn)
    outputs = (str(tmp_path / f"migration-{number}") for number in itertools.count())

    def migrate(injection: tuple[Boundary, Fault] | None, *, again: bool = False) -> Child:
        _remove_everything(store_url)
        point = injection[0].point(injection[1]) if injection else None
        job = Job(
            url=store_url,
            act="migrate",
            output=next(outputs),
            point=(point.number, point.moment) if point else None,
            fault=injection[1] if injection else "kill",
            arguments={"again": again},
        )
        return zygote.run(job)

    requests: list[str] = migrate(None).hear("requests")["names"]
    places = [(number, request) for number, request in enumerate(requests, start=1) if in_shard("migration", number)]
    injections = [(Boundary(number, (request,)), fault) for number, request in places for fault in FAULTS]
    deaths = 0
    chosen = sample(injections, rng)
    for injection in chosen:
        again = injection[1] != "kill" and rng.random() < 0.5
        child = migrate(injection, again=again)
        assert child.end() == (-signal.SIGKILL if injection[1] == "kill" else 0), (injection, child.errors)
        deaths += injection[1] == "kill"
        with Service(store_url) as service:
            assert _is_whole_or_missing(service.inbox), injection
            applied = service.inbox.migrate()
            assert not (again and applied), f"the same process could not go on: {injection}"
            assert service.inbox.receive(**message("m1")).status == "accepted", injection
            assert service.inbox.migrate() == []
    tally = {"points": len(places), "runs": len(chosen), "deaths": deaths, "violations": 0}
    record_property(TALLY, {**tally, "seed": drawn, "store": dialect_of(store_url)})


def _is_whole_or_missing(inbox: Inbox) -> bool:
    """Whoever starts before the next migration finds every table, or is told that there are none."""
    try:
        return inbox.admin.stats().done == 0
    except SchemaMissing:
        return True
    except SchemaOutdated:  # some of the migrations, each of them whole
        return inbox.store.dialect in COMMITS_DDL


def _remove_everything(url: str) -> None:
    if url.startswith("sqlite"):
        for suffix in ("", "-wal", "-shm"):
            Path(url.removeprefix("sqlite:///") + suffix).unlink(missing_ok=True)
        return
    if url.startswith("mysql"):
        with closing(PlainConnection(**Address.of(url).arguments())) as server:
            for name, kind in server.execute("SHOW FULL TABLES").fetchall():
                server.execute(f"DROP {'VIEW' if kind == 'VIEW' else 'TABLE'} {name}")
        return
    with psycopg.connect(url) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
