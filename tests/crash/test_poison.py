"""Messages that kill the process that handles them: dead after three crashes, and nobody else pays."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.crash.fleet import Fleet, take_over
from tests.crash.program import Job
from tests.crash.service import KINDS, Kind, Service, message, settings
from tests.waiting import wait_until

if TYPE_CHECKING:
    from onceward.message import Arguments
    from tests.crash.ground import Ground
    from tests.crash.zygote import Zygote

CRASH_LIMIT = 3
CODES = {"exit": 1, "exit-0": 0, "segfault": -signal.SIGSEGV, "abort": -signal.SIGABRT, "oom": -signal.SIGKILL}
POISON = "default/poison"
INNOCENTS = [message(f"innocent {n}") for n in range(20)]


def poison(death: str) -> Arguments:
    return message("poison", do={"die": death})


def run_until_dead(fleet: Fleet, code: int, *, seen: bool = True) -> int:
    """Replace every worker that dies until the poison is dead; answers how many died."""
    ground = fleet.ground
    deaths = 0
    with Service(ground.url) as service:
        fleet.launch()
        while True:
            worker = fleet.workers[-1]
            wait_until(lambda: worker.gone or _all_is_over(ground), message="a death or the end")  # noqa: B023
            if not worker.gone:
                break
            assert fleet.bury(worker, service.inbox if seen else None) == code, worker.errors
            deaths += 1
            assert deaths < 10, "a crash loop"
            fleet.launch()
    fleet.retire()
    return deaths


def _all_is_over(ground: Ground) -> bool:
    return all(status in ("done", "dead") for status in ground.statuses().values())


def check_verdict(ground: Ground, innocents: list[Arguments]) -> None:
    """The poison is dead after exactly three charged crashes, with its history; the innocent are done, uncharged."""
    ground.check_settled()
    assert ground.statuses() == {POISON: "dead"} | {f"default/{one['id']}": "done" for one in innocents}
    assert ground.charges("crash") == {"poison": CRASH_LIMIT}
    assert ground.charges("error") == {}
    with Service(ground.url) as service:
        (row,) = service.inbox.admin.messages(status="dead")
        assert (row.crashes, row.attempts) == (CRASH_LIMIT, 0)
        assert row.error is not None
        assert f"crash {CRASH_LIMIT} of {CRASH_LIMIT}" in row.error


@pytest.mark.parametrize(
    ("death", "kind"), [*((death, "sync") for death in CODES), ("exit", "async"), ("oom", "async")]
)
def test_poison_alone_is_dead_after_three_crashes(death: str, kind: Kind, ground: Ground, zygote: Zygote) -> None:
    """R16, HZ-50, C24: exactly three processes die of it, whichever way it kills them."""
    with Service(ground.url) as service:
        service.inbox.receive(**poison(death))
    assert run_until_dead(Fleet(ground, zygote, kind), CODES[death]) == CRASH_LIMIT
    check_verdict(ground, [])


@pytest.mark.parametrize(("concurrency", "kind"), [(1, "sync"), (1, "async"), (3, "sync")])
def test_poison_in_a_group_charges_no_innocent(concurrency: int, kind: Kind, ground: Ground, zygote: Zygote) -> None:
    """R16, HZ-51: in the middle of a group of 21; who is to blame for the first crashes is not known, so nobody is.

    Half of them run together next, then each apart from other isolated messages; with lanes beside it, at last alone.
    """
    with Service(ground.url) as service:
        service.inbox.receive_many([*INNOCENTS[:10], poison("oom"), *INNOCENTS[10:]])
    fleet = Fleet(ground, zygote, kind, arguments={"concurrency": concurrency})
    deaths = run_until_dead(fleet, -signal.SIGKILL)
    assert CRASH_LIMIT < deaths <= CRASH_LIMIT + (2 if concurrency == 1 else 3)
    check_verdict(ground, INNOCENTS)


def test_poison_that_kills_the_whole_tree(ground: Ground, zygote: Zygote) -> None:
    """R12, R16, HZ-50: nobody sees the death, also no parent; only the lapse of the lease tells."""
    with Service(ground.url) as service:
        service.inbox.receive_many([*INNOCENTS[:5], poison("whole-tree"), *INNOCENTS[5:]])
    fleet = Fleet(ground, zygote, numbers={"lease": 1})
    assert run_until_dead(fleet, -signal.SIGKILL, seen=False) == CRASH_LIMIT + 2
    check_verdict(ground, INNOCENTS)


@pytest.mark.needs("Linux")  # elsewhere no process is refused memory
@pytest.mark.parametrize("kind", KINDS)
def test_exhausted_memory_is_a_failure_like_any_other(kind: Kind, ground: Ground, zygote: Zygote) -> None:
    """R16, HZ-50: where the limit raises MemoryError, the process lives on and the message uses up its attempts."""
    with Service(ground.url) as service:
        service.inbox.receive_many([*INNOCENTS[:10], message("poison", do={"exhaust": True}), *INNOCENTS[10:]])
    fleet = Fleet(ground, zygote, kind)
    worker = fleet.launch()
    wait_until(lambda: worker.gone or _all_is_over(ground), message="the end")
    fleet.retire()
    ground.check_settled()
    assert ground.statuses() == {POISON: "dead"} | {f"default/{one['id']}": "done" for one in INNOCENTS}
    assert ground.charges("error") == {"poison": 3}
    assert ground.charges("crash") == {}
    with Service(ground.url) as service:
        (row,) = service.inbox.admin.messages(status="dead")
        assert "MemoryError" in str(row.error)


@pytest.mark.parametrize(
    ("witness", "kind"), [("parent", "sync"), ("parent", "async"), ("bystander", "async"), ("nobody", "sync")]
)
def test_inline_poison_is_dead_after_few_crashes(kind: Kind, witness: str, ground: Ground, zygote: Zygote) -> None:
    """R03, R16, HZ-50: the broker redelivers to a new process each time; inline work goes on around it.

    The first death leaves no trace but the lease of its process. As soon as somebody has noticed it (a parent, another
    process that works inline, or, where there is nobody else, the next process that starts after the lease is over),
    the message is stored and claimed before it runs, and a worker ends what the callers began.
    """
    delivered = [message("inline before")]
    deaths = 0
    with Service(ground.url, numbers=settings(lease=1)) as service:
        if witness == "bystander":
            service.process(**delivered[0])
        while True:
            delivered.append(message(f"inline {deaths}"))
            caller = zygote.start(deliver(ground, kind, [*delivered, poison("oom")]))
            if caller.end() == 0:
                break
            deaths += 1
            assert deaths < 10, "a crash loop"
            if witness == "parent":
                take_over(service.inbox, caller.pid)
            _await_notice(service, caller.pid, gone=witness != "nobody")
        receipt = caller.said("receipt")[-1]
        assert receipt["status"] == "duplicate"
        assert not receipt["finished"]
        assert all(ground.effects()[f"default/{one['id']}"] == 1 for one in delivered)
    deaths += run_until_dead(Fleet(ground, zygote, kind), -signal.SIGKILL)
    assert deaths <= CRASH_LIMIT + 1
    check_verdict(ground, delivered)


def _await_notice(service: Service, pid: int, *, gone: bool) -> None:
    """Wait until somebody has taken a dead process over, or until its lease is over and somebody could."""

    def is_noticed() -> bool:
        left = [row.lease_seconds for row in service.inbox.admin.workers() if row.pid == pid]
        return not left or (not gone and max(left) < 0)

    wait_until(is_noticed, message=f"the death of {pid} to be noticed")


def deliver(ground: Ground, kind: Kind, messages: list[Arguments]) -> Job:
    return Job(
        url=ground.victims_url,
        act="deliver",
        output=ground.new_output(),
        kind=kind,
        numbers={"lease": 1},
        arguments={"mode": "process", "messages": messages},
    )
