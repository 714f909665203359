"""Settling: each delivery is settled once, where it came from, or comes again (HZ-14, HZ-20, HZ-36)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from typing import Any

import pytest

from onceward import Message, StoreUnavailable
from onceward.brokers.protocol import BrokerUnavailable, open_source
from onceward.testing.broker_suite.places import Broker
from onceward.testing.broker_suite.reading import ids, names, publish, settled, taken, taken_again
from onceward.testing.store_suite.shop import Shop
from onceward.testing.waiting import wait_until


class Settling:
    """Settling: each delivery is settled once, where it came from, or comes again."""

    def test_what_is_released_comes_again(self, broker: Broker) -> None:
        publish(broker, *names(4))

        async def read() -> None:
            source = open_source(broker.url())
            await source.open()
            await source.nack(await taken(source, 4))
            again = await taken_again(source, 4)
            assert sorted(map(str, ids(again))) == names(4)
            await source.ack(again)
            await source.close()

        asyncio.run(read())
        settled(broker)

    def test_what_a_reader_leaves_unsettled_comes_to_the_next(self, broker: Broker) -> None:
        """With the ids it had, and every position as before."""
        publish(broker, *names(4))

        async def read() -> None:
            first, second = open_source(broker.url()), open_source(broker.url())
            await first.open()
            left = await taken(first, 4)
            await first.close()
            await second.open()
            found = await taken_again(second, 4)
            assert {arrival.id: arrival.position for arrival in left} == {one.id: one.position for one in found}
            await second.ack(found)
            await second.close()

        asyncio.run(read())
        settled(broker)

    @pytest.mark.needs("proxy")
    def test_what_a_reader_had_whose_connection_is_cut_comes_to_the_next(self, broker: Broker) -> None:
        publish(broker, *names(4))

        async def read() -> None:
            dead, living = open_source(broker.url(proxied=True)), open_source(broker.url())
            await dead.open()
            assert sorted(map(str, ids(await taken(dead, 4)))) == names(4)
            broker.proxy.cut()
            await living.open()
            found = await taken_again(living, 4)
            await living.ack(found)
            await living.close()
            await dead.close()

        asyncio.run(read())
        settled(broker)

    def test_a_delivery_of_a_lost_connection_settles_itself_or_nothing(self, broker: Broker) -> None:
        """Never another message, though its handle may name one on the next connection (HZ-14)."""
        publish(broker, *names(4))

        async def read() -> int:
            source = open_source(broker.url())
            await source.open()
            old = await taken(source, 4)
            await source.close()
            await source.open()
            again = {arrival.id: arrival for arrival in await taken_again(source, 4)}
            accepted = 2
            try:
                await source.ack(old[:2])
            except BrokerUnavailable:
                accepted = 0
            await source.ack([again["m-002"], again["m-003"]])
            await source.close()
            return 2 - accepted

        async def rest(count: int) -> list[str | None]:
            source = open_source(broker.url())
            await source.open()
            found = await taken_again(source, count)
            await source.close()
            return ids(found)

        left = asyncio.run(read())
        wait_until(lambda: broker.unsettled() == left)
        assert sorted(map(str, asyncio.run(rest(left)))) == names(4)[:left]

    def test_one_batch_at_a_time_while_the_store_is_slow(
        self, shop: Shop, broker: Broker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Back-pressure: nothing more is handed over, and nothing is settled, until the batch in hand is committed."""
        real, sizes, slow = shop.inbox.receive_many, [], threading.Event()

        def receive_many(messages: Any) -> Any:
            sizes.append(len(messages))
            slow.wait(30)
            return real(messages)

        monkeypatch.setattr(shop.inbox, "receive_many", receive_many)
        shop.inbox.add_source(broker.url(), source="broker", batch=5)
        publish(broker, *names(70))
        with shop.started():
            wait_until(lambda: sizes)
            time.sleep(0.3)  # that nothing more comes has no other sign
            assert (len(sizes), sizes[0] <= 5, broker.unsettled()) == (1, True, 70)
            slow.set()
            settled(broker)
            wait_until(lambda: len(shop.effects()) == 70)

    def test_a_stop_in_the_middle_settles_what_is_stored_and_nothing_else(self, shop: Shop, broker: Broker) -> None:
        shop.inbox.add_source(broker.url(), source="broker", batch=3)
        publish(broker, *names(60))
        with shop.started():
            wait_until(lambda: len(shop.effects()) >= 6)
        stored = sum(bool(shop.inbox.admin.find("broker", one)) for one in names(60))
        wait_until(lambda: broker.unsettled() == 60 - stored)
        with shop.started():
            settled(broker)
            wait_until(lambda: len(shop.effects()) == 60)
        assert max(Counter(shop.effects()).values()) == 1

    def test_an_inline_source_that_stops_half_way_settles_what_it_has_handled(
        self, shop: Shop, broker: Broker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The database goes away after a batch, and then the stop comes."""
        real, away = shop.inbox.aprocess_many, threading.Event()
        handled: list[str] = []

        async def process_many(messages: Any) -> Any:
            if handled:
                away.set()
                raise StoreUnavailable("on purpose")
            receipts = await real(messages)
            handled.extend(message["id"] for message in messages)
            return receipts

        publish(broker, *names(6), key="k")  # some brokers keep an order within a key alone
        shop.inbox.add_source(broker.url(), source="broker", mode="direct", batch=2)
        with monkeypatch.context() as patched, shop.started():
            patched.setattr(shop.inbox, "aprocess_many", process_many)
            wait_until(away.is_set)
        wait_until(lambda: broker.unsettled() <= 6 - len(handled))
        assert (broker.unsettled(), shop.effects()) == (6 - len(handled), sorted(handled))
        with shop.started():
            settled(broker)
            wait_until(lambda: shop.effects() == names(6))

    def test_an_inline_message_waits_with_its_handler(self, shop: Shop, broker: Broker) -> None:
        """Handled in the broker's order, and settled when it is committed; what that leaves too late is queued."""
        begun, resumed = threading.Event(), threading.Event()

        def slow(message: Message, tx: Any) -> None:
            del message, tx
            begun.set()
            resumed.wait(30)

        shop.inbox.on("slow")(slow)
        shop.inbox.add_source(broker.url(), source="broker", mode="direct")
        broker.publish(b'{"key": "k"}', id="s-1", type="slow")
        publish(broker, *names(3), key="k")  # some brokers keep an order within a key alone
        with shop.started():
            wait_until(begun.is_set)
            assert (broker.unsettled(), shop.effects()) == (4, [])
            resumed.set()
            settled(broker)
            wait_until(lambda: shop.effects() == names(3))
