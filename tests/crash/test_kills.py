"""kill -9 from outside, at random moments, while everybody is busy."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from tests.crash.conftest import TALLY
from tests.crash.fleet import Fleet
from tests.crash.points import seed
from tests.crash.service import KINDS, Kind, Service, message
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from onceward import Inbox
    from onceward.message import Arguments
    from tests.crash.ground import Ground
    from tests.crash.zygote import Zygote

MESSAGES = 300
ACCOUNTS = 12
DUPLICATES = 0.3
WORKERS = 4
KILLS = 8


@dataclass(slots=True)
class Load:
    """Messages with copies among them; the first copies of an account are in order, the others anywhere after."""

    rng: random.Random
    count: int
    names: list[str] = field(default_factory=list)
    deliveries: list[Arguments] = field(default_factory=list)

    def __post_init__(self) -> None:
        positions = dict.fromkeys(range(ACCOUNTS), 0)
        for number in range(self.count):
            if number % 2:
                one = message(f"m{number}")
            else:
                account = self.rng.randrange(ACCOUNTS)
                positions[account] += 1
                one = message(f"m{number}", "keyed", account=f"account {account}", position=positions[account])
            self.names.append(one["id"])
            self.deliveries.append(one)
            if self.rng.random() < DUPLICATES:
                self.deliveries.append(self.rng.choice(self.deliveries))

    def parts(self, count: int) -> list[list[Arguments]]:
        """The deliveries, in order, in so many parts."""
        size = -(-len(self.deliveries) // count)
        return [self.deliveries[start : start + size] for start in range(0, len(self.deliveries), size)]


@pytest.mark.parametrize("kind", KINDS)
def test_workers_killed_at_random_lose_and_double_nothing(
    kind: Kind, ground: Ground, zygote: Zygote, record_property: Callable[[str, Any], None]
) -> None:
    """R11, R12, R16, R17, C20, HZ-41, HZ-50, HZ-51: 300 messages, 4 workers, 8 kills, one effect each, in order."""
    drawn = seed()
    rng = random.Random(f"{drawn} {kind} {ground.dialect}")
    load = Load(rng, MESSAGES)
    fleet = Fleet(ground, zygote, kind, {"lease": 4, "group": 20}, {"concurrency": 2})
    fleet.launch(WORKERS)
    with Service(ground.url) as service:
        for part in load.parts(KILLS):
            done = _effects(ground)
            service.inbox.receive_many(part)
            further = rng.randrange(15)  # fewer than what nobody before them holds up
            wait_until(lambda: _effects(ground) >= done + further, message=f"{further} more effects")  # noqa: B023
            _kill_one(fleet, rng, service.inbox)
            fleet.launch()
    # What nobody took over comes back when the leases of the dead run out.
    unfinished = "SELECT count(*) FROM onceward_queue"
    wait_until(lambda: ground.number(unfinished) == 0, timeout=60, message="the end of all work")
    # By name, not by number: one that died and one that only starts would make up for each other.
    alive = {(worker.pid,) for worker in fleet.workers}
    registered = "SELECT pid FROM onceward_worker"
    wait_until(lambda: set(ground.rows(registered)) == alive, message="the last of the dead to be noticed")
    fleet.retire()
    ground.check_settled()
    assert ground.statuses() == {f"default/{name}": "done" for name in load.names}
    for account, positions in ground.positions().items():
        assert positions == sorted(positions), f"{account}, seed {drawn}"
    assert max(ground.charges("crash").values(), default=0) < 3
    assert ground.charges("error") == {}
    record_property(TALLY, {"kills": KILLS, "seed": drawn})


def _kill_one(fleet: Fleet, rng: random.Random, inbox: Inbox) -> None:
    """Kill a worker; its parent sees it, or nobody does and its lease runs out in time."""
    victim = rng.choice(fleet.workers)
    victim.kill()
    fleet.bury(victim, inbox if rng.random() < 0.5 else None)


def _effects(ground: Ground) -> int:
    return ground.number("SELECT count(*) FROM effect")
