"""Who gets a message, wherever it comes in (R02, R05; design 3, "Fan-out")."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from onceward import ConfigurationError, Settings
from onceward.domain.identity import UNIDENTIFIED
from onceward.flow import Query, run_sync
from onceward.message import Delivery
from onceward.steps.receive import receive
from onceward.steps.subscribe import fan_out
from tests.contract.behaviour import raising, returning
from tests.contract.harness import Kind, Shop, arguments
from tests.contract.journal import journal, journaling, open_journal
from tests.waiting import wait_until


def test_each_consumer_processes_a_message_once(shop: Shop) -> None:
    """R02: handlers with consumers of their own each have their own effect, result and failures."""
    shop.handle(consumer="billing")
    shop.handle(consumer="stock", behaviour=raising(lambda: RuntimeError("no shelf"), attempts=1))
    shop.handle(consumer="mail", behaviour=returning("sent"))
    assert [shop.receive("m1").status for _ in range(3)] == ["accepted", "duplicate", "duplicate"]
    shop.drain()
    assert shop.notes() == [("m1", "billing"), ("m1", "mail")]
    assert not shop.receive("m1").finished
    shop.finish()
    assert shop.notes() == [("m1", "billing"), ("m1", "mail"), ("m1", "stock")]
    last = shop.receive("m1")
    assert (last.status, last.finished, last.result) == ("duplicate", True, "sent")


def test_renaming_a_function_changes_nothing(shop: Shop) -> None:
    """R02: the scope is a chosen name; a new release with other function names runs nothing again."""
    shop.handle()
    shop.receive("m1")
    shop.drain()
    renamed = shop.another()

    @renamed.inbox.on("order.paid")
    def quite_another_name(*_: object) -> None:
        raise AssertionError("a finished message ran again")

    assert renamed.receive("m1").status == "duplicate"
    assert renamed.drain() == 0


def test_a_receiver_without_handlers_fans_out(shop: Shop) -> None:
    """R02: a web process that imports no handlers stores a row for every consumer, under the right key."""
    shop.handle(consumer="billing", key="order.id")
    shop.handle(consumer="stock", key="header:warehouse")
    shop.drain()
    receiver = shop.another()
    receiver.receive("m1", data={"order": {"id": 7}}, headers={"warehouse": "north"})
    assert {(row.consumer, row.key) for row in shop.inbox.admin.messages()} == {("billing", "7"), ("stock", "north")}
    shop.drain()
    assert shop.notes() == [("m1", "billing"), ("m1", "stock")]


def test_a_message_nobody_handles_stays_and_is_reported(shop: Shop) -> None:
    """R15: an unknown type is not an error of the sender; it waits where it can be seen."""
    shop.handle()
    assert shop.receive("m1", "order.refunded").status == "accepted"
    assert shop.process("m2", "order.refunded").finished is False
    assert shop.drain() == 0
    assert shop.inbox.admin.stats().unhandled == 2
    assert [row.id for row in shop.inbox.admin.messages(status="unhandled")] == ["m2", "m1"]
    assert shop.receive("m1", "order.refunded").status == "duplicate"


def test_a_message_nobody_handles_holds_no_key(shop: Shop) -> None:
    """D14: only what its consumer will get may be of a key; what waits for a person would hold every key for ever."""
    shop.receive("stray", UNIDENTIFIED)
    shop.receive("other", "order.refunded")
    shop.handle(key="k")
    shop.receive("m1", data={"k": "a"})
    shop.drain()
    assert shop.effects() == ["m1"]
    assert shop.process("m2", data={"k": "a"}).finished


def test_an_unhandled_message_is_adopted_by_the_first_who_knows_it(shop: Shop) -> None:
    """R02: a later release finds it under the number it always had."""
    seq = shop.receive("m1").seq
    later = shop.another()
    later.handle(key="id")
    later.drain()
    assert (shop.status(seq), shop.story(seq).key) == ("done", "m1")
    assert shop.effects() == ["m1"]
    assert shop.receive("m1").status == "duplicate"


def test_an_unhandled_message_goes_to_every_consumer(shop: Shop) -> None:
    """R02: the service keeps its row, the others get theirs."""
    seq = shop.receive("m1").seq
    later = shop.another()
    later.handle()
    later.handle(consumer="stock")
    later.drain()
    assert shop.notes() == [("m1", "default"), ("m1", "stock")]
    assert shop.status(seq) == "done"
    assert later.receive("m1").status == "duplicate"


def test_an_unhandled_message_that_only_others_want_moves_to_them(shop: Shop) -> None:
    """R02, HZ-06: the row of the service goes in the transaction that makes the others'; copies stay duplicates."""
    shop.receive("m1", headers={"trace": "ab"})
    later = shop.another()
    later.handle(consumer="billing")
    later.handle(consumer="stock")
    later.drain()
    assert shop.notes() == [("m1", "billing"), ("m1", "stock")]
    assert [row.consumer for row in shop.inbox.admin.messages()] == ["stock", "billing"]
    assert later.receive("m1").status == "duplicate"
    assert later.drain() == 0


