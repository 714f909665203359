"""Handlers that take a list of messages in one transaction, and groups of messages that share one (R21; HZ-51)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from onceward import Message, Reject, Settings
from onceward.flow import Query
from onceward.steps.context import in_transaction
from tests.contract import behaviour as acts
from tests.contract.behaviour import Sql, Steps, wrote
from tests.contract.harness import LATER, TYPE, Shop, arguments
from tests.order.conftest import everywhere
from tests.order.ledger import statuses

BatchBehaviour = Callable[[list[Message]], Steps]


class Batches:
    """A shop with a handler of lists, and the lists that it was given."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.calls: list[list[str]] = []

    def handle(self, behaviour: BatchBehaviour | None = None, message_type: str = TYPE, **options: Any) -> None:
        """Register a handler of the shop's kind that behaves so."""
        behaviour = behaviour or each_wrote

        def handler(messages: list[Message], tx: Any) -> Any:
            self.calls.append([message.id for message in messages])
            return acts.drive(behaviour(messages), lambda step: step.take(tx, self.shop.place))

        async def async_handler(messages: list[Message], tx: Any) -> Any:
            self.calls.append([message.id for message in messages])
            return await acts.drive_async(behaviour(messages), lambda step: step.take_async(tx, self.shop.place))

        function: Callable[..., Any] = handler if self.shop.kind == "def" else async_handler
        self.shop.inbox.on(message_type, batch=True, **{"retry": LATER, **options})(function)

    def receive(self, *ids: str, **more: Any) -> None:
        """Store messages in one go; their numbers are remembered."""
        receipts = self.shop.receive_many(arguments(message_id, more=more) for message_id in ids)
        self.shop.seqs |= {message_id: receipt.seq for message_id, receipt in zip(ids, receipts, strict=True)}


@pytest.fixture
def batches(shop: Shop) -> Batches:
    """Handlers of lists."""
    return Batches(shop)


def each_wrote(messages: list[Message]) -> Steps:
    """One effect for each message."""
    for message in messages:
        yield wrote(message)


def numbered(count: int) -> list[str]:
    return [f"m{number:02}" for number in range(count)]


def transactions(shop: Shop) -> int:
    return shop.count("run")


@everywhere
def test_a_backlog_is_one_call_in_one_transaction(batches: Batches) -> None:
    """Twenty messages: one list, in arrival order, one commit."""
    batches.handle()
    batches.receive(*numbered(20))
    assert batches.shop.drain() == 20
    assert batches.calls == [numbered(20)]
    assert transactions(batches.shop) == 1
    assert batches.shop.effects() == numbered(20)


@everywhere
def test_each_message_gets_its_own_result(batches: Batches) -> None:
    """R08: a list with one result for each, in their order."""

    def behaviour(messages: list[Message]) -> Steps:
        yield from each_wrote(messages)
        return [None if message.id == "m01" else {"of": message.id} for message in messages]

    batches.handle(behaviour)
    batches.receive(*numbered(3))
    batches.shop.drain()
    results = [batches.shop.receive(message_id).result for message_id in numbered(3)]
    assert results == [{"of": "m00"}, None, {"of": "m02"}]


@everywhere
def test_one_bad_message_does_not_harm_its_batch(batches: Batches) -> None:
    """HZ-51: nineteen are done, only the twentieth is charged, once, with its own error."""

    def behaviour(messages: list[Message]) -> Steps:
        yield from each_wrote(messages)
        if any(message.id == "m07" for message in messages):
            raise RuntimeError("m07 is bad")

    batches.handle(behaviour)
    batches.receive(*numbered(20))
    assert batches.shop.drain() == 19
    others = [message_id for message_id in numbered(20) if message_id != "m07"]
    assert batches.shop.effects() == others
    detail = batches.shop.detail("m07")
    assert (detail.status, detail.attempts, batches.shop.count("attempt")) == ("retrying", 1, 1)
    assert detail.history[0].error == "RuntimeError: m07 is bad"
    batches.shop.finish()
    assert (batches.shop.status("m07"), batches.shop.count("attempt")) == ("dead", 3)


@pytest.mark.parametrize("value", [[1], [1, 2, 3, 4], {"a": 1}, "abc", 3, (1, 2, 3)], ids=repr)
def test_results_that_do_not_fit_are_refused(batches: Batches, value: Any) -> None:
    """Nobody gets another one's result: a list with one for each, or None. Run alone, a list of one is right."""

    def behaviour(messages: list[Message]) -> Steps:
        yield from each_wrote(messages)
        return value

    batches.handle(behaviour)
    batches.receive(*numbered(3))
    batches.shop.finish()
    expected = "done" if value == [1] else "dead"
    assert set(statuses(batches.shop, numbered(3)).values()) == {expected}
    if expected == "dead":
        assert "return None or a list with one result for each" in batches.shop.error("m00")
        assert batches.shop.effects() == []


