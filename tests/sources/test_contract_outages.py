"""What every broker's source must keep when the database is away and when processes die (R06, R38; HZ-20, HZ-36)."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from onceward import ConfigurationError, Inbox
from tests.contract.harness import Shop
from tests.servers import FaultProxy
from tests.sources.brokers import Broker
from tests.sources.conftest import started
from tests.sources.test_contract import names, publish, settled
from tests.waiting import wait_until

# Trouble with the database


def test_while_the_database_is_away_nothing_is_settled(
    broker: Broker, postgres_proxy: FaultProxy, proxied_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading pauses with a batch in hand; when the database is back, all of it is there, once."""
    inbox = Inbox(proxied_postgres_url)
    inbox.migrate()
    inbox.add_source(broker.url(), source="broker", batch=5)
    inbox.receive(source="x", id="x", type="x", data=1)
    (intake,) = inbox.ingress.intakes
    publish(broker, *names(20))
    stopping, thread = _reading_alone(inbox)
    settled(broker)
    wait_until(lambda: all(inbox.admin.find("broker", one) for one in names(20)))  # nothing is in hand any more
    postgres_proxy.cut()
    tried = _tried(inbox, monkeypatch)
    publish(broker, *names(20, "n"))
    wait_until(tried.is_set)
    assert broker.unsettled() == 20
    postgres_proxy.heal()
    settled(broker)
    stopping()
    thread.join(20)
    assert intake.batch == 5
    assert sum(len(inbox.admin.find("broker", one)) for one in names(20, "n")) == 20
    inbox.close()


def test_a_stop_while_the_database_is_away_leaves_the_batch_to_the_broker(
    broker: Broker, postgres_proxy: FaultProxy, proxied_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = Inbox(proxied_postgres_url)
    inbox.migrate()
    inbox.add_source(broker.url(), source="broker")
    inbox.receive(source="x", id="x", type="x", data=1)
    postgres_proxy.cut()
    publish(broker, *names(5))
    tried = _tried(inbox, monkeypatch)
    stopping, thread = _reading_alone(inbox)
    wait_until(tried.is_set)
    stopping()
    thread.join(20)
    assert not thread.is_alive()
    assert broker.unsettled() == 5
    postgres_proxy.heal()
    stopping, thread = _reading_alone(inbox)
    settled(broker)
    stopping()
    thread.join(20)
    assert all(inbox.admin.find("broker", one) for one in names(5))
    inbox.close()


def _tried(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when a batch is in hand and is to be stored."""
    receive_many, tried = inbox.receive_many, threading.Event()

    def noted(messages: Any) -> Any:
        tried.set()
        return receive_many(messages)

    monkeypatch.setattr(inbox, "receive_many", noted)
    return tried


def _reading_alone(inbox: Inbox) -> tuple[Any, threading.Thread]:
    """The sources without workers, which would end with the database."""
    stop = threading.Event()

    def read() -> None:
        with inbox._attended(stop.set):
            stop.wait(60)

    thread = threading.Thread(target=read)
    thread.start()
    return stop.set, thread


def test_a_wrong_set_up_stops_the_worker_loudly(shop: Shop, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake that waiting does not cure: nothing is settled, and `run` raises it."""

    def wrong(_: Any) -> Any:
        raise ConfigurationError("on purpose")

    monkeypatch.setattr(shop.inbox, "receive_many", wrong)
    shop.inbox.add_source(broker.url(), source="broker")
    publish(broker, "m-1")
    with pytest.raises(ConfigurationError, match="on purpose"):
        shop.inbox.run()
    assert broker.unsettled() == 1


# Processes that die


@pytest.fixture
def environment(store_url: str, broker: Broker, tmp_path: Path) -> dict[str, str]:
    """For the program, with its tables made."""
    with Inbox(store_url) as inbox:
        inbox.migrate()
        with inbox.transaction() as tx:
            tx.execute("CREATE TABLE effects (message_id text, note text)")
    return {
        **os.environ,
        "SOURCE_STORE": store_url,
        "SOURCE_URL": broker.url(),
        "SOURCE_MARKER": str(tmp_path / "died"),
    }


def effects(url: str) -> Counter[str]:
    with Inbox(url) as inbox, inbox.transaction() as tx:
        return Counter(row[0] for row in tx.execute("SELECT message_id FROM effects").fetchall())


def test_killed_between_commit_and_acceptance(environment: dict[str, str], broker: Broker, store_url: str) -> None:
    """The broker delivers again what was committed; it is a duplicate, and accepted now (HZ-20)."""
    publish(broker, *names(10))
    first = started(environment)
    assert first.wait(60) == -signal.SIGKILL
    assert broker.unsettled() == 10
    with Inbox(store_url) as inbox:
        committed = sum(bool(inbox.admin.find("broker", one)) for one in names(10))
    assert committed > 0
    second = started(environment)
    try:
        settled(broker)
        wait_until(lambda: effects(store_url) == Counter(names(10)), timeout=60)
    finally:
        second.terminate()
        assert second.wait(60) == 0
    with Inbox(store_url) as inbox:
        assert inbox.admin.stats().duplicates == committed


def test_killed_again_and_again(environment: dict[str, str], broker: Broker, store_url: str) -> None:
    """Kill -9 at random moments, two processes at a time where the broker allows: every message once."""
    environment.pop("SOURCE_MARKER")
    processes = [started(environment) for _ in range(broker.readers)]
    try:
        for turn in range(3):
            publish(broker, *names(25, f"t{turn}"))
            time.sleep(0.7)  # the moment of the kill is anybody's: while it starts, reads, handles or has nothing to do
            victim = processes.pop(0)
            victim.kill()
            victim.wait()
            processes.append(started(environment))
        expected = Counter(one for turn in range(3) for one in names(25, f"t{turn}"))
        wait_until(lambda: effects(store_url) == expected, timeout=60)
        settled(broker)
    finally:
        for process in processes:
            process.terminate()
        # One that was started a moment ago may not listen to signals yet.
        assert {process.wait(60) for process in processes} <= {0, -signal.SIGTERM}
