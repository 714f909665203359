"""What operators stop for a while: it waits, wherever it is to run, and goes on when it is resumed."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import pytest

from onceward import ConfigurationError, Settings
from onceward.testing.store_suite.outbox import opened, send
from onceward.testing.store_suite.shop import Shop, arguments, in_threads


def paused(shop: Shop, **what: object) -> None:
    """Pause something."""
    assert shop.call(shop.inbox.admin, "pause", **what, reason="a test", actor="ann")


class Pausing:
    """A type, a consumer, a destination or everything is paused, shown, and resumed."""

    def test_a_paused_type_waits_and_others_run(self, shop: Shop) -> None:
        """Its messages are stored and due, and say why they do not run; when it is resumed they do."""
        shop.handle("order.paid")
        shop.handle("other")
        paused(shop, type="order.paid")
        shop.receive("m1")
        shop.receive("m2", "other")
        assert (shop.drain(), shop.effects(), shop.status("m1")) == (1, ["m2"], "due")
        told = shop.inbox.admin.explain(shop.seqs["m1"])
        assert told is not None
        assert [event.what for event in told.events if "paused by ann" in event.what]
        (one,) = shop.call(shop.inbox.admin, "pauses")
        assert (one.kind, one.name, one.actor, one.reason) == ("type", "order.paid", "ann", "a test")
        assert shop.call(shop.inbox.admin, "resume", type="order.paid", reason="over", actor="bob")
        assert (shop.drain(), shop.effects(), shop.inbox.admin.pauses()) == (1, ["m1", "m2"], [])
        (before,) = shop.inbox.admin.pauses(ended=True)
        assert before.ended_at is not None
        assert before.ended_at >= before.began_at
        said = [(line.actor, line.action, line.reason) for line in shop.inbox.admin.audit()]
        assert said == [("bob", "resume", "type order.paid. over"), ("ann", "pause", "type order.paid. a test")]

    def test_a_paused_consumer_waits_with_all_its_types(self, shop: Shop) -> None:
        """The other consumer of a type gets its copy as always."""
        shop.handle("order.paid", consumer="mailer")
        shop.handle("order.paid", consumer="books")
        shop.handle("order.sent", consumer="mailer")
        paused(shop, consumer="mailer")
        shop.receive("m1")
        shop.receive("m2", "order.sent")
        assert (shop.drain(), shop.notes()) == (1, [("m1", "books")])
        assert shop.call(shop.inbox.admin, "resume", consumer="mailer")
        assert (shop.drain(), len(shop.notes())) == (2, 3)

    def test_everything_is_paused(self, shop: Shop) -> None:
        """Handlers and what is to be published; who pauses a type beside it must resume both."""
        shop.handle()
        post = opened(shop)
        paused(shop, everything=True)
        paused(shop, type="order.paid")
        shop.receive("m1")
        send(shop, "out")
        assert (shop.drain(), shop.effects(), post.names) == (0, [], [])
        assert shop.call(shop.inbox.admin, "resume", everything=True)
        shop.drain()
        assert (shop.effects(), post.names) == ([], ["out"])
        assert shop.call(shop.inbox.admin, "resume", type="order.paid")
        assert (shop.drain(), shop.effects()) == (1, ["m1"])

    def test_a_paused_destination_gets_nothing(self, shop: Shop) -> None:
        """What goes elsewhere is published."""
        here, there = opened(shop, "here"), opened(shop, "there")
        paused(shop, destination="here")
        send(shop, "m1", to="here")
        send(shop, "m2", to="there")
        shop.drain()
        assert (here.names, there.names) == ([], ["m2"])
        assert shop.call(shop.inbox.admin, "resume", destination="here")
        shop.drain()
        assert here.names == ["m1"]

    def test_what_is_paused_is_queued_instead_of_processed(self, shop: Shop) -> None:
        """One by one and in a batch; what is not paused is handled at once."""
        shop.handle("order.paid")
        shop.handle("other")
        shop.process("first")
        paused(shop, type="order.paid")
        receipt = shop.process("m1")
        assert (receipt.status, receipt.finished, shop.status("m1")) == ("accepted", False, "due")
        batch = [arguments("m2", "order.paid"), arguments("m3", "other"), arguments("m4", "order.paid")]
        assert [one.finished for one in shop.process_many(batch)] == [False, True, False]
        assert shop.effects() == ["first", "m3"]
        assert shop.process("m1").status == "duplicate"
        assert shop.call(shop.inbox.admin, "resume", type="order.paid")
        assert (shop.drain(), shop.effects()) == (3, ["first", "m1", "m2", "m3", "m4"])

    def test_a_key_waits_behind_its_paused_message(self, shop: Shop) -> None:
        """Messages of a key stay in order over a pause, also those of a type that is not paused."""
        shop.handle("order.paid", key="order")
        shop.handle("order.sent", key="order")
        paused(shop, type="order.paid")
        shop.receive("m1", data={"order": 1})
        shop.receive("m2", "order.sent", data={"order": 1})
        shop.process("m3", "order.sent", data={"order": 1})
        shop.receive("m4", "order.sent", data={"order": 2})
        assert (shop.drain(), shop.effects()) == (1, ["m4"])
        assert shop.call(shop.inbox.admin, "resume", type="order.paid")
        assert (shop.drain(), [message_id for message_id, _ in shop.journal()]) == (3, ["m4", "m1", "m2", "m3"])

    def test_workers_and_receivers_obey_an_operator_elsewhere(self, shop: Shop) -> None:
        """A process that has not seen it yet sees it in its own transaction; a running worker looks by itself."""
        shop.handle()
        operator = shop.another()
        assert shop.process("m1").finished
        assert operator.inbox.admin.pause(type="order.paid", reason="a test")
        assert not shop.process("m2").finished
        assert operator.inbox.admin.resume(type="order.paid", reason="a test")
        assert shop.process("m3").finished
        # Whatever a process does as often as it renews its lease comes too late here.
        worker = shop.another(settings=Settings(lease=timedelta(minutes=10)))
        worker.handle()
        with worker.running():
            shop.wait(lambda: shop.effects() == ["m1", "m2", "m3"])
            assert operator.inbox.admin.pause(type="order.paid", reason="a test")
            known = worker.inbox.context.cache
            shop.wait(lambda: known.catalog.pauses.handling("default", "order.paid"))
            shop.receive("m4")
            assert operator.inbox.admin.resume(type="order.paid", reason="a test")
            shop.wait(lambda: shop.effects() == ["m1", "m2", "m3", "m4"])

    def test_of_many_operators_one_pauses(self, shop: Shop) -> None:
        """And one resumes; each is one line of the audit."""
        admin = shop.inbox.admin
        assert sum(in_threads(*(partial(admin.pause, type="a", reason=str(n)) for n in range(8)))) == 1
        assert len(admin.pauses()) == 1
        assert sum(in_threads(*(partial(admin.resume, type="a", reason=str(n)) for n in range(8)))) == 1
        assert (admin.pauses(), len(admin.pauses(ended=True))) == ([], 1)
        assert [line.action for line in admin.audit()] == ["resume", "pause"]
        assert not shop.call(admin, "resume", type="a")
        paused(shop, type="a")
        assert len(admin.pauses(ended=True)) == 2

    def test_what_is_paused_is_named(self, shop: Shop) -> None:
        """One thing at a time, and everything only where that is said."""
        for what in ({}, {"type": "a", "source": "b"}, {"everything": False}, {"type": ""}, {"key": "a"}):
            with pytest.raises(ConfigurationError):
                shop.call(shop.inbox.admin, "pause", **what)
        assert shop.inbox.admin.pauses() == []
