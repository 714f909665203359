"""Order: messages of a key run one after another, in the order of their coming, across all workers."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from onceward.errors import StoreConflict
from onceward.message import Message
from onceward.retry import Reject, RetryPolicy
from onceward.testing.store_suite.behaviour import Steps, raising, wrote
from onceward.testing.store_suite.shop import TYPE, Shop, arguments, in_threads

AT_ONCE = RetryPolicy(attempts=3, first=timedelta(0), jitter=0)


def receive(shop: Shop, *ids: str, **data: Any) -> None:
    """Store messages; the letters before the digits are the key."""
    for message_id in ids:
        shop.receive(message_id, data={"k": message_id.rstrip("0123456789"), **data})


def rejecting(*ids: str) -> Any:
    """One effect each; these are dead at once."""

    def behaviour(message: Message) -> Steps:
        yield wrote(message)
        if message.id in ids:
            raise Reject("never")

    return behaviour


def of_key(shop: Shop, key: str) -> list[str]:
    """The effects of a key, in their order."""
    return [message_id for message_id, _ in shop.journal() if message_id.rstrip("0123456789") == key]


class Order:
    """Order: messages of a key run one after another, in the order of their coming, across all workers."""

    @pytest.mark.parametrize("workers", [1, 4])
    def test_messages_of_a_key_run_in_the_order_of_their_coming(self, shop: Shop, workers: int) -> None:
        shop.handle(key="k")
        ids = [f"{key}{number}" for number in range(20) for key in "abc"]
        shop.receive_many(arguments(one, more={"data": {"k": one[0]}}) for one in ids)
        while shop.drain(concurrency=workers):
            pass
        for key in "abc":
            assert of_key(shop, key) == [f"{key}{number}" for number in range(20)]

    def test_what_is_to_run_alone_waits_for_one_before_it_that_runs_again_and_fails(self, shop: Shop) -> None:
        """A conflict in a group undoes what ran before it since the savepoint; that runs again first, and may fail."""
        runs: Counter[str] = Counter()

        def behaviour(message: Message) -> Steps:
            runs[message.id] += 1
            yield wrote(message)
            if (message.id, runs["a2"]) == ("a2", 1):
                raise StoreConflict("another transaction was in the way")
            if (message.id, runs["a1"]) == ("a1", 2):
                raise ValueError("the second time")

        shop.handle(behaviour=behaviour, key="k", retry=AT_ONCE)
        shop.receive_many(arguments(one, more={"data": {"k": "a"}}) for one in ("a1", "a2", "a3"))
        shop.finish()
        assert of_key(shop, "a") == ["a1", "a2", "a3"]

    def test_two_messages_of_a_key_never_run_at_the_same_time(self, shop: Shop) -> None:
        inside, overlaps, lock = set[str](), list[str](), threading.Lock()

        def enter(message: Message) -> None:
            with lock:
                overlaps.extend([message.id] if message.key in inside else [])
                inside.add(message.key or "")

        def behaviour(message: Message) -> Steps:
            enter(message)
            yield wrote(message)
            inside.discard(message.key or "")

        shop.handle(behaviour=behaviour, key="k")
        other = shop.another()
        other.handle(behaviour=behaviour, key="k")
        receive(shop, *(f"{key}{number}" for number in range(15) for key in "ab"))
        if shop.kind == "def":
            in_threads(shop.drain, other.drain)
        while shop.drain() + other.drain():
            pass
        assert overlaps == []
        assert [of_key(shop, key) for key in "ab"] == [[f"{key}{number}" for number in range(15)] for key in "ab"]

    def test_one_that_fails_holds_its_key_and_no_other(self, shop: Shop) -> None:
        failed = raising(lambda: RuntimeError("not yet"), attempts=1)
        shop.handle(behaviour=lambda message: failed(message) if message.id == "a0" else behaves(message), key="k")
        receive(shop, "a0", "a1", "b0", "b1")
        shop.drain()
        assert shop.effects() == ["b0", "b1"]
        assert [shop.status(one) for one in ("a0", "a1")] == ["retrying", "waiting"]
        shop.finish()
        assert of_key(shop, "a") == ["a0", "a1"]

    def test_a_dead_one_blocks_its_key_until_it_is_redriven(self, shop: Shop) -> None:
        bad = {"a0"}

        def behaviour(message: Message) -> Steps:
            yield from rejecting(*bad)(message)

        shop.handle(behaviour=behaviour, key="k")
        receive(shop, "a0", "a1")
        shop.drain()
        assert [shop.status(one) for one in ("a0", "a1")] == ["dead", "waiting"]
        (blocked,) = shop.inbox.admin.blocked_keys()
        assert (blocked.seq, blocked.behind, blocked.next_seq) == (shop.seqs["a0"], 1, shop.seqs["a1"])
        bad.clear()
        assert shop.inbox.admin.redrive(shop.seqs["a0"], reason="mended") == 1
        shop.drain()
        assert of_key(shop, "a") == ["a0", "a1"]

    @pytest.mark.parametrize("action", ["discard", "unblock"])
    def test_a_key_goes_on_when_its_dead_one_is_out_of_the_way(self, shop: Shop, action: str) -> None:
        shop.handle(behaviour=rejecting("a0"), key="k")
        receive(shop, "a0", "a1", "a2")
        shop.drain()
        getattr(shop.inbox.admin, action)(shop.seqs["a0"], reason="it is nothing")
        shop.drain()
        assert of_key(shop, "a") == ["a1", "a2"]
        assert shop.status("a0") == ("discarded" if action == "discard" else "dead")

    def test_a_key_goes_on_by_itself_where_its_handler_says_so(self, shop: Shop) -> None:
        shop.handle(behaviour=rejecting("a0"), key="k", on_dead="continue")
        receive(shop, "a0", "a1", "b0")
        shop.drain()
        assert (of_key(shop, "a"), of_key(shop, "b"), shop.status("a0")) == (["a1"], ["b0"], "dead")

    def test_positions_say_the_order_where_they_are_given(self, shop: Shop) -> None:
        shop.handle(key="k")
        for position in (30, 10, 20):
            shop.receive(f"a{position}", data={"k": "a"}, position=position)
        shop.drain()
        assert of_key(shop, "a") == ["a10", "a20", "a30"]

    def test_a_number_waits_for_the_one_before_it(self, shop: Shop) -> None:
        shop.handle(key="k", sequence="n")
        for number in (2, 3, 1):
            shop.receive(f"a{number}", data={"k": "a", "n": number})
            shop.drain()
        assert of_key(shop, "a") == ["a1", "a2", "a3"]

    def test_a_number_that_is_applied_is_skipped(self, shop: Shop) -> None:
        shop.handle(key="k", sequence="n")
        for message_id, number in (("a1", 1), ("a2", 2), ("late", 1)):
            shop.receive(message_id, data={"k": "a", "n": number})
        shop.drain()
        assert (of_key(shop, "a"), shop.status("late")) == (["a1", "a2"], "skipped")
        assert shop.inbox.admin.stats().skipped == 1

    def test_a_number_that_does_not_come_is_given_up_in_the_end(self, shop: Shop) -> None:
        shop.handle(key="k", sequence="n", gap=timedelta(milliseconds=1))
        shop.receive("a2", data={"k": "a", "n": 2})
        shop.wait(lambda: shop.drain() or shop.status("a2") == "dead")
        assert "number 1" in shop.error("a2")
        shop.inbox.admin.unblock(shop.seqs["a2"], reason="it is lost")
        shop.receive("a3", data={"k": "a", "n": 3})
        shop.drain()
        assert of_key(shop, "a") == ["a3"]

    def test_numbers_and_inline_processing_go_together(self, shop: Shop) -> None:
        shop.handle(key="k", sequence="n")
        assert shop.process("a1", data={"k": "a", "n": 1}).finished
        assert not shop.process("a3", data={"k": "a", "n": 3}).finished
        assert not shop.process("a2", data={"k": "a", "n": 2}).finished, "a worker decides where others wait"
        shop.drain()
        stale = shop.process("again", data={"k": "a", "n": 1})
        assert (of_key(shop, "a"), stale.finished, shop.status("again")) == (["a1", "a2", "a3"], True, "skipped")

    def test_inline_work_queues_behind_what_is_unfinished_of_its_key(self, shop: Shop) -> None:
        shop.handle(key="k")
        receive(shop, "a0")
        assert not shop.process("a1", data={"k": "a"}).finished
        assert shop.process("b0", data={"k": "b"}).finished
        shop.drain()
        assert of_key(shop, "a") == ["a0", "a1"]

    def test_what_comes_while_its_key_is_processed_inline_waits(self, shop: Shop) -> None:
        """Stored meanwhile or processed inline by another process: it runs after this one, never beside it."""
        other = shop.another()
        other.handle(key="k")
        seen: list[Any] = []
        # Where there is one writer, it is the handler.
        is_told = shop.kind == "def" and not shop.inbox.store.single_writer

        def meanwhile(message: Message) -> None:
            if message.id == "a0" and is_told:
                seen.append(in_threads(lambda: other.receive("a1", data={"k": "a"}))[0].status)
                seen.append(in_threads(other.drain)[0])

        def behaviour(message: Message) -> Steps:
            meanwhile(message)
            yield wrote(message)

        shop.handle(behaviour=behaviour, key="k")
        assert shop.process("a0", data={"k": "a"}).finished
        shop.drain()
        other.receive("a2", data={"k": "a"})
        other.drain()
        assert of_key(shop, "a") == ["a0", *(["a1"] if is_told else []), "a2"]
        assert seen == (["accepted", 0] if is_told else [])

    def test_keys_of_different_consumers_are_their_own(self, shop: Shop) -> None:
        shop.handle(behaviour=rejecting("a0"), consumer="billing", key="k")
        shop.handle(consumer="stock", key="k")
        receive(shop, "a0", "a1")
        shop.drain()
        assert shop.notes() == [("a0", "stock"), ("a1", "stock")]

    def test_a_batch_keeps_the_order_of_its_keys(self, shop: Shop) -> None:
        lists: list[list[str]] = []

        def batch(messages: list[Message], tx: Any) -> None:
            lists.append([message.id for message in messages])
            for message in messages:
                shop.place.write(tx, (message.id, "batch"))

        async def async_batch(messages: list[Message], tx: Any) -> None:
            lists.append([message.id for message in messages])
            for message in messages:
                await wrote(message).take_async(tx, shop.place)

        shop.inbox.on(TYPE, key="k", batch=True)(batch if shop.kind == "def" else async_batch)
        receive(shop, *(f"{key}{number}" for number in range(5) for key in "ab"))
        shop.drain()
        assert [of_key(shop, key) for key in "ab"] == [[f"{key}{number}" for number in range(5)] for key in "ab"]
        assert max(map(len, lists)) > 1


def behaves(message: Message) -> Steps:
    """One effect."""
    yield wrote(message)
