"""A process that is stopped for longer than its lease and then goes on, believing that nothing has happened."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.crash.fleet import Fleet
from tests.crash.service import Kind, Service, message
from tests.waiting import wait_until

if TYPE_CHECKING:
    from typing import Any

    from onceward.message import Arguments
    from tests.crash.ground import Ground
    from tests.crash.zygote import Zygote
    from tests.nursery import Child

LEASE = 1.0
DONE = {"default/m1": "done"}

# Where it stops: what the message asks its handler to do, and before which requests of the worker.
PLACES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "before the first statement": ({"pause": "before"}, []),
    "after the effect": ({"pause": "after"}, []),
    "before finish": ({}, ["finish"]),
    "before commit": ({}, ["finish", "commit"]),
}


def paused(fleet: Fleet, place: str, *, workers: int) -> Child:
    """Start workers and a message at which one of them stops itself; answers that one, which stands still."""
    do, names = PLACES[place]
    fleet.arguments = {"pause at": names}
    return standing_still(fleet, message("m1", do=do), workers=workers)


def standing_still(fleet: Fleet, at: Arguments, *, workers: int) -> Child:
    """The same, for a message that is given."""
    fleet.launch(workers)
    for worker in fleet.workers:
        fleet.await_registration(worker)
    with Service(fleet.ground.url) as service:
        service.inbox.receive(**at)
    # Only the first that gets there stops.
    wait_until(lambda: _still(fleet), message="a worker to stand still")
    return _still(fleet)[0]


def _still(fleet: Fleet) -> list[Child]:
    return [worker for worker in fleet.workers if worker.state == "T"]


def registrations(ground: Ground, worker: Child) -> list[int]:
    """The numbers under which a process is known now."""
    return [number for (number,) in ground.rows(f"SELECT id FROM onceward_worker WHERE pid = {worker.pid}")]


def effects_by(ground: Ground, name: str) -> list[int]:
    """The processes in which a message has taken effect."""
    return [pid for (pid,) in ground.rows(f"SELECT pid FROM effect WHERE id = '{name}'")]


def check_it_works_again(fleet: Fleet, zombie: Child) -> None:
    """It takes up work, alone."""
    ground = fleet.ground
    for worker in list(fleet.workers):
        if worker is not zombie:
            worker.signal(signal.SIGTERM)
            assert fleet.bury(worker) == 0, worker.errors
    with Service(ground.url) as service:
        service.inbox.receive(**message("m2"))
    wait_until(lambda: effects_by(ground, "m2"), message="the zombie to work again")
    fleet.retire()
    ground.check_settled()
    assert ground.statuses() == DONE | {"default/m2": "done"}
    assert effects_by(ground, "m2") == [zombie.pid]


# On SQLite a process that stands still inside its transaction keeps everybody out: nobody can take over.
TAKE_OVERS = [
    ("sqlite", "sync", "before the first statement"),
    ("sqlite", "async", "before the first statement"),
    ("postgres", "sync", "before the first statement"),
    ("postgres", "async", "after the effect"),
    ("postgres", "sync", "before finish"),
    ("postgres", "async", "before finish"),
]
STANDSTILLS = [
    ("sqlite", "sync", "after the effect"),
    ("sqlite", "async", "before finish"),
    ("sqlite", "sync", "before commit"),
    ("postgres", "sync", "before commit"),
    ("postgres", "async", "before commit"),
]


@pytest.mark.parametrize(("store_url", "kind", "place"), TAKE_OVERS, indirect=["store_url"])
def test_what_a_zombie_did_rolls_back(place: str, kind: Kind, ground: Ground, zygote: Zygote) -> None:
    """R12, HZ-30, HZ-38: another worker finishes its message; its own effect rolls back; it works again."""
    fleet = Fleet(ground, zygote, kind, {"lease": LEASE})
    zombie = paused(fleet, place, workers=1)
    before = registrations(ground, zombie)
    heir = fleet.launch()
    wait_until(lambda: ground.statuses() == DONE, message="another worker to take over and finish")
    assert effects_by(ground, "m1") == [heir.pid]
    zombie.signal(signal.SIGCONT)
    wait_until(lambda: registrations(ground, zombie) not in ([], before), message="the zombie to register anew")
    check_it_works_again(fleet, zombie)
    assert effects_by(ground, "m1") == [heir.pid]
    assert ground.charges("crash") == {"m1": 1}


@pytest.mark.parametrize(("store_url", "kind"), [("sqlite", "async"), ("postgres", "sync")], indirect=["store_url"])
def test_a_zombie_that_wakes_while_its_heir_runs_ends_nothing(kind: Kind, ground: Ground, zygote: Zygote) -> None:
    """R12, HZ-30: the claim is the heir's. The zombie's effect rolls back, and what waits behind the key waits on."""
    fleet = Fleet(ground, zygote, kind, {"lease": LEASE})
    do = {"pause": "before", "heir": "before"}
    zombie = standing_still(fleet, message("m1", "keyed", account="a", do=do), workers=1)
    heir = fleet.launch()
    heir.hear("holding")
    zombie.signal(signal.SIGCONT)
    with Service(ground.url) as service:
        service.inbox.receive(**message("m2", "keyed", account="a"))
        service.inbox.receive(**message("m3"))
    # Its one lane has ended the attempt at m1 when it takes up another message; the heir's is busy.
    wait_until(lambda: effects_by(ground, "m3"), message="the zombie to work again")
    assert {name: effects_by(ground, name) for name in ("m1", "m2", "m3")} == {"m1": [], "m2": [], "m3": [zombie.pid]}
    (ground.folder / "release").touch()
    wait_until(lambda: effects_by(ground, "m2"), message="what waited behind the key")
    fleet.retire()
    ground.check_settled()
    assert effects_by(ground, "m1") == [heir.pid]
    assert ground.charges("crash") == {"m1": 1}


@pytest.mark.parametrize(("store_url", "kind", "place"), STANDSTILLS, indirect=["store_url"])
def test_a_zombie_inside_its_last_transaction_has_one_effect(
    place: str, kind: Kind, ground: Ground, zygote: Zygote
) -> None:
    """R12, HZ-30, HZ-61: while its locks keep others from taking over, they wait; whoever wins, there is one effect."""
    fleet = Fleet(ground, zygote, kind, {"lease": LEASE})
    zombie = paused(fleet, place, workers=2)
    wait_until(lambda: zombie.pid in ground.lapsed(), message="the lease to run out")
    zombie.signal(signal.SIGCONT)
    wait_until(lambda: ground.statuses() == DONE, message="somebody to finish")
    assert len(effects_by(ground, "m1")) == 1
    check_it_works_again(fleet, zombie)
    assert len(effects_by(ground, "m1")) == 1
