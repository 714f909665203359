"""Order per key: one after another in arrival order, keys in parallel, across workers (R17, R18; HZ-40-43)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from onceward import Message, Reject
from tests.contract.behaviour import Behaviour, Steps, stumbling, wrote
from tests.contract.caller import own_transaction
from tests.contract.harness import Shop, arguments
from tests.contract.journal import journal, journaling, line, open_journal


@pytest.fixture
def ordered(shop: Shop) -> Shop:
    """A shop with a journal."""
    open_journal(shop)
    return shop


def not_yet() -> Exception:
    return RuntimeError("not yet")


def moody(*ids: str, error: Callable[[], Exception] = not_yet, always: bool = False) -> Behaviour:
    """Journals each message; these raise, in their first attempt or always."""

    def behaviour(message: Message) -> Steps:
        yield from journaling(message)
        if message.id in ids and (always or message.attempt == 1):
            raise error()

    return behaviour


def receive(shop: Shop, *ids: str, key: Any = "k") -> None:
    for message_id in ids:
        shop.receive(message_id, data={"k": key})


def statuses(shop: Shop, *ids: str) -> list[str]:
    return [shop.status(message_id) for message_id in ids]


def test_successors_wait_while_the_head_backs_off(ordered: Shop) -> None:
    """HZ-42: nobody overtakes a head that is not due yet; other keys, and messages without one, go on."""
    ordered.handle(key="k", key_required=False, behaviour=moody("a1"))
    receive(ordered, "a1", "a2", "a3", key="a")
    receive(ordered, "b1", "b2", key="b")
    ordered.receive("free")
    ordered.drain()
    assert statuses(ordered, "a1", "a2", "a3", "b1", "b2", "free") == ["retrying", "waiting", "waiting", *["done"] * 3]
    assert ordered.inbox.admin.stats().waiting == 2
    receive(ordered, "a4", key="a")
    assert ordered.drain() == 0
    ordered.finish()
    assert journal(ordered, "a") == ["a1", "a2", "a3", "a4"]
    assert journal(ordered, "b") == ["b1", "b2"]


def test_a_dead_head_blocks_its_key_until_it_is_discarded(ordered: Shop) -> None:
    """R18: successors wait visibly; one command resolves the chain."""
    ordered.handle(key="k", behaviour=moody("m1", error=lambda: Reject("never"), always=True))
    receive(ordered, "m1", "m2", "m3")
    ordered.finish()
    assert statuses(ordered, "m1", "m2", "m3") == ["dead", "waiting", "waiting"]
    assert ordered.inbox.admin.discard(ordered.seqs["m1"], reason="cannot be saved") == 1
    ordered.drain()
    assert journal(ordered) == ["m2", "m3"]
    assert statuses(ordered, "m1", "m2", "m3") == ["discarded", "done", "done"]


def test_a_dead_head_goes_first_when_it_is_redriven(ordered: Shop) -> None:
    """R18, HZ-42: a new budget does not lose its place."""
    deaths = ["m1"]

    def behaviour(message: Message) -> Steps:
        yield from journaling(message)
        if message.id in deaths:
            raise Reject("not in this release")

    ordered.handle(key="k", behaviour=behaviour)
    receive(ordered, "m1", "m2", "m3")
    ordered.drain()
    deaths.clear()
    assert ordered.inbox.admin.redrive(ordered.seqs["m1"]) == 1
    receive(ordered, "m4")
    ordered.drain()
    assert journal(ordered) == ["m1", "m2", "m3", "m4"]


def test_a_message_discarded_in_the_middle_leaves_the_rest_in_order(ordered: Shop) -> None:
    """R18: a waiting message may be taken out; those behind it still wait for the head."""
    ordered.handle(key="k", behaviour=moody("m1"))
    receive(ordered, "m1", "m2", "m3")
    ordered.drain()
    assert ordered.inbox.admin.discard(ordered.seqs["m2"]) == 1
    assert ordered.drain() == 0
    ordered.finish()
    assert journal(ordered) == ["m1", "m3"]


def test_a_failure_inside_a_group_stops_its_key_there(ordered: Shop) -> None:
    """R17, HZ-51: those before it are done, those behind it wait, other keys of the group are done."""
    ordered.handle(key="k", behaviour=moody("a4"))
    ordered.receive_many(arguments(f"{key}{n}", more={"data": {"k": key}}) for n in range(9) for key in ("a", "b"))
    ordered.drain()
    assert journal(ordered, "a") == [f"a{n}" for n in range(4)]
    assert journal(ordered, "b") == [f"b{n}" for n in range(9)]
    assert ordered.count("attempt") == 1
    ordered.finish()
    assert journal(ordered, "a") == [f"a{n}" for n in range(9)]


def test_an_error_of_the_database_keeps_the_order(ordered: Shop) -> None:
    """R13, R17: a head that is tried again soon, uncharged, is still the head."""
    error = ConnectionError if ordered.dialect == "sqlite" else psycopg.errors.SerializationFailure
    stumble = stumbling(error, runs=2)

    def behaviour(message: Message) -> Steps:
        if message.id == "m1":
            yield from stumble(message)
        else:
            yield wrote(message)
        yield line(message)

    ordered.handle(key="k", behaviour=behaviour)
    receive(ordered, "m1", "m2", "m3")
    ordered.finish()
    assert journal(ordered) == ["m1", "m2", "m3"]


WAYS_TO_A_KEY: dict[str, tuple[Any, dict[str, Any]]] = {
    "field": ("order", {"data": {"order": 7}}),
    "path": ("order.id", {"data": {"order": {"id": "7"}}}),
    "header": ("header:x-order", {"headers": {"x-order": "7"}}),
    "function": (lambda message: message.data["a"] + message.data["b"], {"data": {"a": 3, "b": 4}}),
    "given": (None, {"key": 7}),
}


def test_a_key_is_a_field_a_header_or_a_function(ordered: Shop) -> None:
    """R17: wherever the key comes from, it orders, and it can be seen."""
    for way, (key, message) in WAYS_TO_A_KEY.items():
        shop = ordered.another(service=way)  # keys are per consumer
        shop.handle(way, key=key, behaviour=moody(f"{way} 1"))
        for number in (1, 2):
            shop.receive(f"{way} {number}", way, **message)
        shop.drain()
        assert statuses(shop, f"{way} 1", f"{way} 2") == ["retrying", "waiting"]
        assert [row.id for row in shop.inbox.admin.messages(key="7", type=way)] == [f"{way} 2", f"{way} 1"]
        shop.finish()
    assert journal(ordered) == [f"{way} {number}" for way in WAYS_TO_A_KEY for number in (1, 2)]


def test_a_message_without_its_key_waits_for_nobody(ordered: Shop) -> None:
    """R17: no field, no order, where the handler allows that."""
    ordered.handle(key="k", key_required=False, behaviour=moody("m1"))
    for message_id, data in (("m1", {}), ("m2", {"k": None}), ("m3", [1]), ("m4", "text")):
        ordered.receive(message_id, data=data)
    ordered.drain()
    assert journal(ordered) == ["m2", "m3", "m4"]


def test_a_key_function_that_fails_is_said_by_the_worker(ordered: Shop) -> None:
    """R15, R17: receiving does not fail; the message does, with what the function raised."""
    ordered.handle(key=lambda message: message.data["missing"])
    ordered.receive("m1", data={"k": 1})
    ordered.finish()
    assert ordered.status("m1") == "dead"
    assert "KeyError: 'missing'" in ordered.error("m1")


def test_the_key_of_one_consumer_does_not_hold_another(ordered: Shop) -> None:
    """R02, R17: order is per consumer and key."""
    ordered.handle(consumer="stuck", key="k", behaviour=moody("m1", error=lambda: Reject("never")))
    ordered.handle(consumer="flows", key="k", behaviour=journaling)
    receive(ordered, "m1", "m2")
    ordered.drain()
    assert ordered.notes() == [("m1", "flows"), ("m2", "flows")]


def test_many_workers_keep_the_order_and_never_overlap(ordered: Shop) -> None:
    """R17, HZ-41: threads of one process and two inboxes, five keys: each key in order, one at a time."""
    other = ordered.another()
    active: Counter[str | None] = Counter()
    overlaps: list[str] = []
    guard = threading.Lock()

    def behaviour(message: Message) -> Steps:
        with guard:
            active[message.key] += 1
            if active[message.key] > 1:
                overlaps.append(message.id)
        try:
            yield from journaling(message)
            if message.attempt == 1 and message.id.endswith("7"):
                raise RuntimeError("not yet")
        finally:
            with guard:
                active[message.key] -= 1

    for each in (ordered, other):
        each.handle(key="k", behaviour=behaviour, group=3)
    ids = [f"{key}{n:02}" for n in range(20) for key in "abcde"]
    ordered.receive_many(arguments(message_id, more={"data": {"k": message_id[0]}}) for message_id in ids)
    for _ in range(3):
        workers = [
            threading.Thread(target=each.inbox.drain, kwargs={"concurrency": many})
            for each, many in ((ordered, 4), (other, 2))
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        ordered.hurry()
    ordered.finish()
    assert overlaps == []
    assert {key: journal(ordered, key) for key in "abcde"} == {key: [i for i in ids if i[0] == key] for key in "abcde"}


@pytest.mark.parametrize("backing_off", [False, True])
def test_a_lower_number_that_commits_late_is_not_forgotten(postgres_shop: Shop, *, backing_off: bool) -> None:
    """HZ-40, HZ-43: received in a transaction that stays open while later messages of the key come and run."""
    shop = postgres_shop
    open_journal(shop)
    shop.handle(key="k", behaviour=moody("m2") if backing_off else journaling)
    receive(shop, "m0")
    shop.drain()
    with own_transaction(shop, commit=True) as own:
        own.receive("m1", data={"k": "k"})
        receive(shop, "m2", "m3")
        assert shop.drain() == (0 if backing_off else 2)
    receive(shop, "m4")
    shop.finish()
    assert journal(shop) == (["m0", "m1", "m2", "m3", "m4"] if backing_off else ["m0", "m2", "m3", "m1", "m4"])


def test_a_lower_number_that_rolls_back_holds_nobody(postgres_shop: Shop) -> None:
    """HZ-40: a gap in the numbers is not a message."""
    shop = postgres_shop
    open_journal(shop)
    shop.handle(key="k", behaviour=journaling)
    receive(shop, "m0")
    with own_transaction(shop, commit=False) as own:
        own.receive("m1", data={"k": "k"})
        receive(shop, "m2")
    shop.drain()
    assert journal(shop) == ["m0", "m2"]


def test_an_unhandled_message_holds_its_key(ordered: Shop) -> None:
    """R17: a type that this release does not know keeps its place in the key for one that does."""
    ordered.handle("known", behaviour=journaling)
    ordered.receive("m1", "unknown", key="k")
    ordered.receive("m2", "known", key="k")
    ordered.drain()
    assert statuses(ordered, "m1", "m2") == ["unhandled", "waiting"]
    newer = ordered.another()
    newer.handle("unknown", behaviour=journaling)
    newer.handle("known", behaviour=journaling)
    newer.drain()
    assert journal(ordered) == ["m1", "m2"]
