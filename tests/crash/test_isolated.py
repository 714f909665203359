"""After the death of a process with many claims: what it held runs apart, and nobody waits for it."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.crash.fleet import Fleet
from tests.crash.service import Service, message
from tests.crash.test_poison import CRASH_LIMIT, check_verdict, poison, run_until_dead
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.crash.ground import Ground
    from tests.crash.zygote import Zygote

CLAIMS = 300
GROUP = 20
BACKLOG = [message("m0", do={"hold": "before"}), *(message(f"m{n}") for n in range(1, CLAIMS))]


def kill_one_that_holds(ground: Ground, zygote: Zygote) -> None:
    """A worker claims the whole backlog, is killed, and its parent sees it."""
    claimed = "SELECT count(*) FROM onceward_queue WHERE token IS NOT NULL"
    with Service(ground.url) as service:
        service.inbox.receive_many(BACKLOG)
        fleet = Fleet(ground, zygote, numbers={"group": CLAIMS})
        worker = fleet.launch()
        wait_until(lambda: worker.said("holding"), message="the first handler to begin")
        assert ground.number(claimed) == CLAIMS
        worker.kill()
        assert fleet.bury(worker, service.inbox) == -signal.SIGKILL
    assert ground.number(claimed) == 0


def check_innocence(ground: Ground, fleet: Fleet) -> None:
    """All is done, once, and nobody was charged for the death."""
    left = "SELECT count(*) FROM onceward_queue"
    wait_until(lambda: ground.number(left) == 0, message="the end of all work")
    fleet.retire()
    ground.check_settled()
    assert set(ground.effects()) == {"default/fresh", *(f"default/{one['id']}" for one in BACKLOG)}
    assert ground.charges("crash") == ground.charges("error") == {}


def test_the_other_lanes_go_on(ground: Ground, zygote: Zygote) -> None:
    """D36: a fresh message takes effect while a lane is busy with isolated messages; nobody stands still for them."""
    kill_one_that_holds(ground, zygote)
    fleet = Fleet(ground, zygote, numbers={"group": GROUP}, arguments={"concurrency": 2})
    worker = fleet.launch()
    wait_until(lambda: worker.said("holding"), message="an isolated message to run")
    with Service(ground.url) as service:
        service.inbox.receive(**message("fresh"))
    wait_until(lambda: ground.effects()["default/fresh"], message="the effect of a fresh message")
    isolated = "SELECT count(*) FROM onceward_queue WHERE isolation > 0"
    assert ground.number(isolated) == CLAIMS, "a claim of them is held up, and no other lane takes more"
    Path(ground.folder, "release").touch()
    check_innocence(ground, fleet)


def test_a_single_lane_takes_turns(ground: Ground, zygote: Zygote) -> None:
    """D36: a claim of isolated messages, then one of what else is due."""
    kill_one_that_holds(ground, zygote)
    Path(ground.folder, "release").touch()
    with Service(ground.url) as service:
        service.inbox.receive(**message("fresh"))
    fleet = Fleet(ground, zygote, numbers={"group": GROUP})
    fleet.launch()
    check_innocence(ground, fleet)
    (earlier,) = ground.rows("SELECT count(*) FROM effect WHERE n < (SELECT n FROM effect WHERE id = 'fresh')")[0]
    assert earlier <= GROUP, "it has waited for one claim of isolated messages at most"


@pytest.mark.parametrize("concurrency", [1, 2])
def test_among_many_only_the_killer_is_charged(concurrency: int, ground: Ground, zygote: Zygote) -> None:
    """R16, HZ-51, D36: in groups, then apart, then alone; so at most three deaths have no culprit."""
    innocents = [message(f"innocent {n}") for n in range(CLAIMS - 1)]
    with Service(ground.url) as service:
        service.inbox.receive_many([*innocents[:200], poison("oom"), *innocents[200:]])
    fleet = Fleet(ground, zygote, numbers={"group": CLAIMS}, arguments={"concurrency": concurrency})
    assert run_until_dead(fleet, -signal.SIGKILL) <= CRASH_LIMIT + 3
    check_verdict(ground, innocents)