def test_a_result_that_cannot_be_stored_is_only_its_own_message_s(batches: Batches) -> None:
    """The batch runs again one by one; the others have their results."""

    def behaviour(messages: list[Message]) -> Steps:
        yield from each_wrote(messages)
        return [object() if message.id == "m01" else message.id for message in messages]

    batches.handle(behaviour)
    batches.receive(*numbered(3))
    batches.shop.finish()
    assert statuses(batches.shop, numbered(3)) == {"m00": "done", "m01": "dead", "m02": "done"}
    assert "cannot be stored as its result" in batches.shop.error("m01")
    assert batches.shop.receive("m02").result == "m02"


@pytest.mark.parametrize(("group", "sizes"), [(1, [1] * 7), (3, [3, 3, 1]), (100, [7])])
def test_a_batch_is_never_larger_than_its_group(batches: Batches, group: int, sizes: list[int]) -> None:
    """`group=` limits a list; one means lists of one."""
    batches.handle(group=group)
    batches.receive(*numbered(7))
    batches.shop.drain()
    assert [len(call) for call in batches.calls] == sizes


@everywhere
def test_a_keyed_batch_is_in_order(batches: Batches) -> None:
    """R17, R21: inside a list, and across lists when one message fails at first."""
    seen: list[str] = []

    def behaviour(messages: list[Message]) -> Steps:
        yield from each_wrote(messages)
        if any(message.id == "a3" and message.attempt == 1 for message in messages):
            raise RuntimeError("not yet")
        seen.extend(message.id for message in messages)

    batches.handle(behaviour, key="k", group=4)
    ids = [f"{key}{number}" for number in range(6) for key in "ab"]
    batches.shop.receive_many(arguments(message_id, more={"data": {"k": message_id[0]}}) for message_id in ids)
    batches.shop.finish()
    for key in "ab":
        done = [message_id for message_id in seen if message_id[0] == key]
        assert done == [f"{key}{number}" for number in range(6)]
    assert batches.shop.effects() == sorted(ids)


def test_batches_by_position_are_in_order(batches: Batches) -> None:
    """R17, R21: the list is sorted as the key demands, not as the messages came."""
    batches.handle(key="k")
    for position in (3, 1, 2):
        batches.shop.receive(f"m{position}", data={"k": "k"}, position=position)
    batches.shop.drain()
    assert batches.calls == [["m1", "m2", "m3"]]


def test_stale_numbers_are_not_in_the_list(batches: Batches) -> None:
    """R19, R21: they are skipped, and the results still belong to the right ones."""

    def behaviour(messages: list[Message]) -> Steps:
        yield from each_wrote(messages)
        return [message.id for message in messages]

    batches.handle(behaviour, key="k", sequence="n", gap=timedelta(hours=1))
    for message_id, number in (("m1", 1), ("twin", 1), ("m2", 2)):
        batches.shop.receive(message_id, data={"k": "k", "n": number})
    batches.shop.drain()
    assert batches.calls == [["m1", "m2"]]
    assert batches.shop.status("twin") == "skipped"
    assert batches.shop.receive("m2", data={"k": "k", "n": 2}).result == "m2"
    batches.shop.receive("late", data={"k": "k", "n": 2})
    batches.shop.drain()
    assert (batches.shop.status("late"), len(batches.calls)) == ("skipped", 1)


@everywhere
def test_lists_and_single_messages_of_one_claim(batches: Batches) -> None:
    """Two types, one with lists, one without, mixed in the backlog: each its own way, keys in order across both."""
    order: list[str] = []

    def single(message: Message) -> Steps:
        order.append(message.id)
        yield wrote(message)

    def many(messages: list[Message]) -> Steps:
        order.extend(message.id for message in messages)
        yield from each_wrote(messages)

    batches.shop.handle("single", single, key="k")
    batches.handle(many, "many", key="k")
    pattern = ["single", "many", "many", "single", "single", "many", "many", "many"]
    batches.shop.receive_many(
        arguments(f"m{number}", kind, more={"data": {"k": "k"}}) for number, kind in enumerate(pattern)
    )
    assert batches.shop.drain() == 8
    assert order == [f"m{number}" for number in range(8)]
    assert batches.calls == [["m1", "m2"], ["m5", "m6", "m7"]]


