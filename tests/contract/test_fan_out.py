"""Who gets a message, wherever it comes in (R02, R05; design 3, "Fan-out")."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

from onceward import Settings
from onceward.flow import Query, run_sync
from onceward.message import Delivery
from onceward.steps.receive import receive
from onceward.steps.subscribe import fan_out
from tests.contract.harness import Kind, Shop, arguments
from tests.contract.journal import journal, journaling, open_journal
from tests.waiting import wait_until


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
