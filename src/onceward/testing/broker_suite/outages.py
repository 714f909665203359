"""Outages: what is not committed is never settled, while the database is away and when processes die (HZ-20, HZ-36)."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from onceward import ConfigurationError, Inbox, StoreUnavailable
from onceward.brokers.protocol import BrokerUnavailable, Positioned
from onceward.testing.broker_suite.places import Broker
from onceward.testing.broker_suite.program import started
from onceward.testing.broker_suite.reading import names, publish, settled
from onceward.testing.store_suite.place import Place
from onceward.testing.store_suite.shop import Shop
from onceward.testing.waiting import wait_until


class Outage(Protocol):
    """An inbox whose database can be taken away."""

    @property
    def inbox(self) -> Inbox:
        """The inbox, with its tables made; closed by the suite."""

    def cut(self) -> None:
        """From now on there is no database."""

    def heal(self) -> None:
        """It is back."""


class PlayedOutage:
    """An inbox that says that its database is away."""

    def __init__(self, place: Place) -> None:
        self.inbox = Inbox(place.store())
        self.inbox.migrate()
        self._is_away = threading.Event()
        receive_many = self.inbox.receive_many

        def receive(messages: Any) -> Any:
            if self._is_away.is_set():
                raise StoreUnavailable("taken away by the suite")
            return receive_many(messages)

        self.inbox.receive_many = receive  # type: ignore[method-assign] # for what reads into it

    def cut(self) -> None:
        """Raise instead of storing."""
        self._is_away.set()

    def heal(self) -> None:
        """Store again."""
        self._is_away.clear()


class Service:
    """A service that reads from the broker, in processes of its own."""

    def __init__(self, place: Place, broker: Broker, marker: Path) -> None:
        self.url, self._place, self._broker, self._marker = str(place.store()), place, broker, marker
        with Inbox(self.url) as inbox:
            inbox.migrate()
            place.prepare(inbox)

    def start(self, *, dies: bool = False) -> subprocess.Popen[bytes]:
        """A process; the first of those that die does so when a batch is committed and not acknowledged yet."""
        marker = str(self._marker) if dies else ""
        return started("read", store=self.url, url=self._broker.url(), marker=marker)

    def effects(self) -> Counter[str]:
        """How often each message took effect."""
        with Inbox(self.url) as inbox:
            return Counter(message_id for message_id, _ in self._place.effects(inbox))


class Outages:
    """Outages: what is not committed is never settled, while the database is away and when processes die."""

    @pytest.fixture
    def service(self, place: Place, broker: Broker, tmp_path: Path) -> Service:
        """A service with its tables made, in processes that die."""
        return Service(place, broker, tmp_path / "died")

    def test_while_the_database_is_away_nothing_is_settled(
        self, broker: Broker, outage: Outage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Reading pauses with a batch in hand; when the database is back, all of it is there, once."""
        inbox = outage.inbox
        inbox.add_source(broker.url(), source="broker", batch=5)
        inbox.receive(source="x", id="x", type="x", data=1)
        (consumer,) = inbox.ingress.consumers
        publish(broker, *names(20))
        with _reading_alone(inbox):
            settled(broker)
            wait_until(lambda: all(inbox.admin.find("broker", one) for one in names(20)))  # nothing is in hand any more
            outage.cut()
            tried = _tried(inbox, monkeypatch)
            publish(broker, *names(20, "n"))
            wait_until(tried.is_set)
            assert broker.unsettled() == 20
            outage.heal()
            settled(broker)
        assert consumer.batch == 5
        assert sum(len(inbox.admin.find("broker", one)) for one in names(20, "n")) == 20

    def test_a_stop_while_the_database_is_away_leaves_the_batch_to_the_broker(
        self, broker: Broker, outage: Outage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        inbox = outage.inbox
        inbox.add_source(broker.url(), source="broker")
        inbox.receive(source="x", id="x", type="x", data=1)
        outage.cut()
        publish(broker, *names(5))
        tried = _tried(inbox, monkeypatch)
        with _reading_alone(inbox):
            wait_until(tried.is_set)
        assert broker.unsettled() == 5
        outage.heal()
        with _reading_alone(inbox):
            settled(broker)
        assert all(inbox.admin.find("broker", one) for one in names(5))

    def test_a_wrong_set_up_stops_the_worker_loudly(
        self, shop: Shop, broker: Broker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A mistake that waiting does not cure: nothing is settled, and `run` raises it."""

        def wrong(_: Any) -> Any:
            raise ConfigurationError("on purpose")

        monkeypatch.setattr(shop.inbox, "receive_many", wrong)
        shop.inbox.add_source(broker.url(), source="broker")
        publish(broker, "m-1")
        with pytest.raises(ConfigurationError, match="on purpose"):
            shop.inbox.run()
        assert broker.unsettled() == 1

    def test_killed_between_commit_and_acceptance(self, service: Service, broker: Broker) -> None:
        """The broker delivers again what was committed; it is a duplicate, and accepted now (HZ-20)."""
        publish(broker, *names(10))
        first = service.start(dies=True)
        assert first.wait(60) == -signal.SIGKILL
        assert broker.unsettled() == 10
        with Inbox(service.url) as inbox:
            committed = sum(bool(inbox.admin.find("broker", one)) for one in names(10))
        assert committed > 0
        second = service.start(dies=True)
        try:
            settled(broker)
            wait_until(lambda: service.effects() == Counter(names(10)), timeout=60)
        finally:
            second.terminate()
            assert second.wait(60) == 0
        with Inbox(service.url) as inbox:
            assert inbox.admin.stats().duplicates == committed

    def test_killed_again_and_again(self, service: Service, broker: Broker) -> None:
        """Kill -9 at random moments, two processes at a time where the broker allows: every message once."""
        processes = [service.start() for _ in range(broker.readers)]
        try:
            for turn in range(3):
                publish(broker, *names(25, f"t{turn}"))
                time.sleep(0.7)  # the kill comes at any moment: while it starts, reads, handles or has nothing to do
                victim = processes.pop(0)
                victim.kill()
                victim.wait()
                processes.append(service.start())
            expected = Counter(one for turn in range(3) for one in names(25, f"t{turn}"))
            wait_until(lambda: service.effects() == expected, timeout=60)
            settled(broker)
        finally:
            for process in processes:
                process.terminate()
            # One that was started a moment ago may not listen to signals yet.
            assert {process.wait(60) for process in processes} <= {0, -signal.SIGTERM}


def _tried(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when a batch is in hand and is to be stored.

    Also when a reader that begins is not told how far it was read: it takes nothing in hand before it knows.
    """
    receive_many, tried = inbox.receive_many, threading.Event()

    def tell(messages: Any) -> Any:
        tried.set()
        return receive_many(messages)

    monkeypatch.setattr(inbox, "receive_many", tell)
    for consumer in inbox.ingress.consumers:
        if isinstance(consumer.source, Positioned):
            _tell_of_silence(consumer.source, tried, monkeypatch)
    return tried


def _tell_of_silence(source: Positioned, tried: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    follow = source.follow

    def following(positions: Callable[[], Mapping[str, str]]) -> None:
        def ask() -> Mapping[str, str]:
            try:
                return positions()
            except BrokerUnavailable:
                tried.set()
                raise

        follow(ask)

    monkeypatch.setattr(source, "follow", following)


@contextmanager
def _reading_alone(inbox: Inbox) -> Iterator[None]:
    """The sources without workers, which would end with the database; they have stopped when the block has ended."""
    stop = threading.Event()

    def read() -> None:
        with inbox.ingress.attended(stop.set):
            stop.wait()

    thread = threading.Thread(target=read, name="suite-reading", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(20)
    assert not thread.is_alive(), "a source did not stop"