def test_an_unreadable_message_is_not_in_the_list(batches: Batches) -> None:
    """R15: dead by itself, the others together."""
    batches.handle()
    batches.receive("m0")
    batches.shop.receive("bad", body=b"{")
    batches.receive("m1")
    batches.shop.drain()
    assert sorted(id for call in batches.calls for id in call) == ["m0", "m1"]  # noqa: A001 - as in a message
    assert batches.shop.status("bad") == "dead"


def test_a_rejected_message_is_dead_and_the_others_are_done(batches: Batches) -> None:
    """R14: nobody else pays for it."""

    def behaviour(messages: list[Message]) -> Steps:
        yield from each_wrote(messages)
        if any(message.id == "m1" for message in messages):
            raise Reject("never")

    batches.handle(behaviour)
    batches.receive("m0", "m1", "m2")
    batches.shop.drain()
    assert statuses(batches.shop, ["m0", "m1", "m2"]) == {"m0": "done", "m1": "dead", "m2": "done"}


@everywhere
def test_inline_it_gets_a_list_of_one(batches: Batches) -> None:
    """R03, R05, R21: the same function, and its one result."""

    def behaviour(messages: list[Message]) -> Steps:
        yield from each_wrote(messages)
        return [f"result of {message.id}" for message in messages]

    batches.handle(behaviour)
    receipt = batches.shop.process("m1")
    assert (receipt.finished, receipt.result) == (True, "result of m1")
    assert batches.calls == [["m1"]]
    assert batches.shop.process("m1").result == "result of m1"


@pytest.mark.parametrize("value", [[], [1, 2], {"a": 1}], ids=repr)
def test_inline_a_result_that_does_not_fit_is_refused(batches: Batches, value: Any) -> None:
    """As at a worker: what is refused there must not be stored as the result here."""

    def behaviour(messages: list[Message]) -> Steps:
        yield from each_wrote(messages)
        return value

    batches.handle(behaviour)
    assert not batches.shop.process("m1").finished
    assert batches.shop.status("m1") == "dead"
    assert batches.shop.effects() == []


@everywhere
def test_inline_after_a_crash_it_gets_a_list_of_one(batches: Batches) -> None:
    """R16, R21: stored first, as after a process died while it worked inline, and handled the same way."""
    batches.handle()
    assert batches.shop.process("m1").finished
    batches.shop.step(in_transaction(batches.shop.inbox.context, Query("touch_catalog", {"crash": True})))
    assert batches.shop.process("m2").finished
    assert batches.calls == [["m1"], ["m2"]]
    assert batches.shop.effects() == ["m1", "m2"]


def test_ordinary_messages_share_a_transaction_under_backlog(store_url: str) -> None:
    """R21: groups by themselves; `group=1` switches that off for its handler, whatever stands beside it."""
    with Shop(store_url, "def", settings=Settings(group_time=timedelta(minutes=1))) as shop:
        shop.handle("together")
        shop.handle("alone", group=1)
        kinds = ["together"] * 3 + ["alone"] * 2 + ["together"] * 2
        shop.receive_many(arguments(f"m{number}", kind) for number, kind in enumerate(kinds))
        shop.drain()
        sizes = [size for (size,) in shop.sql(f"SELECT messages FROM {shop.prefix}run ORDER BY id")]
        assert sorted(sizes) == [1, 1, 5], "each claimed by its own"


@pytest.mark.parametrize(("limit", "transactions_expected"), [(0.0, 10), (60.0, 1)])
def test_a_group_is_committed_after_its_time(store_url: str, limit: float, transactions_expected: int) -> None:
    """R21: so much handler time and no more, so that transactions stay short; those left over come next."""
    settings = Settings(group_time=timedelta(seconds=limit))
    with Shop(store_url, "def", settings=settings) as shop:
        shop.handle()
        shop.receive_many(arguments(message_id) for message_id in numbered(10))
        assert shop.drain() == 10
        assert transactions(shop) == transactions_expected
        assert shop.effects() == numbered(10)


def test_a_batch_sees_its_own_writes(batches: Batches) -> None:
    """One transaction: what one statement wrote, the next one reads."""
    counts: list[int] = []

    def behaviour(messages: list[Message]) -> Steps:
        yield from each_wrote(messages)
        ((count,),) = yield Sql("SELECT count(*) FROM effects")
        counts.append(count)

    batches.handle(behaviour)
    batches.receive(*numbered(5))
    batches.shop.drain()
    assert counts == [5]
