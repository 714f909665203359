"""Delays: a message with `at=` or `delay=` joins its key when it is due, and holds no other before that."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from onceward.errors import InvalidMessage
from onceward.message import Message
from onceward.retry import Reject
from onceward.testing.store_suite.behaviour import Steps, raising, wrote
from onceward.testing.store_suite.order import of_key, receive
from onceward.testing.store_suite.outbox import opened
from onceward.testing.store_suite.shop import Shop, arguments

HOUR = timedelta(hours=1)


def later(shop: Shop, *ids: str, **more: Any) -> None:
    """Store messages that are due in an hour; the letters before the digits are the key."""
    for message_id in ids:
        key = message_id.rstrip("0123456789")
        shop.receive(message_id, **{"data": {"k": key}, "delay": HOUR, **more})


class Delays:
    """Delays: a message with `at=` or `delay=` joins its key when it is due, and holds no other before that."""

    def test_a_scheduled_message_is_not_run_before_it_is_due(self, shop: Shop) -> None:
        shop.handle()
        later(shop, "a1")
        assert (shop.drain(), shop.status("a1"), shop.inbox.admin.stats().scheduled) == (0, "scheduled", 1)
        (row,) = shop.inbox.admin.messages(status="scheduled")
        detail = shop.detail("a1")
        assert (row.seq, row.due_at) == (shop.seqs["a1"], detail.scheduled_at)
        assert detail.scheduled_at is not None
        assert detail.scheduled_at - detail.received_at == HOUR
        shop.let_time_pass("a1")
        assert (shop.status("a1"), shop.drain(), shop.effects()) == ("due", 1, ["a1"])

    def test_its_time_comes_by_the_clock_of_the_store(self, shop: Shop) -> None:
        shop.handle()
        later(shop, "a1", delay=0.02)
        shop.receive("a2", at=datetime.now(UTC) + timedelta(seconds=0.02))
        shop.wait(lambda: shop.drain() and len(shop.effects()) == 2)

    def test_a_worker_takes_it_up_by_itself(self, shop: Shop) -> None:
        shop.handle(key="k")
        with shop.running():
            later(shop, "a1", delay=0.02)
            shop.wait(lambda: shop.effects() == ["a1"])

    def test_times_that_cannot_be_are_refused(self, shop: Shop) -> None:
        naive, past = datetime(2099, 1, 1), datetime.now(UTC) - HOUR  # noqa: DTZ001 - that is it
        for given, what in (
            ({"at": naive}, "time zone"),
            ({"at": past}, "is past"),
            ({"at": "tomorrow"}, "must be a datetime"),
            ({"at": past, "delay": 1}, "not both"),
            ({"delay": -1}, "delay=-1"),
            ({"delay": timedelta(days=99_999)}, "36,525 days"),
            ({"delay": True}, "delay=True"),
            ({"delay": 1, "position": 3}, "position="),
        ):
            with pytest.raises(InvalidMessage, match=what):
                shop.receive("a1", **given)
        shop.handle()
        assert shop.receive("a1", delay=0).outcome == "queued"
        assert shop.receive("a2", at=datetime.now(UTC)).outcome == "queued"
        assert shop.drain() == 2

    def test_it_holds_no_other_of_its_key_before_it_is_due(self, shop: Shop) -> None:
        shop.handle(key="k")
        later(shop, "a1")
        receive(shop, "a2")
        shop.drain()
        assert shop.process("a3", data={"k": "a"}).outcome == "done"
        assert (of_key(shop, "a"), shop.inbox.admin.blocked_keys()) == (["a2", "a3"], [])
        shop.let_time_pass("a1")
        shop.drain()
        assert of_key(shop, "a") == ["a2", "a3", "a1"]

    def test_it_joins_its_key_behind_what_came_before(self, shop: Shop) -> None:
        shop.handle(behaviour=_failing_first("a2"), key="k")
        later(shop, "a1")
        receive(shop, "a2")
        shop.drain()
        shop.let_time_pass("a1")
        shop.drain()
        assert [shop.status(one) for one in ("a1", "a2")] == ["waiting", "retrying"]
        receive(shop, "a3")
        shop.drain()
        shop.finish()
        assert of_key(shop, "a") == ["a2", "a1", "a3"]

    def test_what_comes_when_it_has_joined_waits_behind_it(self, shop: Shop) -> None:
        shop.handle(behaviour=_failing_first("a1"), key="k")
        later(shop, "a1")
        shop.let_time_pass("a1")
        shop.drain()
        assert shop.status("a1") == "retrying"
        receive(shop, "a2")
        assert shop.process("a3", data={"k": "a"}).outcome == "queued"
        shop.drain()
        assert [shop.status(one) for one in ("a1", "a2", "a3")] == ["retrying", "waiting", "waiting"]
        shop.finish()
        assert of_key(shop, "a") == ["a1", "a2", "a3"]

    def test_those_of_a_key_come_in_the_order_of_their_times(self, shop: Shop) -> None:
        shop.handle(key="k")
        ids = [f"{key}{number}" for number in range(6) for key in "ab"]
        later(shop, *ids)
        shop.let_time_pass(*reversed(ids))
        while shop.drain(concurrency=2):
            pass
        for key in "ab":
            assert of_key(shop, key) == [f"{key}{number}" for number in reversed(range(6))]

    def test_a_dead_one_holds_its_key_and_is_redriven_in_it(self, shop: Shop) -> None:
        bad = {"a1"}

        def behaviour(message: Message) -> Steps:
            yield wrote(message)
            if message.id in bad:
                raise Reject("never")

        shop.handle(behaviour=behaviour, key="k")
        later(shop, "a1")
        shop.let_time_pass("a1")
        shop.drain()
        receive(shop, "a2")
        shop.drain()
        assert [shop.status(one) for one in ("a1", "a2")] == ["dead", "waiting"]
        bad.clear()
        shop.inbox.admin.redrive(shop.seqs["a1"])
        shop.drain()
        assert of_key(shop, "a") == ["a1", "a2"]

    def test_a_copy_changes_nothing(self, shop: Shop) -> None:
        shop.handle()
        later(shop, "a1")
        due = shop.detail("a1").due_at
        assert shop.receive("a1", data={"k": "a"}, delay=0).status == "duplicate"
        assert shop.process("a1", data={"k": "a"}).status == "duplicate"
        assert (shop.drain(), shop.detail("a1").due_at, shop.detail("a1").duplicates) == (0, due, 2)

    def test_process_stores_it_for_a_worker(self, shop: Shop) -> None:
        shop.handle(key="k")
        assert shop.process("a1", data={"k": "a"}, delay=HOUR).outcome == "queued"
        assert (shop.runs.total(), shop.status("a1")) == (0, "scheduled")

    def test_many_are_received_at_once_each_with_its_time(self, shop: Shop) -> None:
        shop.handle()
        shop.receive_many([arguments(f"a{hours}", more={"delay": hours * HOUR}) for hours in range(3)])
        rows = shop.inbox.admin.messages()
        assert [(row.id, row.status) for row in rows] == [("a2", "scheduled"), ("a1", "scheduled"), ("a0", "due")]

    def test_it_is_cancelled_while_it_is_scheduled_and_never_runs(self, shop: Shop) -> None:
        shop.handle(key="k")
        later(shop, "a1", "b1", "a2")
        assert shop.inbox.admin.cancel(key="a", reason="paid already") == 2
        assert shop.inbox.admin.cancel(shop.seqs["a1"]) == 0
        shop.let_time_pass("b1")
        receive(shop, "b2")
        assert shop.inbox.admin.cancel(shop.seqs["b2"]) == 0, "it is not scheduled"
        shop.drain()
        assert (shop.effects(), [shop.status(one) for one in ("a1", "a2")]) == (["b1", "b2"], ["discarded"] * 2)
        assert shop.receive("a1", data={"k": "a"}).status == "duplicate"

    def test_every_consumer_gets_it_when_it_is_due(self, shop: Shop) -> None:
        shop.handle(key="k", consumer="mail", behaviour=_with_consumer)
        shop.handle(key="k", consumer="billing", behaviour=_with_consumer)
        later(shop, "a1")
        seqs = [row.seq for row in shop.inbox.admin.messages(status="scheduled")]
        shop.drain()
        assert (len(seqs), shop.notes()) == (2, [])
        assert shop.inbox.admin.hasten(*seqs) == 2
        shop.drain()
        assert shop.notes() == [("a1", "billing"), ("a1", "mail")]

    @pytest.mark.parametrize("consumer", [None, "mail"])
    def test_a_type_without_a_handler_keeps_its_time(self, shop: Shop, consumer: str | None) -> None:
        shop.handle("other", key="k", consumer=consumer)
        later(shop, "a1")
        assert shop.status("a1") == "unhandled"
        shop.handle(key="k", consumer=consumer)
        receive(shop, "a2")
        shop.drain()
        rows = {row.id: row for row in shop.inbox.admin.messages()}
        assert (rows["a1"].status, of_key(shop, "a")) == ("scheduled", ["a2"])
        shop.inbox.admin.hasten(rows["a1"].seq)
        shop.drain()
        assert of_key(shop, "a") == ["a2", "a1"]

    def test_without_its_key_function_it_keeps_its_time(self, shop: Shop) -> None:
        shop.handle(key=lambda message: message.data["k"])
        shop.drain()
        sender = shop.another()
        sender.receive("a1", data={"k": "a"}, delay=HOUR)
        assert sender.status("a1") == "unhandled"
        receive(shop, "a2")
        shop.drain()
        shop.seqs.update(sender.seqs)
        assert (shop.status("a1"), shop.detail("a1").key, of_key(shop, "a")) == ("scheduled", "a", ["a2"])
        shop.let_time_pass("a1")
        shop.drain()
        assert of_key(shop, "a") == ["a2", "a1"]

    def test_a_number_waits_for_the_one_before_it_that_is_scheduled(self, shop: Shop) -> None:
        shop.handle(key="k", sequence="n", gap=timedelta(0))
        later(shop, "a1", data={"k": "a", "n": 1})
        shop.receive("a2", data={"k": "a", "n": 2})
        shop.drain()
        assert [shop.status(one) for one in ("a1", "a2")] == ["scheduled", "waiting"]
        shop.let_time_pass("a1")
        shop.drain()
        assert of_key(shop, "a") == ["a1", "a2"]

    def test_a_number_that_is_cancelled_counts_as_applied(self, shop: Shop) -> None:
        shop.handle(key="k", sequence="n")
        later(shop, "a1", data={"k": "a", "n": 1})
        shop.receive("a2", data={"k": "a", "n": 2})
        shop.drain()
        assert shop.inbox.admin.cancel(shop.seqs["a1"]) == 1
        shop.drain()
        assert of_key(shop, "a") == ["a2"]

    def test_a_mismatch_that_is_accepted_keeps_its_time(self, shop: Shop) -> None:
        shop.handle(key="k")
        receive(shop, "a1")
        assert shop.receive("a1", data={"k": "a", "other": True}, delay=HOUR).status == "mismatch"
        (case,) = shop.inbox.admin.quarantine()
        seq = shop.inbox.admin.resolve(case.case, "accept-as-new")
        assert seq is not None
        assert shop.drain() == 1
        assert shop.status(seq) == "scheduled"
        assert shop.inbox.admin.hasten(seq) == 1
        assert shop.drain() == 1

    def test_how_long_it_has_taken_counts_from_its_time_on(self, shop: Shop) -> None:
        shop.handle(behaviour=_failing_first("a1"))
        later(shop, "a1")
        shop.let_time_pass("a1")
        assert shop.inbox.admin.stats().oldest_due_seconds < HOUR.total_seconds()
        assert [event.what[:13] for event in shop.inbox.admin.explain(shop.seqs["a1"]).events][1] == "scheduled for"  # type: ignore[union-attr] # it is there

    def test_what_a_handler_sends_later_is_published_then(self, shop: Shop) -> None:
        post = opened(shop)

        def behaviour(message: Message) -> Steps:
            yield wrote(message)
            message.send("reminder", {"name": "later"}, key="k", delay=HOUR)
            message.send("reminder", {"name": "now"}, key="k")

        shop.handle(behaviour=behaviour)
        receive(shop, "a1")
        shop.drain()
        (row,) = shop.inbox.admin.messages(status="scheduled", outgoing=True)
        stats = shop.inbox.admin.stats()
        assert (post.names, stats.outbox_unsent, stats.scheduled) == (["now"], 0, 0)
        assert shop.inbox.admin.hasten(row.seq) == 1
        shop.drain()
        assert (post.names, post.delivered[1].id) == (["now", "later"], row.id)

    def test_what_is_sent_later_is_published_then_and_once(self, shop: Shop) -> None:
        post = opened(shop)

        for _ in range(2):
            shop.call(shop.inbox, "send", "reminder", {"name": "r1"}, id="r1", at=datetime(2099, 1, 1, tzinfo=UTC))
        (row,) = shop.inbox.admin.messages(outgoing=True)
        assert (shop.drain(), row.status, row.due_at) == (0, "scheduled", datetime(2099, 1, 1, tzinfo=UTC))
        assert shop.inbox.admin.cancel(row.seq) == 1
        shop.drain()
        assert post.names == []


def _failing_first(failing: str) -> Any:
    """One effect each; this one fails at its first attempt."""
    failed = raising(lambda: RuntimeError("not yet"), attempts=1)

    def behaviour(message: Message) -> Steps:
        if message.id == failing:
            yield from failed(message)
        else:
            yield wrote(message)

    return behaviour


def _with_consumer(message: Message) -> Steps:
    yield wrote(message, message.consumer)