def test_many_unhandled_messages_are_adopted_in_order(shop: Shop) -> None:
    """R17: more than one batch of them, with keys, in the order of arrival."""
    open_journal(shop)
    ids = [f"m{number:03}" for number in range(130)]
    shop.receive_many([arguments(message_id, more={"data": {"k": int(message_id[1:]) % 2}}) for message_id in ids])
    later = shop.another()
    later.handle(behaviour=journaling, key="k")
    later.drain()
    for parity in (0, 1):
        wanted = [message_id for message_id in ids if int(message_id[1:]) % 2 == parity]
        assert [m for m in journal(shop) if int(m[1:]) % 2 == parity] == wanted


def test_a_message_that_moves_to_others_keeps_its_place(shop: Shop) -> None:
    """R17: it came before one of its key that was stored when its type was known, and takes effect before it."""
    open_journal(shop)
    shop.receive("first", data={"k": "a"})
    later = shop.another()
    later.handle(consumer="billing", behaviour=journaling, key="k")
    later.receive("other", "other.type")  # known to the database by now, not yet fanned out
    later.receive("second", data={"k": "a"})
    later.drain()
    assert journal(shop) == ["first", "second"]


def test_a_fan_out_waits_for_another(shop: Shop) -> None:
    """R17: what is being fanned out is not passed by: whoever sees nothing left to do may run what came later."""
    shop.receive("m1", data={"k": "a"})
    later = shop.another()
    later.handle(consumer="billing", key="k")
    later.receive("other", "other.type")
    context = later.inbox.context
    seen: list[int] = []
    with shop.inbox.store.session() as slow, later.inbox.store.session() as quick:
        steps = fan_out(context)
        request = next(steps)
        while not (isinstance(request, Query) and request.name == "hand_on"):  # its rows are made, not yet committed
            request = steps.send(slow.perform(request))
        thread = threading.Thread(target=lambda: seen.append(run_sync(fan_out(context), quick.perform)))
        thread.start()
        thread.join(0.3)
        assert seen == [], "it went by"
        with suppress(StopIteration):
            while True:
                request = steps.send(slow.perform(request))
        thread.join()
    assert seen == [0]
    later.drain()
    assert shop.notes() == [("m1", "billing")]


def test_a_message_is_discarded_or_fanned_out_and_never_both(postgres_url: str) -> None:
    """A person's word comes before the fan-out or finds nothing any more: on PostgreSQL both can be under way."""
    with Shop(postgres_url, "def") as shop, shop.visitor() as later:
        seq = shop.receive("m1").seq
        later.handle(consumer="billing")
        later.receive("other", "other.type")
        with later.inbox.store.session() as session:
            steps = fan_out(later.inbox.context)
            request = next(steps)
            while not (
                isinstance(request, Query) and request.name == "hand_on"
            ):  # its rows are made, not yet committed
                request = steps.send(session.perform(request))
            discarded: list[int] = []
            deciding = threading.Thread(target=lambda: discarded.append(shop.inbox.admin.discard(seq, reason="test")))
            deciding.start()
            wait_until(lambda: discarded or shop.waiting_for_locks())
            with suppress(StopIteration):
                while True:
                    request = steps.send(session.perform(request))
            deciding.join()
        later.drain()
        assert (discarded, shop.notes()) == ([0], [("m1", "billing")])


