"""Fixtures: brokers, and a shop that reads from one."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from onceward.sources.protocol import Arrival, Source
from tests.contract.harness import QUICK, Shop
from tests.servers import MosquittoServer, NatsServer, RabbitServer, RedisServer
from tests.servers.foreign import ForeignServer
from tests.sources.brokers import Broker, MqttBroker, NatsBroker, RabbitBroker, RedisBroker

ROOT = Path(__file__).parents[2]
PAIRS = ("redis-sqlite", "nats-postgres", "rabbit-sqlite", "mqtt-postgres")
"""A source knows nothing of the store behind it: half of the brokers are read into each."""


@pytest.fixture
def redis_broker(redis_server: RedisServer | ForeignServer) -> Iterator[RedisBroker]:
    """A stream of this test's own."""
    broker = RedisBroker(redis_server)
    yield broker
    broker.close()


@pytest.fixture
def nats_broker(nats_server: NatsServer | ForeignServer) -> Iterator[NatsBroker]:
    """A stream of this test's own."""
    broker = NatsBroker(nats_server)
    yield broker
    broker.close()


@pytest.fixture
def rabbit_broker(rabbit_server: RabbitServer) -> Iterator[RabbitBroker]:
    """A queue of this test's own."""
    broker = RabbitBroker(rabbit_server)
    yield broker
    broker.close()


@pytest.fixture
def mqtt_broker(mosquitto_server: MosquittoServer) -> Iterator[MqttBroker]:
    """A topic and a session of this test's own."""
    broker = MqttBroker(mosquitto_server)
    yield broker
    broker.close()


@pytest.fixture(params=PAIRS)
def pair(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A broker and a store."""
    broker, _, store = request.param.partition("-")
    return broker, store


@pytest.fixture
def broker(pair: tuple[str, str], request: pytest.FixtureRequest) -> Broker:
    """Each broker there is."""
    found: Broker = request.getfixturevalue(f"{pair[0]}_broker")
    return found


@pytest.fixture
def store_url(request: pytest.FixtureRequest) -> str:
    """The store that belongs to the broker of a contract; SQLite for what only one broker has."""
    store = request.getfixturevalue("pair")[1] if "pair" in request.fixturenames else "sqlite"
    url: str = request.getfixturevalue(f"{store}_url")
    return url


@pytest.fixture
def shop(store_url: str) -> Iterator[Shop]:
    """A shop that reads."""
    with Shop(store_url, "def", settings=QUICK) as shop:
        shop.handle()
        yield shop


@contextmanager
def reading(shop: Shop) -> Iterator[None]:
    """The shop's inbox at work, sources and all, for as long as the block lasts."""
    problems: list[BaseException] = []

    def work() -> None:
        try:
            shop.inbox.run()
        except BaseException as error:  # noqa: BLE001 - reported where the block ends
            problems.append(error)

    thread = threading.Thread(target=work, name="reading")
    thread.start()
    try:
        yield
    finally:
        while thread.is_alive():
            shop.inbox.stop()
            thread.join(0.05)
    if problems:
        raise problems[0]


async def taken(source: Source, count: int) -> list[Arrival]:
    """So many deliveries of an open source, neither accepted nor released."""
    found: list[Arrival] = []
    while len(found) < count:
        found += await source.next(count - len(found), 1.0)
    return found


def started(environment: dict[str, Any]) -> subprocess.Popen[bytes]:
    """The program, in a process of its own."""
    command = [sys.executable, "-m", "onceward", "run", "tests.sources.program:inbox"]
    return subprocess.Popen(command, env=environment, cwd=ROOT)
