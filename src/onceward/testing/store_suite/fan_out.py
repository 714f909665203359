"""Messages that came before their type had a consumer."""

from __future__ import annotations

import pytest

from onceward import ConfigurationError
from onceward.domain.identity import UNIDENTIFIED
from onceward.testing.store_suite.behaviour import raising, returning
from onceward.testing.store_suite.shop import Shop


class FanOut:
    """Messages that came before their type had a consumer."""

    def test_each_consumer_processes_a_message_once(self, shop: Shop) -> None:
        """Handlers with consumers of their own each have their own effect, result and failures."""
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

    def test_renaming_a_function_changes_nothing(self, shop: Shop) -> None:
        """The scope is a chosen name; a new release with other function names runs nothing again."""
        shop.handle()
        shop.receive("m1")
        shop.drain()
        renamed = shop.another()

        @renamed.inbox.on("order.paid")
        def quite_another_name(*_: object) -> None:
            raise AssertionError("a finished message ran again")

        assert renamed.receive("m1").status == "duplicate"
        assert renamed.drain() == 0

    def test_a_receiver_without_handlers_fans_out(self, shop: Shop) -> None:
        """A web process that imports no handlers stores a row for every consumer, under the right key."""
        shop.handle(consumer="billing", key="order.id")
        shop.handle(consumer="stock", key="header:warehouse")
        shop.drain()
        receiver = shop.another()
        receiver.receive("m1", data={"order": {"id": 7}}, headers={"warehouse": "north"})
        assert {(row.consumer, row.key) for row in shop.inbox.admin.messages()} == {
            ("billing", "7"),
            ("stock", "north"),
        }
        shop.drain()
        assert shop.notes() == [("m1", "billing"), ("m1", "stock")]

    def test_a_message_nobody_handles_stays_and_is_reported(self, shop: Shop) -> None:
        """An unknown type is not an error of the sender; it waits where it can be seen."""
        shop.handle()
        assert shop.receive("m1", "order.refunded").status == "accepted"
        assert shop.process("m2", "order.refunded").finished is False
        assert shop.drain() == 0
        assert shop.inbox.admin.stats().unhandled == 2
        assert [row.id for row in shop.inbox.admin.messages(status="unhandled")] == ["m2", "m1"]
        assert shop.receive("m1", "order.refunded").status == "duplicate"

    def test_a_message_nobody_handles_holds_no_key(self, shop: Shop) -> None:
        """Only what its consumer will get may be of a key; what waits for a person would hold every key for ever."""
        shop.receive("stray", UNIDENTIFIED)
        shop.receive("other", "order.refunded")
        shop.handle(key="k")
        shop.receive("m1", data={"k": "a"})
        shop.drain()
        assert shop.effects() == ["m1"]
        assert shop.process("m2", data={"k": "a"}).finished

    def test_an_unhandled_message_is_adopted_by_the_first_who_knows_it(self, shop: Shop) -> None:
        """A later release finds it under the number it always had."""
        seq = shop.receive("m1").seq
        later = shop.another()
        later.handle(key="id")
        later.drain()
        assert (shop.status(seq), shop.detail(seq).key) == ("done", "m1")
        assert shop.effects() == ["m1"]
        assert shop.receive("m1").status == "duplicate"

    def test_an_unhandled_message_goes_to_every_consumer(self, shop: Shop) -> None:
        """The service keeps its row, the others get theirs."""
        seq = shop.receive("m1").seq
        later = shop.another()
        later.handle()
        later.handle(consumer="stock")
        later.drain()
        assert shop.notes() == [("m1", "default"), ("m1", "stock")]
        assert shop.status(seq) == "done"
        assert later.receive("m1").status == "duplicate"

    def test_an_unhandled_message_that_only_others_want_moves_to_them(self, shop: Shop) -> None:
        """The row of the service goes in the transaction that makes the others'; copies stay duplicates."""
        shop.receive("m1", headers={"trace": "ab"})
        later = shop.another()
        later.handle(consumer="billing")
        later.handle(consumer="stock")
        later.drain()
        assert shop.notes() == [("m1", "billing"), ("m1", "stock")]
        assert [row.consumer for row in shop.inbox.admin.messages()] == ["stock", "billing"]
        assert later.receive("m1").status == "duplicate"
        assert later.drain() == 0

    def test_a_stale_receiver_reaches_a_new_consumer(self, shop: Shop) -> None:
        """In a rolling deploy, an old receiver stores for the consumer that the new release brought."""
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

    def test_inline_work_under_a_stale_catalog_reaches_a_new_consumer(self, shop: Shop) -> None:
        """The same for a release that handles what it receives at once."""
        shop.handle()
        shop.process("m1")
        newer = shop.another()
        newer.handle(consumer="stock")
        newer.drain()
        shop.process("m2")
        newer.drain()
        assert shop.notes() == [("m1", "default"), ("m2", "default"), ("m2", "stock")]

    def test_a_consumer_added_later_sees_only_new_messages(self, shop: Shop) -> None:
        """History is replayed on purpose, never by accident."""
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

    def test_two_key_functions_in_two_programs(self, shop: Shop) -> None:
        """Neither program can place a message for both; each places its own."""
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

    def test_handlers_that_collide_are_refused_at_registration(self, shop: Shop) -> None:
        """One handler per consumer, type and version, and the error names both and the way out."""
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

    def test_an_unknown_version_is_dead_with_a_clear_error(self, shop: Shop) -> None:
        """Never half-read; others go on. Newer ones are dead only when their retry policy gives up."""
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
