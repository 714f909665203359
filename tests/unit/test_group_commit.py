"""Callers at the same time share a transaction; each gets its own answer, whatever happens to the others."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from onceward.errors import StoreUnavailable
from onceward.message import Receipt
from onceward.runtime import group_commit as group_commit_module
from onceward.runtime.group_commit import CROWD, SHARED, AsyncGroupCommit, GroupCommit, _Waiter
from tests.unit.builders import delivery

if TYPE_CHECKING:
    from onceward.message import Delivery

BAD = "bad"


class Store:
    """Remembers what was stored together; the first call is held until everybody has come."""

    def __init__(self, *, held: bool = True, error: type[Exception] = StoreUnavailable) -> None:
        self.error = error
        self.calls: list[list[str]] = []
        self.gate = threading.Event()
        self.entered = threading.Event()
        if not held:
            self.gate.set()

    def __call__(self, deliveries: list[Delivery]) -> list[Receipt]:
        ids = [one.id for one in deliveries]
        self.calls.append(ids)
        self.entered.set()
        assert self.gate.wait(10)
        if BAD in ids:
            raise self.error(f"no {BAD}")
        return [Receipt("accepted", len(one)) for one in ids]

    async def later(self, deliveries: list[Delivery]) -> list[Receipt]:
        """As above, for tasks: everybody has come when the loop has gone round."""
        await asyncio.sleep(0.01)
        self.gate.set()
        return self(deliveries)


def names(count: int) -> list[str]:
    return ["x" * (number + 1) for number in range(count)]


def together(store: Store, ids: list[str]) -> list[Receipt | Exception]:
    """Everybody calls while the first is being stored."""
    group_commit = GroupCommit(store, 1)

    def call(one: str) -> Receipt | Exception:
        try:
            return group_commit.receive(delivery(id=one))
        except Exception as error:  # noqa: BLE001 - looked at by the test
            return error

    with ThreadPoolExecutor(len(ids)) as pool:
        first = pool.submit(call, ids[0])
        assert store.entered.wait(10)
        others = [pool.submit(call, one) for one in ids[1:]]
        while len(group_commit._sharing.waiting) < len(others):
            pass
        store.gate.set()
        return [future.result(10) for future in [first, *others]]


def test_who_is_alone_does_not_wait() -> None:
    store = Store(held=False)
    group_commit = GroupCommit(store, 1)
    assert [group_commit.receive(delivery(id=one)).seq for one in ("x", "xx")] == [1, 2]
    assert store.calls == [["x"], ["xx"]]


def test_who_comes_meanwhile_shares_the_next() -> None:
    store = Store()
    answers = together(store, names(20))
    assert [answer.seq for answer in answers if isinstance(answer, Receipt)] == list(range(1, 21))
    assert len(store.calls) == 2
    assert sorted(store.calls[1]) == names(20)[1:]


@pytest.mark.parametrize("error", [StoreUnavailable, ValueError])
def test_a_failure_is_only_its_own(error: type[Exception]) -> None:
    """D21: the shared transaction failed, for whatever reason: the others try alone, and succeed."""
    store = Store(error=error)
    answers = together(store, ["x", BAD, "xxx", "xxxx"])
    assert [getattr(answer, "seq", None) for answer in answers] == [1, None, 3, 4]
    assert isinstance(answers[1], error)
    assert sorted(map(len, store.calls)) == [1, 1, 1, 1, 3]


def test_a_failure_alone_is_not_tried_again() -> None:
    store = Store(held=False)
    with pytest.raises(StoreUnavailable):
        GroupCommit(store, 1).receive(delivery(id=BAD))
    assert store.calls == [[BAD]]


@pytest.fixture(params=["slow", "a crowd"])
def others(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Who comes while one is being stored: a few behind a slow one, or a crowd behind one that counts as quick."""
    if request.param == "slow":
        return names(8)[1:]
    monkeypatch.setattr("onceward.runtime.group_commit.SLOW", 60.0)
    return names(CROWD + 1)[1:]


def test_nobody_waits_for_the_first(others: list[str]) -> None:
    """It is held; the second stores for those who came meanwhile, and they are answered before it is."""
    store, free = Store(), Store(held=False)
    group_commit = GroupCommit(lambda some: (store if some[0].id == "x" else free)(some), 2)
    with ThreadPoolExecutor(len(others) + 1) as pool:
        first = pool.submit(group_commit.receive, delivery(id="x"))
        assert store.entered.wait(10)
        calls = [pool.submit(group_commit.receive, delivery(id=one)) for one in others]
        assert [future.result(10).seq for future in calls] == [len(one) for one in others]
        assert not first.done()
        store.gate.set()
        assert first.result(10).seq == 1


async def test_no_task_waits_for_the_first(others: list[str]) -> None:
    """The same for tasks."""
    held = asyncio.Event()

    async def store(deliveries: list[Delivery]) -> list[Receipt]:
        if deliveries[0].id == "x":
            await held.wait()
        return [Receipt("accepted", len(one.id)) for one in deliveries]

    group_commit = AsyncGroupCommit(store, 2)
    async with asyncio.timeout(30):
        first = asyncio.create_task(group_commit.receive(delivery(id="x")))
        await asyncio.sleep(0)
        answers = await asyncio.gather(*(group_commit.receive(delivery(id=one)) for one in others))
        assert [answer.seq for answer in answers] == [len(one) for one in others]
        assert not first.done()
        held.set()
        assert (await first).seq == 1