def test_an_unhandled_message_is_redelivered_before_it_is_adopted(shop: Shop) -> None:
    """R01, I2: it is known to every consumer as soon as its type is, also while its row is not yet fanned out."""
    open_journal(shop)
    ids = ("m1", "m2")
    shop.receive_many([arguments(one, more={"data": {"k": "a", "of": one}}) for one in ids])
    later = shop.another()
    later.handle(consumer="billing", behaviour=journaling, key="k")
    later.handle(consumer="stock")
    later.receive("other", "other.type")  # known to the database by now, not yet fanned out
    copies = [later.receive("m2", data={"k": "a", "of": "m2"}), later.process("m1", data={"k": "a", "of": "m1"})]
    assert [copy.status for copy in copies] == ["duplicate", "duplicate"]
    assert later.receive("m1", data={"k": "a", "of": "another"}).status == "mismatch"
    assert later.process("m2", data={"k": "a", "of": "another"}).status == "mismatch"
    later.drain()
    assert journal(shop) == ["m1", "m2"]
    assert shop.notes() == [(one, consumer) for one in ids for consumer in ("billing", "stock")]
    assert sorted(case.id for case in shop.inbox.admin.quarantine()) == ["m1", "m2"]
    assert later.receive("m1", data={"k": "a", "of": "m1"}).status == "duplicate"


def test_a_message_that_waits_with_two_services_has_come_when_it_came_first(shop: Shop) -> None:
    """R17: one that reached the other service in the other order takes its first place."""
    open_journal(shop)
    for service, ids in ((shop, ("m1", "m2")), (shop.another(service="billing"), ("m2", "m1"))):
        for one in ids:
            service.receive(one, data={"k": "a"})
    later = shop.another(service="billing")
    later.handle(behaviour=journaling, key="k")
    later.drain()
    assert journal(shop) == ["m1", "m2"]
    assert shop.count("queue") == 0


def test_a_stale_receiver_reaches_a_new_consumer(shop: Shop) -> None:
    """R02: in a rolling deploy, an old receiver stores for the consumer that the new release brought."""
    receiver = shop.another()
    receiver.receive("m0")
    shop.handle()
    shop.drain()
    receiver.receive("m1")
    newer = shop.another()
    newer.handle(consumer="stock")
    newer.drain()
    receiver.receive("m2")
    for worker in (shop, newer):
        worker.drain()
    assert shop.notes() == [("m0", "default"), ("m1", "default"), ("m2", "default"), ("m2", "stock")]


def test_inline_work_under_a_stale_catalog_reaches_a_new_consumer(shop: Shop) -> None:
    """R02: the same for a release that handles what it receives at once."""
    shop.handle()
    shop.process("m1")
    newer = shop.another()
    newer.handle(consumer="stock")
    newer.drain()
    shop.process("m2")
    newer.drain()
    assert shop.notes() == [("m1", "default"), ("m2", "default"), ("m2", "stock")]


def test_fanning_out_under_a_stale_catalog_loses_nothing(shop: Shop) -> None:
    """R02, I1: the catalog changes between a worker's look at it and its fan-out; the message is still there."""
    shop.receive("m1")
    worker, another_release = shop.another(), shop.another()
    worker.handle(consumer="billing")
    worker.receive("x", "other.type")  # the worker has read the catalog
    another_release.handle("third.type")
    another_release.receive("y", "other.type")  # and it is outdated now
    worker.step(fan_out(worker.inbox.context))
    worker.drain()
    assert shop.notes() == [("m1", "billing")]


def test_a_consumer_added_later_sees_only_new_messages(shop: Shop) -> None:
    """R02: history is replayed on purpose, never by accident."""
    shop.handle()
    shop.receive("old")
    shop.drain()
    shop.receive("queued")
    later = shop.another()
    later.handle(consumer="stock")
    later.drain()
    later.receive("new")
    for worker in (shop, later):
        worker.drain()
    assert shop.notes() == [("new", "default"), ("new", "stock"), ("old", "default"), ("queued", "default")]


SLOW_DUTIES = Settings(lease=timedelta(minutes=5), poll=timedelta(milliseconds=50))
"""What is placed at all is placed because a lane wants it to be."""
QUICK_DUTIES = replace(SLOW_DUTIES, lease=timedelta(seconds=2))


def test_a_message_whose_key_function_is_elsewhere_waits_for_it(shop: Shop) -> None:
    """D21, R17: it is stored, nobody else waits for it, and what came later in its key does."""
    open_journal(shop)
    by_k: dict[str, Any] = {"key": lambda message: message.data["k"], "behaviour": journaling, "consumer": "billing"}
    shop.handle(**by_k)
    shop.drain()
    receiver = shop.another(settings=SLOW_DUTIES)
    receiver.handle()
    with shop.visitor(settings=SLOW_DUTIES) as worker:
        worker.handle(**by_k)
        with worker.running():
            receipts = [receiver.receive("m1", data={"k": 1}), receiver.process("m2", data={"k": 1})]
            assert [receipt.status for receipt in receipts] == ["accepted", "accepted"]
            assert receiver.receive("m1", data={"k": 1}).status == "duplicate"
            worker.receive("m3", data={"k": 1})
            assert worker.process("m4", data={"k": 1}).status == "accepted"
            receiver.receive("m5", key="1", data={})
            wait_until(lambda: len(journal(shop)) == 5)
    assert journal(shop) == ["m1", "m2", "m3", "m4", "m5"]
    receiver.drain()
    assert {message for message, consumer in shop.notes() if consumer == "default"} == {f"m{n}" for n in range(1, 6)}
    assert shop.count("queue") == 0


