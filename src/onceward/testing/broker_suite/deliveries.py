"""Deliveries: each takes effect once under its producer's id, whatever it holds, and is settled."""

from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from onceward import ConfigurationError, Inbox, Message, Settings
from onceward.domain.identity import UNIDENTIFIED
from onceward.testing.broker_suite.places import Broker
from onceward.testing.broker_suite.reading import PAID, names, publish, settled
from onceward.testing.store_suite.place import Place
from onceward.testing.store_suite.shop import Shop
from onceward.testing.waiting import wait_until


class Deliveries:
    """Deliveries: each takes effect once under its producer's id, whatever it holds, and is settled."""

    def test_each_message_takes_effect_once_and_is_settled(self, shop: Shop, broker: Broker) -> None:
        """What was there before the source, and what comes while it reads."""
        shop.inbox.add_source(broker.url(), source="broker")
        publish(broker, *names(20))
        with shop.started():
            settled(broker)
            publish(broker, *names(20, "n"))
            wait_until(lambda: len(shop.effects()) == 40)
            settled(broker)
        assert Counter(shop.effects()) == Counter(names(20) + names(20, "n"))

    def test_a_producer_that_sends_twice_has_sent_once(self, shop: Shop, broker: Broker) -> None:
        """The id is the producer's, not the broker's: another place in the queue is the same message (HZ-14)."""
        shop.inbox.add_source(broker.url(), source="broker")
        publish(broker, *names(5), *names(5))
        with shop.started():
            settled(broker)
            publish(broker, *names(5))
            settled(broker)
            wait_until(lambda: len(shop.effects()) == 5)
        assert shop.inbox.admin.stats().duplicates == 10

    def test_the_same_id_of_two_sources_is_two_messages(self, shop: Shop, broker: Broker) -> None:
        """Read side by side, each with its own connection (HZ-13)."""
        other, seen = broker.another(), []

        def keep(message: Message, tx: Any) -> None:
            del tx
            seen.append((message.source, message.id))

        shop.inbox.on("kept")(keep)
        try:
            shop.inbox.add_source(broker.url(), source="one")
            shop.inbox.add_source(other.url(), source="two")
            for name in names(5):
                broker.publish(b"{}", id=name, type="kept")
                other.publish(b"{}", id=name, type="kept")
            with shop.started():
                settled(broker)
                settled(other)
                wait_until(lambda: len(seen) == 10)
        finally:
            other.close()
        assert Counter(seen) == Counter((source, name) for source in ("one", "two") for name in names(5))

    def test_a_known_id_with_other_bytes_is_quarantined_and_settled(self, shop: Shop, broker: Broker) -> None:
        shop.inbox.add_source(broker.url(), source="broker")
        publish(broker, "m-1")
        publish(broker, "m-1", amount=10**6)
        with shop.started():
            settled(broker)
            wait_until(lambda: shop.effects() == ["m-1"])
        (case,) = shop.inbox.admin.quarantine()
        shop.inbox.admin.resolve(case.case, "discard", reason="test")

    def test_a_batch_is_one_transaction(self, shop: Shop, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        sizes: list[int] = []
        real = shop.inbox.receive_many

        def receive_many(messages: Any) -> Any:
            sizes.append(len(messages))
            return real(messages)

        monkeypatch.setattr(shop.inbox, "receive_many", receive_many)
        shop.inbox.add_source(broker.url(), source="broker", batch=25)
        publish(broker, *names(50))
        with shop.started():
            settled(broker)
        assert sum(sizes) == 50
        assert 1 < max(sizes) <= 25  # never more than was asked for, and fewer where the broker is slow to send them

    def test_deliveries_without_a_name_are_kept_for_a_person(self, shop: Shop, broker: Broker) -> None:
        """Neither lost nor delivered for ever: stored, settled, visible; and the others go on.

        The id of an event that is only too long to be stored is its digest: that is a name (D04).
        """
        shop.inbox.add_source(broker.url(), source="broker")
        broker.publish(b"{}", type=PAID)
        broker.publish(b"{}", id="m-1")
        broker.publish(b"{}", ce_specversion="1.0", ce_id="e" * 2000, ce_type=PAID)
        broker.publish(b"{}", ce_specversion="1.0", ce_id="m-2", ce_type="t" * 300)
        publish(broker, "m-3")
        with shop.started():
            settled(broker)
            wait_until(lambda: [name[:7] for name in shop.effects()] == ["m-3", "sha256:"])
        kept = shop.inbox.admin.messages(type=UNIDENTIFIED)
        assert [row.status for row in kept] == ["unhandled"] * 3
        reasons = {shop.detail(row.seq).headers["onceward-reason"] for row in kept}
        assert any("has no id" in reason for reason in reasons)
        assert any("has no type" in reason for reason in reasons)
        shop.inbox.admin.discard(*(row.seq for row in kept), reason="test")

    def test_a_body_that_cannot_be_read_is_dead_and_blocks_nobody(self, shop: Shop, broker: Broker) -> None:
        shop.inbox.add_source(broker.url(), source="broker")
        broker.publish(b"\xff\x00{", id="bad", type=PAID)
        publish(broker, "good")
        with shop.started():
            settled(broker)
            wait_until(lambda: shop.effects() == ["good"])
            wait_until(lambda: shop.inbox.admin.stats().dead == 1)

    def test_a_handler_that_fails_is_not_the_brokers_matter(self, shop: Shop, broker: Broker) -> None:
        """A poison message is settled like any other, retried from our own table, and blocks no other (HZ-56)."""
        failures: list[str] = []

        def fail(message: Message, tx: Any) -> None:
            del tx
            failures.append(message.id)
            raise RuntimeError("always")

        shop.inbox.on("poison")(fail)
        shop.inbox.add_source(broker.url(), source="broker")
        broker.publish(b"{}", id="bad", type="poison")
        publish(broker, *names(5))
        with shop.started():
            settled(broker)
            wait_until(lambda: failures and len(shop.effects()) == 5)
        assert broker.unsettled() == 0
        (seq,) = shop.inbox.admin.find("broker", "bad")
        assert shop.detail(seq).status in ("retrying", "due")
        shop.inbox.admin.discard(seq, reason="test")

    def test_bodies_arrive_byte_for_byte(self, shop: Shop, broker: Broker) -> None:
        """Nothing, every byte there is, and half a megabyte."""
        bodies = {"empty": b"", "bytes": bytes(range(256)), "large": b'{"text": "' + b"x" * 500_000 + b'"}'}
        shop.handle("raw", raw=True)
        shop.inbox.add_source(broker.url(), source="broker")
        for name, body in bodies.items():
            broker.publish(body, id=name, type="raw")
        with shop.started():
            settled(broker)
            wait_until(lambda: len(shop.effects()) == 3)
        assert {name: shop.detail(shop.inbox.admin.find("broker", name)[0]).body for name in bodies} == bodies

    def test_headers_come_along(self, shop: Shop, broker: Broker) -> None:
        """Correlation and trace of the sender, which the outbox passes on."""
        shop.inbox.add_source(broker.url(), source="broker")
        broker.publish(
            b"{}", id="m-1", type=PAID, correlation_id="c-1", traceparent="00-" + "a" * 32, X_Note="a b=c; d"
        )
        with shop.started():
            settled(broker)
        headers = shop.detail(shop.inbox.admin.find("broker", "m-1")[0]).headers
        assert {name: headers[name] for name in ("correlation-id", "traceparent", "x-note")} == {
            "correlation-id": "c-1",
            "traceparent": "00-" + "a" * 32,
            "x-note": "a b=c; d",
        }

    def test_cloud_events_are_understood_in_both_modes(self, shop: Shop, broker: Broker) -> None:
        shop.inbox.add_source(broker.url(), source="broker")
        event = {"specversion": "1.0", "id": "c-1", "source": "/x", "type": PAID, "data": {"name": "one"}}
        broker.publish(json.dumps(event).encode(), content_type="application/cloudevents+json; charset=utf-8")
        broker.publish(b'{"name":"two"}', ce_specversion="1.0", ce_id="c-2", ce_type=PAID, ce_source="/x")
        with shop.started():
            settled(broker)
            wait_until(lambda: shop.effects() == ["2:/x:c-1", "2:/x:c-2"])
        bodies = [shop.detail(shop.inbox.admin.find("broker", f"2:/x:{one}")[0]).body for one in ("c-1", "c-2")]
        assert bodies == [b'{"name":"one"}', b'{"name":"two"}']

    def test_ids_and_types_where_the_user_says(self, shop: Shop, broker: Broker) -> None:
        shop.inbox.add_source(broker.url(), source="broker", id="meta.number", type=f"={PAID}")
        broker.publish(b'{"meta": {"number": 7}}')
        broker.publish(b'{"meta": {"number": "8"}}', id="ignored", type="ignored")
        with shop.started():
            settled(broker)
            wait_until(lambda: shop.effects() == ["7", "8"])

    def test_the_place_in_the_broker_is_an_id_only_when_asked_for(self, shop: Shop, broker: Broker) -> None:
        if broker.positions:
            shop.inbox.add_source(broker.url(), source="broker", id="position")
            for _ in range(3):
                broker.publish(b"{}", type=PAID)
            with shop.started():
                settled(broker)
                wait_until(lambda: len(shop.effects()) == 3)
        else:
            with pytest.raises(ConfigurationError, match="gives messages no position"):
                shop.inbox.add_source(broker.url(), source="broker", id="position")
        for unstable in ("delivery_tag", "Receipt_Handle"):
            with pytest.raises(ConfigurationError, match="changes with each delivery"):
                shop.inbox.add_source(broker.url(), source="broker", id=unstable)

    def test_a_retention_that_is_shorter_than_the_brokers_memory_is_refused(self, broker: Broker, place: Place) -> None:
        """R31: each source declares how late it may deliver a copy; the user may know better."""
        with Inbox(
            place.store(), settings=Settings(dedupe_retention=timedelta(days=6), body_retention=timedelta(days=5))
        ) as inbox:
            with pytest.raises(ConfigurationError, match=r"'broker' may redeliver for up to \d+ days"):
                inbox.add_source(broker.url(), source="broker")
            inbox.add_source(broker.url(), source="broker", redelivers_for=timedelta(days=3))
            assert inbox.context.registry.sources == {"broker": timedelta(days=3)}

    def test_order_within_a_key_is_the_brokers(self, shop: Shop, broker: Broker) -> None:
        seen: list[tuple[str, int]] = []

        def keep(message: Message, tx: Any) -> None:
            del tx
            seen.append((message.data["key"], message.data["number"]))

        shop.inbox.on("numbered", key="key")(keep)
        shop.inbox.add_source(broker.url(), source="broker", batch=7)
        for number in range(60):
            body = json.dumps({"key": f"k{number % 3}", "number": number}).encode()
            broker.publish(body, id=f"n-{number}", type="numbered")
        with shop.started():
            settled(broker)
            wait_until(lambda: len(seen) == 60)
        for key in ("k0", "k1", "k2"):
            numbers = [number for found, number in seen if found == key]
            assert numbers == sorted(numbers)

    def test_inline_messages_are_handled_before_they_are_settled(self, shop: Shop, broker: Broker) -> None:
        """And one whose handler fails is stored for retry and settled: no hot loop in the broker (R03)."""

        def fail(message: Message, tx: Any) -> None:
            del message, tx
            raise RuntimeError("not now")

        shop.inbox.on("failing")(fail)
        shop.inbox.add_source(broker.url(), source="broker", mode="direct")
        publish(broker, *names(5))
        broker.publish(b"{}", id="f-1", type="failing")
        with shop.started():
            settled(broker)
            assert shop.effects() == names(5)
            wait_until(lambda: shop.inbox.admin.stats().retrying == 1)
        shop.inbox.admin.discard(shop.inbox.admin.find("broker", "f-1")[0], reason="test")
