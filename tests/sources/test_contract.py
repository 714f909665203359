"""What every broker's source must keep, on a real server (R06, R38; HZ-14, HZ-20, HZ-36)."""

from __future__ import annotations

import json
import time
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from onceward import ConfigurationError, Inbox, Message, Settings
from onceward.domain.identity import UNIDENTIFIED
from tests.contract.harness import Shop
from tests.sources.brokers import Broker
from tests.sources.conftest import reading
from tests.waiting import wait_until

PAID = "order.paid"


def names(count: int, prefix: str = "m") -> list[str]:
    return [f"{prefix}-{number:03}" for number in range(count)]


def publish(broker: Broker, *ids: str, **data: Any) -> None:
    for one in ids:
        broker.publish(json.dumps({"name": one, **data}).encode(), id=one, type=PAID)


def settled(broker: Broker) -> None:
    wait_until(lambda: broker.unsettled() == 0, message="every delivery settled")


def test_each_message_takes_effect_once_and_is_settled(shop: Shop, broker: Broker) -> None:
    """What was there before the source, and what comes while it reads."""
    shop.inbox.add_source(broker.url(), source="broker")
    publish(broker, *names(20))
    with reading(shop):
        settled(broker)
        publish(broker, *names(20, "n"))
        wait_until(lambda: len(shop.effects()) == 40)
        settled(broker)
    assert Counter(shop.effects()) == Counter(names(20) + names(20, "n"))


def test_a_producer_that_sends_twice_has_sent_once(shop: Shop, broker: Broker) -> None:
    """The id is the producer's, not the broker's: another place in the queue is the same message (HZ-14)."""
    shop.inbox.add_source(broker.url(), source="broker")
    publish(broker, *names(5), *names(5))
    with reading(shop):
        settled(broker)
        publish(broker, *names(5))
        settled(broker)
        wait_until(lambda: len(shop.effects()) == 5)
    assert shop.inbox.admin.stats().duplicates == 10


def test_a_known_id_with_other_bytes_is_quarantined_and_settled(shop: Shop, broker: Broker) -> None:
    shop.inbox.add_source(broker.url(), source="broker")
    publish(broker, "m-1")
    publish(broker, "m-1", amount=10**6)
    with reading(shop):
        settled(broker)
        wait_until(lambda: shop.effects() == ["m-1"])
    (case,) = shop.inbox.admin.quarantine()
    shop.inbox.admin.resolve(case.case, "discard", reason="test")


