"""Connections: a broker that is away, cut, stalled or killed is waited for, and loses and doubles nothing."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence

import pytest

from onceward.brokers.protocol import Arrival
from onceward.testing.broker_suite.places import Broker
from onceward.testing.broker_suite.reading import ids, names, publish, settled
from onceward.testing.store_suite.shop import Shop
from onceward.testing.waiting import wait_until


class Connections:
    """Connections: a broker that is away, cut, stalled or killed is waited for, and loses and doubles nothing."""

    @pytest.mark.needs("proxy")
    def test_a_lost_connection_is_made_again(self, shop: Shop, broker: Broker) -> None:
        shop.inbox.add_source(broker.url(proxied=True), source="broker", batch=5)
        publish(broker, *names(10))
        with shop.started():
            wait_until(lambda: len(shop.effects()) >= 5)
            broker.proxy.cut()
            publish(broker, *names(10, "n"))
            time.sleep(0.3)  # a while without a connection; not every client tells that it has noticed
            broker.proxy.heal()
            wait_until(lambda: len(shop.effects()) == 20)
            settled(broker)
        assert Counter(shop.effects()) == Counter(names(10) + names(10, "n"))

    @pytest.mark.needs("proxy")
    def test_connections_cut_again_and_again_lose_and_double_nothing(self, shop: Shop, broker: Broker) -> None:
        shop.inbox.add_source(broker.url(proxied=True), source="broker", batch=3)
        with shop.started():
            for turn in range(6):
                before = len(shop.effects())
                publish(broker, *names(10, f"t{turn}"))
                wait_until(lambda before=before: len(shop.effects()) > before)  # type: ignore[misc] # it is at work
                broker.proxy.cut()
                broker.proxy.heal()
            wait_until(lambda: len(shop.effects()) == 60)
            settled(broker)
        assert max(Counter(shop.effects()).values()) == 1

    @pytest.mark.needs("proxy")
    def test_a_connection_lost_with_a_committed_batch_in_hand(
        self, shop: Shop, broker: Broker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Committed, not settled: it comes again, is known, and is settled then."""
        shop.inbox.add_source(broker.url(proxied=True), source="broker", batch=5)
        (consumer,) = shop.inbox.ingress.consumers
        ack = consumer.source.ack
        cuts: list[list[str | None]] = []

        async def cut_first(arrivals: Sequence[Arrival]) -> None:
            if not cuts:
                cuts.append(ids(arrivals))
                broker.proxy.cut()
                await asyncio.sleep(0.1)  # a while without a connection; not every client tells that it has noticed
                broker.proxy.heal()
            await ack(arrivals)

        monkeypatch.setattr(consumer.source, "ack", cut_first)
        publish(broker, *names(12))
        with shop.started():
            settled(broker)
            wait_until(lambda: len(shop.effects()) == 12)
        assert Counter(shop.effects()) == Counter(names(12))
        assert cuts

    @pytest.mark.needs("proxy")
    def test_a_connection_that_stalls_goes_on(self, shop: Shop, broker: Broker) -> None:
        shop.inbox.add_source(broker.url(proxied=True), source="broker")
        with shop.started():
            publish(broker, "m-1")
            wait_until(lambda: shop.effects() == ["m-1"])
            broker.proxy.freeze()
            publish(broker, "m-2")
            time.sleep(0.3)  # a connection that stalls has no sign but time
            broker.proxy.thaw()
            wait_until(lambda: shop.effects() == ["m-1", "m-2"])
            settled(broker)

    @pytest.mark.needs("restart")
    def test_a_broker_that_is_killed_and_comes_back(self, shop: Shop, broker: Broker) -> None:
        """Reading goes on; what a broker keeps is its own matter (moto and the Pub/Sub emulator keep nothing)."""
        shop.inbox.add_source(broker.url(), source="broker")
        publish(broker, *names(10))
        with shop.started():
            wait_until(lambda: len(shop.effects()) == 10)
            broker.restart()
            publish(broker, *names(10, "n"))
            wait_until(lambda: len(shop.effects()) == 20)
            settled(broker)

    @pytest.mark.needs("proxy")
    def test_a_broker_that_is_away_at_the_start_is_waited_for(self, shop: Shop, broker: Broker) -> None:
        shop.inbox.add_source(broker.url(proxied=True), source="broker")
        broker.proxy.cut()
        publish(broker, "m-1")
        with shop.started():
            time.sleep(0.3)  # that nothing happens has no other sign
            assert shop.effects() == []
            broker.proxy.heal()
            wait_until(lambda: shop.effects() == ["m-1"])
