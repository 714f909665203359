"""The database server is killed under load and comes back; everybody waits and goes on."""

from __future__ import annotations

import random
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from onceward.runtime.runner import perform
from onceward.steps.membership import take_over_lapsed
from tests.crash.conftest import TALLY
from tests.crash.fleet import Fleet
from tests.crash.ground import Ground
from tests.crash.points import seed
from tests.crash.program import Job
from tests.crash.scenarios import make_store_first
from tests.crash.service import KINDS, Kind, Service, message
from tests.crash.test_kills import Load
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.crash.zygote import Zygote
    from tests.nursery import Child
    from tests.servers import PostgresServer

MESSAGES = 300
CRASHES = 3
SENDERS = 2


@pytest.mark.parametrize("kind", KINDS)
def test_the_server_is_killed_under_load(
    kind: Kind,
    private_postgres: PostgresServer,
    tmp_path: Path,
    zygote: Zygote,
    record_property: Callable[[str, Any], None],
) -> None:
    """R12, R13, R23, HZ-23, HZ-36, C15, C23: the same processes go on; one effect each, in order, nobody is charged."""
    drawn = seed()
    rng = random.Random(f"{drawn} {kind}")
    load = Load(rng, MESSAGES)
    with closing(Ground(private_postgres.create_database("load"), tmp_path)) as ground:
        fleet = Fleet(ground, zygote, kind, {"lease": 60, "group": 20}, {"concurrency": 2})
        fleet.launch(3)
        for worker in fleet.workers:
            fleet.await_registration(worker)
        senders = _send(ground, zygote, kind, load)
        for crash in range(CRASHES):
            passed = (crash + rng.random()) * len(load.names) / (CRASHES + 1)
            wait_until(lambda: _effects(ground) >= passed, timeout=60, message=f"{passed:.0f} effects")  # noqa: B023
            private_postgres.kill()
            private_postgres.start()
            ground.reconnect()
        for sender in senders:
            assert sender.end() == 0, sender.errors
        wait_until(lambda: not _unfinished(ground), timeout=60, message="the end of all work")
        for worker in fleet.workers:
            assert not worker.gone, f"a worker did not live through it:\n{worker.errors}"
        fleet.retire()
        ground.check_settled()
        assert ground.statuses() == {f"default/{name}": "done" for name in load.names}
        for account, positions in ground.positions().items():
            assert positions == sorted(positions), f"{account}, seed {drawn}"
        assert ground.charges("error") == {}
        assert ground.charges("crash") == {}
        _check_receipts(senders, load)
    record_property(TALLY, {"server crashes": CRASHES, "seed": drawn})


def _effects(ground: Ground) -> int:
    return ground.number("SELECT count(*) FROM effect")


def _send(ground: Ground, zygote: Zygote, kind: Kind, load: Load) -> list[Child]:
    """Processes that deliver, each the whole load: so every message comes at least twice, and again after errors."""
    return [
        zygote.start(
            Job(
                url=ground.victims_url,
                act="deliver",
                output=ground.new_output(),
                kind=kind,
                arguments={"mode": "receive", "messages": load.deliveries},
            )
        )
        for _ in range(SENDERS)
    ]


def _check_receipts(senders: list[Child], load: Load) -> None:
    """Each message was accepted from one sender, and each sender was told something about each of its messages.

    A sender whose answer was lost takes for its own what was stored while it asked (D51). That may have been the other
    sender's, so at each crash one message of each, the one it had in hand, may have been accepted from both.
    """
    accepted: set[str] = set()
    twice: set[str] = set()
    for sender in senders:
        receipts = sender.said("receipt")
        assert [receipt["id"] for receipt in receipts] == [one["id"] for one in load.deliveries]
        mine = {receipt["id"] for receipt in receipts if receipt["status"] == "accepted"}
        twice |= accepted & mine
        accepted |= mine
    assert len(twice) <= CRASHES * SENDERS, f"accepted from both senders: {sorted(twice)}"


@pytest.mark.parametrize("mood", ["quick", "stored first"])
@pytest.mark.parametrize("kind", KINDS)
def test_inline_callers_live_through_a_crash_of_the_server(
    kind: Kind, mood: str, private_postgres: PostgresServer, tmp_path: Path, zygote: Zygote
) -> None:
    """R03, R23, HZ-23: `process` raises StoreUnavailable while the server is away; after the redelivery, one effect.

    Stored first means: after the death of a process that worked inline, when messages are stored and claimed first.
    """
    messages = [message(f"m{n}") for n in range(90)]
    with closing(Ground(private_postgres.create_database("load"), tmp_path)) as ground:
        if mood == "stored first":
            with Service(ground.url) as service:
                make_store_first(service.inbox)
        callers = [
            zygote.start(
                Job(
                    url=ground.victims_url,
                    act="deliver",
                    output=ground.new_output(),
                    kind=kind,
                    arguments={"mode": "process", "messages": messages[:: -1 if backwards else 1]},
                )
            )
            for backwards in (False, True)
        ]
        for passed in (20, 60):
            wait_until(lambda: _effects(ground) >= passed, timeout=60, message=f"{passed} effects")  # noqa: B023
            private_postgres.kill()
            private_postgres.start()
            ground.reconnect()
        for caller in callers:
            assert caller.end() == 0, caller.errors
        with Service(ground.url, kind) as service:  # what a caller had claimed when the server died
            wait_until(lambda: service.drain() >= 0 and not _unfinished(ground), message="the rest")
            ground.let_leases_lapse()  # of one that ended while the server was away, and could not deregister
            perform(service.inbox.store, lambda: take_over_lapsed(service.inbox.context, 0))
        ground.check_settled()
        assert ground.statuses() == {f"default/{one['id']}": "done" for one in messages}
        assert ground.charges("error") == {}
        assert ground.charges("crash") == {}


def test_an_outage_longer_than_the_lease_charges_no_message(
    private_postgres: PostgresServer, tmp_path: Path, zygote: Zygote
) -> None:
    """R13, HZ-32, HZ-52, I6: nobody could renew a lease; that is no sign that anybody has died."""
    lease = 1.0
    with closing(Ground(private_postgres.create_database("load"), tmp_path)) as ground:
        fleet = Fleet(ground, zygote, "sync", {"lease": lease, "group": 1})
        fleet.launch(3)
        with Service(ground.url) as service:
            service.inbox.receive_many([message(f"m{n}", do={"hold": "before"}) for n in range(3)])
        for worker in fleet.workers:
            worker.hear("holding")
        private_postgres.kill()
        over = time.monotonic() + 2 * lease
        wait_until(lambda: time.monotonic() > over, message="every lease to be over")
        private_postgres.start()
        ground.reconnect()
        # Each has renewed its lease since, or was declared dead and has registered anew.
        wait_until(lambda: len(_living(ground)) == 3, message="the workers to come back")
        (tmp_path / "release").touch()
        wait_until(lambda: not _unfinished(ground), timeout=60, message="the end of all work")
        fleet.retire()
        ground.check_settled()
        assert set(ground.statuses().values()) == {"done"}
        assert ground.charges("error") == {}
        assert ground.charges("crash") == {}


def _unfinished(ground: Ground) -> int:
    return ground.number("SELECT count(*) FROM onceward_queue")


def _living(ground: Ground) -> set[int]:
    """The processes whose lease is not over."""
    return {pid for (pid,) in ground.rows("SELECT pid FROM onceward_worker")} - set(ground.lapsed())