def test_a_batch_is_one_transaction(shop: Shop, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    real = shop.inbox.receive_many

    def receive_many(messages: Any) -> Any:
        sizes.append(len(messages))
        return real(messages)

    monkeypatch.setattr(shop.inbox, "receive_many", receive_many)
    shop.inbox.add_source(broker.url(), source="broker", batch=25)
    publish(broker, *names(50))
    with reading(shop):
        settled(broker)
    assert sum(sizes) == 50
    assert 1 < max(sizes) <= 25  # never more than was asked for, and fewer where the broker is slow to send them


def test_deliveries_without_a_name_are_kept_for_a_person(shop: Shop, broker: Broker) -> None:
    """Neither lost nor delivered for ever: stored, settled, visible; and the others go on.

    The id of an event that is only too long to be stored is its digest: that is a name (D04).
    """
    shop.inbox.add_source(broker.url(), source="broker")
    broker.publish(b"{}", type=PAID)
    broker.publish(b"{}", id="m-1")
    broker.publish(b"{}", ce_specversion="1.0", ce_id="e" * 2000, ce_type=PAID)
    broker.publish(b"{}", ce_specversion="1.0", ce_id="m-2", ce_type="t" * 300)
    publish(broker, "m-3")
    with reading(shop):
        settled(broker)
        wait_until(lambda: [name[:7] for name in shop.effects()] == ["m-3", "sha256:"])
    kept = shop.inbox.admin.messages(type=UNIDENTIFIED)
    assert [row.status for row in kept] == ["unhandled"] * 3
    reasons = {shop.story(row.seq).headers["onceward-reason"] for row in kept}
    assert any("has no id" in reason for reason in reasons)
    assert any("has no type" in reason for reason in reasons)
    shop.inbox.admin.discard(*(row.seq for row in kept), reason="test")


def test_a_body_that_cannot_be_read_is_dead_and_blocks_nobody(shop: Shop, broker: Broker) -> None:
    shop.inbox.add_source(broker.url(), source="broker")
    broker.publish(b"\xff\x00{", id="bad", type=PAID)
    publish(broker, "good")
    with reading(shop):
        settled(broker)
        wait_until(lambda: shop.effects() == ["good"])
        wait_until(lambda: shop.inbox.admin.stats().dead == 1)


def test_cloud_events_are_understood_in_both_modes(shop: Shop, broker: Broker) -> None:
    shop.inbox.add_source(broker.url(), source="broker")
    event = {"specversion": "1.0", "id": "c-1", "source": "/x", "type": PAID, "data": {"name": "one"}}
    broker.publish(json.dumps(event).encode(), content_type="application/cloudevents+json; charset=utf-8")
    broker.publish(b'{"name":"two"}', ce_specversion="1.0", ce_id="c-2", ce_type=PAID, ce_source="/x")
    with reading(shop):
        settled(broker)
        wait_until(lambda: shop.effects() == ["2:/x:c-1", "2:/x:c-2"])
    bodies = [shop.story(shop.inbox.admin.find("broker", f"2:/x:{one}")[0]).body for one in ("c-1", "c-2")]
    assert bodies == [b'{"name":"one"}', b'{"name":"two"}']


def test_ids_and_types_where_the_user_says(shop: Shop, broker: Broker) -> None:
    shop.inbox.add_source(broker.url(), source="broker", id="meta.number", type=f"={PAID}")
    broker.publish(b'{"meta": {"number": 7}}')
    broker.publish(b'{"meta": {"number": "8"}}', id="ignored", type="ignored")
    with reading(shop):
        settled(broker)
        wait_until(lambda: shop.effects() == ["7", "8"])


def test_the_place_in_the_broker_is_an_id_only_when_asked_for(shop: Shop, broker: Broker) -> None:
    if broker.positions:
        shop.inbox.add_source(broker.url(), source="broker", id="position")
        for _ in range(3):
            broker.publish(b"{}", type=PAID)
        with reading(shop):
            settled(broker)
            wait_until(lambda: len(shop.effects()) == 3)
    else:
        with pytest.raises(ConfigurationError, match="no place of their own"):
            shop.inbox.add_source(broker.url(), source="broker", id="position")
    for unstable in ("delivery_tag", "Receipt_Handle"):
        with pytest.raises(ConfigurationError, match="changes with each delivery"):
            shop.inbox.add_source(broker.url(), source="broker", id=unstable)


def test_a_retention_that_is_shorter_than_the_brokers_memory_is_refused(broker: Broker, store_url: str) -> None:
    """R31: each source declares how late it may deliver a copy; the user may know better."""
    with Inbox(
        store_url, settings=Settings(dedupe_retention=timedelta(days=6), body_retention=timedelta(days=5))
    ) as inbox:
        with pytest.raises(ConfigurationError, match=r"'broker' redelivers for up to \d+ days"):
            inbox.add_source(broker.url(), source="broker")
        inbox.add_source(broker.url(), source="broker", redelivers_for=timedelta(days=3))
        assert inbox.context.registry.sources == {"broker": timedelta(days=3)}


def test_order_within_a_key_is_the_brokers(shop: Shop, broker: Broker) -> None:
    seen: list[tuple[str, int]] = []

    def keep(message: Message, tx: Any) -> None:
        del tx
        seen.append((message.data["key"], message.data["number"]))

    shop.inbox.on("numbered", key="key")(keep)
    shop.inbox.add_source(broker.url(), source="broker", batch=7)
    for number in range(60):
        body = json.dumps({"key": f"k{number % 3}", "number": number}).encode()
        broker.publish(body, id=f"n-{number}", type="numbered")
    with reading(shop):
        settled(broker)
        wait_until(lambda: len(seen) == 60)
    for key in ("k0", "k1", "k2"):
        numbers = [number for found, number in seen if found == key]
        assert numbers == sorted(numbers)


def test_inline_messages_are_handled_before_they_are_settled(shop: Shop, broker: Broker) -> None:
    """And one whose handler fails is stored for retry and settled: no hot loop in the broker (R03)."""

    def fail(message: Message, tx: Any) -> None:
        del message, tx
        raise RuntimeError("not now")

    shop.inbox.on("failing")(fail)
    shop.inbox.add_source(broker.url(), source="broker", inline=True)
    publish(broker, *names(5))
    broker.publish(b"{}", id="f-1", type="failing")
    with reading(shop):
        settled(broker)
        assert shop.effects() == names(5)
        wait_until(lambda: shop.inbox.admin.stats().retrying == 1)
    shop.inbox.admin.discard(shop.inbox.admin.find("broker", "f-1")[0], reason="test")


# Trouble with the broker


@pytest.mark.needs("proxy")
def test_a_lost_connection_is_made_again(shop: Shop, broker: Broker) -> None:
    shop.inbox.add_source(broker.url(proxied=True), source="broker", batch=5)
    publish(broker, *names(10))
    with reading(shop):
        wait_until(lambda: len(shop.effects()) >= 5)
        broker.proxy.cut()
        publish(broker, *names(10, "n"))
        time.sleep(0.3)  # a while without a connection; not every client tells that it has noticed
        broker.proxy.heal()
        wait_until(lambda: len(shop.effects()) == 20)
        settled(broker)
    assert Counter(shop.effects()) == Counter(names(10) + names(10, "n"))


@pytest.mark.needs("proxy")
def test_connections_cut_again_and_again_lose_and_double_nothing(shop: Shop, broker: Broker) -> None:
    shop.inbox.add_source(broker.url(proxied=True), source="broker", batch=3)
    with reading(shop):
        for turn in range(6):
            before = len(shop.effects())
            publish(broker, *names(10, f"t{turn}"))
            wait_until(lambda before=before: len(shop.effects()) > before)  # type: ignore[misc] # it is at work
            broker.proxy.cut()
            broker.proxy.heal()
        wait_until(lambda: len(shop.effects()) == 60)
        settled(broker)
    assert max(Counter(shop.effects()).values()) == 1


@pytest.mark.needs("restart")
def test_a_broker_that_is_killed_and_comes_back(shop: Shop, broker: Broker) -> None:
    """Reading goes on; what a broker keeps is its own matter (moto and the Pub/Sub emulator keep nothing)."""
    shop.inbox.add_source(broker.url(), source="broker")
    publish(broker, *names(10))
    with reading(shop):
        wait_until(lambda: len(shop.effects()) == 10)
        broker.restart()
        publish(broker, *names(10, "n"))
        wait_until(lambda: len(shop.effects()) == 20)
        settled(broker)


@pytest.mark.needs("proxy")
def test_a_broker_that_is_away_at_the_start_is_waited_for(shop: Shop, broker: Broker) -> None:
    shop.inbox.add_source(broker.url(proxied=True), source="broker")
    broker.proxy.cut()
    publish(broker, "m-1")
    with reading(shop):
        time.sleep(0.3)  # that nothing happens has no other sign
        assert shop.effects() == []
        broker.proxy.heal()
        wait_until(lambda: shop.effects() == ["m-1"])