def test_two_key_functions_in_two_programs(shop: Shop) -> None:
    """D21: neither program can place a message for both; each places its own."""
    receiver, one, two = shop.another(), shop.another(), shop.another()
    receiver.receive("m1", data={"k": 1})
    one.handle(consumer="one", key=lambda message: message.data["k"])
    two.handle(consumer="two", key=lambda message: message.data["k"])
    for program in (one, two):
        program.receive("other", "other.type")  # known to the database, nothing is placed yet
    receiver.receive("m2", data={"k": 1})
    for program in (one, two):
        program.drain()
    assert shop.notes() == [("m1", "one"), ("m1", "two"), ("m2", "one"), ("m2", "two")]


def test_a_message_that_was_being_received_when_its_type_became_known(postgres_url: str, kind: Kind) -> None:
    """D14: whoever subscribes waits for it, so whoever knows the type knows the message; a worker starts meanwhile."""
    with Shop(postgres_url, kind) as shop:
        open_journal(shop)
        shop.receive("other", "other.type")
        context = shop.inbox.context
        first = Delivery.of(source="stripe", id="first", type="order.paid", data={"k": "a"})
        with shop.inbox.store.session() as session, shop.visitor(settings=QUICK_DUTIES) as later:
            flow = receive(context, context.cache, [first])
            request: Any = next(flow)
            begin, held, insert, commit = request
            session.perform((begin, held, insert))
            later.handle(consumer="billing", behaviour=journaling, key="k")
            with later.running():
                session.perform(commit)
                flow.close()
                later.receive("second", data={"k": "a"})
                wait_until(lambda: len(journal(shop)) == 2)
        assert journal(shop) == ["first", "second"]


def test_fanning_out_goes_on_under_a_newer_catalog(shop: Shop) -> None:
    """D11: that none was placed is not that none is left; all of them are, in one call."""
    shop.receive_many([arguments(f"m{number}") for number in range(130)])
    worker, another_release = shop.another(), shop.another()
    worker.handle(consumer="billing")
    worker.receive("x", "other.type")  # the worker has read the catalog
    another_release.handle("third.type")
    another_release.receive("y", "other.type")  # and it is outdated now
    assert worker.step(fan_out(worker.inbox.context)) == 130
    assert worker.step(fan_out(worker.inbox.context)) == 0


def test_handlers_that_collide_are_refused_at_registration(shop: Shop) -> None:
    """R02: one handler per consumer, type and version, and the error names both and the way out."""
    shop.handle()
    with pytest.raises(ConfigurationError, match=r"consumer=|consumer 'default'"):
        shop.handle()
    shop.handle(version=2)
    with pytest.raises(ConfigurationError, match="key"):
        shop.handle(version=3, key="id")
    with pytest.raises(ConfigurationError, match="def"):
        shop.handle(version=3, kind="def" if shop.kind == "async" else "async")
    with pytest.raises(ConfigurationError, match="group"):
        shop.handle("other.type", group=0)
    shop.handle(consumer="stock")
    shop.receive("m1")
    shop.drain()
    assert shop.notes() == [("m1", "default"), ("m1", "stock")]


def test_an_unknown_version_is_dead_with_a_clear_error(shop: Shop) -> None:
    """R20: never half-read; others go on. D28: newer ones only when their retry policy gives up."""
    shop.handle(version=2)
    for version in (1, 2, 3):
        shop.receive(f"v{version}", version=version)
    assert shop.process("v4", version=4).finished is False
    shop.drain()
    assert [shop.status(f"v{version}") for version in (1, 3, 4)] == ["dead", "retrying", "retrying"]
    shop.finish()
    assert shop.effects() == ["v2"]
    for version in (1, 3, 4):
        assert shop.status(f"v{version}") == "dead"
        assert f"version {version}" in shop.error(f"v{version}")
        assert "handled versions: 2" in shop.error(f"v{version}")
