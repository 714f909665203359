"""Fixtures: brokers, and a shop that reads from one."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.contract.harness import QUICK, Shop
from tests.servers import KafkaServer, MotoServer, NatsServer, PubsubServer, RedisServer
from tests.sources.brokers import Broker, NatsBroker, RedisBroker
from tests.sources.kafka_broker import KafkaBroker
from tests.sources.pubsub_broker import PubsubBroker
from tests.sources.sqs_broker import SqsBroker

ROOT = Path(__file__).parents[2]


@pytest.fixture
def redis_broker(redis_server: RedisServer) -> Iterator[RedisBroker]:
    """A stream of this test's own."""
    broker = RedisBroker(redis_server)
    yield broker
    broker.close()


@pytest.fixture
def nats_broker(nats_server: NatsServer) -> Iterator[NatsBroker]:
    """A stream of this test's own."""
    broker = NatsBroker(nats_server)
    yield broker
    broker.close()


@pytest.fixture
def kafka_broker(kafka_server: KafkaServer) -> Iterator[KafkaBroker]:
    """A topic of this test's own."""
    broker = KafkaBroker(kafka_server)
    yield broker
    broker.close()


@pytest.fixture
def sqs_broker(moto_server: MotoServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqsBroker]:
    """A queue of this test's own."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    broker = SqsBroker(moto_server)
    yield broker
    broker.close()


@pytest.fixture
def pubsub_broker(pubsub_server: PubsubServer) -> Iterator[PubsubBroker]:
    """A subscription of this test's own."""
    broker = PubsubBroker(pubsub_server)
    yield broker
    broker.close()


@pytest.fixture(params=["redis", "nats", "kafka", "sqs", "pubsub"])
def broker(request: pytest.FixtureRequest) -> Broker:
    """Each broker there is."""
    found: Broker = request.getfixturevalue(f"{request.param}_broker")
    return found


HEAVY = ("kafka", "sqs", "pubsub")
"""Brokers whose contract is played on one store per case, half of the cases on each: a source knows no store."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """ONCEWARD_SOURCES=all plays every case of every broker on every store."""
    if os.environ.get("ONCEWARD_SOURCES") == "all":
        return
    left = [item for item in items if not _is_left_out(item)]
    config.hook.pytest_deselected(items=[item for item in items if _is_left_out(item)])
    items[:] = left


def _is_left_out(item: pytest.Item) -> bool:
    params: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
    broker, store = params.get("broker"), params.get("store_url")
    name = getattr(item, "originalname", "")
    return broker in HEAVY and store is not None and store != STORES[zlib.crc32(f"{name} {broker}".encode()) % 2]


STORES = ("sqlite", "postgres")


@pytest.fixture
def shop(store_url: str) -> Iterator[Shop]:
    """A shop on each store."""
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


def started(environment: dict[str, Any], program: str = "tests.sources.program:inbox") -> subprocess.Popen[bytes]:
    """The program, in a process of its own."""
    command = [sys.executable, "-m", "onceward", "run", program]
    return subprocess.Popen(command, env=environment, cwd=ROOT)