def test_a_crowd_is_stored_in_parts() -> None:
    group_commit = GroupCommit(store := Store(held=False), 1)
    many = SHARED + 5
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: group_commit.receive(delivery(id="x")).seq, range(many)))
    assert answers == [1] * many
    assert max(map(len, store.calls)) <= SHARED


def test_a_leader_that_is_not_among_those_it_stores_waits_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """More wait than share a transaction, and the last of them waited long enough to lead: it is not forgotten."""
    monkeypatch.setattr(group_commit_module, "SHARED", 2)
    store = Store(held=False)
    group_commit = GroupCommit(store, 1)
    waiters = [_Waiter(delivery(id=one)) for one in names(3)]
    group_commit._sharing.waiting = [*waiters]
    last = waiters[-1]
    group_commit._lead(last)
    assert last in group_commit._sharing.waiting
    group_commit._take_part(last)
    assert [waiter.is_done for waiter in waiters] == [True] * 3
    assert store.calls == [["x", "xx"], ["xxx"]]


def test_an_interrupted_leader_leaves_the_others_to_themselves() -> None:
    """Whatever ends it, the next one leads."""

    def interrupted(deliveries: list[Delivery]) -> list[Receipt]:
        if len(deliveries) == 1 and deliveries[0].id == BAD:
            raise KeyboardInterrupt
        return [Receipt("accepted", 1)] * len(deliveries)

    group_commit = GroupCommit(interrupted, 1)
    with pytest.raises(KeyboardInterrupt):
        group_commit.receive(delivery(id=BAD))
    assert group_commit.receive(delivery(id="x")).seq == 1


def test_one_that_is_interrupted_when_it_is_to_lead_hands_on() -> None:
    """It waited, was woken to lead, and never came to it."""
    group_commit = GroupCommit(store := Store(), 1)

    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            super().wait(timeout)
            raise KeyboardInterrupt

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(group_commit.receive, delivery(id="x"))
        assert store.entered.wait(10)
        waiter = _Waiter(delivery(id="xx"))
        waiter.woken = Interrupted()
        group_commit._sharing.waiting.append(waiter)
        second = pool.submit(group_commit._take_part, waiter)
        store.gate.set()
        assert first.result(10).seq == 1
        with pytest.raises(KeyboardInterrupt):
            second.result(10)
    group_commit._leave(waiter)
    assert group_commit.receive(delivery(id="xxx")).seq == 3


async def test_tasks_share_too() -> None:
    store = Store(held=False)
    group_commit = AsyncGroupCommit(store.later, 1)
    answers = await asyncio.gather(*(group_commit.receive(delivery(id=one)) for one in names(20)))
    assert [answer.seq for answer in answers] == list(range(1, 21))
    assert len(store.calls) <= 2


@pytest.mark.parametrize(
    ("leaders", "callers", "parts"),
    [(2, 2 * CROWD, [CROWD, CROWD]), (2, 2 * CROWD - 1, [2 * CROWD - 1]), (1, 2 * CROWD, [2 * CROWD])],
)
async def test_two_crowds_are_stored_at_the_same_time(leaders: int, callers: int, parts: list[int]) -> None:
    """One half while the other is prepared; not where the database has one writer."""
    store, all_have_come = Store(held=False), asyncio.Event()
    begun: list[int] = []

    async def later(deliveries: list[Delivery]) -> list[Receipt]:
        begun.append(len(deliveries))
        await all_have_come.wait()
        return store(deliveries)

    group_commit = AsyncGroupCommit(later, leaders)
    tasks = [asyncio.ensure_future(group_commit.receive(delivery(id=one))) for one in names(callers)]
    for _ in range(10):  # turns of the loop, not time: more than it takes until all is begun
        await asyncio.sleep(0)
    assert begun == parts
    all_have_come.set()
    receipts = await asyncio.gather(*tasks)
    assert [receipt.seq for receipt in receipts] == [*range(1, callers + 1)]


async def test_tasks_come_and_go() -> None:
    """Also just when a leader ends: nobody is left waiting."""
    group_commit = AsyncGroupCommit(Store(held=False).later, 2)

    async def caller(count: int) -> int:
        return sum([(await group_commit.receive(delivery(id="x"))).seq for _ in range(count)])

    async with asyncio.timeout(30):
        assert await asyncio.gather(*(caller(20) for _ in range(8))) == [20] * 8


@pytest.mark.parametrize("error", [StoreUnavailable, ValueError])
async def test_a_failure_of_a_task_is_only_its_own(error: type[Exception]) -> None:
    store = Store(held=False, error=error)
    group_commit = AsyncGroupCommit(store.later, 1)
    answers = await asyncio.gather(
        *(group_commit.receive(delivery(id=one)) for one in ("x", BAD, "xxx")), return_exceptions=True
    )
    assert [getattr(answer, "seq", None) for answer in answers] == [1, None, 3]
    assert isinstance(answers[1], error)


async def test_a_cancelled_caller_leaves_the_others_alone() -> None:
    store = Store(held=False)
    group_commit = AsyncGroupCommit(store.later, 1)
    tasks = [asyncio.ensure_future(group_commit.receive(delivery(id=one))) for one in names(3)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    assert [answer.seq for answer in await asyncio.gather(*tasks[1:])] == [2, 3]
    assert tasks[0].cancelled()
