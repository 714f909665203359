"""Fixtures: brokers, and a shop that reads from one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.contract.harness import QUICK, Shop
from tests.servers import (
    KafkaMock,
    KafkaServer,
    MosquittoServer,
    MotoServer,
    NatsServer,
    PubsubServer,
    PulsarServer,
    RabbitServer,
    RedisServer,
    install,
)
from tests.servers.foreign import ForeignServer
from tests.servers.limits import broker_of, leave_out
from tests.sources.brokers import MqttBroker, NatsBroker, RabbitBroker, RedisBroker
from tests.sources.kafka_broker import KafkaBroker, KafkaMockBroker
from tests.sources.pubsub_broker import PubsubBroker
from tests.sources.pulsar_broker import PulsarBroker
from tests.sources.sqs_broker import SqsBroker
from tests.stores import postgres_database

__all__ = ["postgres_database"]

ROOT = Path(__file__).parents[2]
PAIRS = (
    *("redis-sqlite", "nats-postgres", "rabbit-sqlite", "mqtt-postgres"),
    *("kafka-postgres", "kafkamock-sqlite", "sqs-sqlite", "pubsub-postgres", "pulsar-postgres"),
)
"""A source knows nothing of the store behind it: half of the brokers are read into each."""


SLOW = ("kafka", "sqs", "pubsub")
"""Brokers whose servers and clients take seconds to start; what Kafka leaves out, its mock cluster plays."""
SHARED = frozenset(
    [
        "test_a_known_id_with_other_bytes_is_quarantined_and_settled",
        "test_deliveries_without_a_name_are_kept_for_a_person",
        "test_a_body_that_cannot_be_read_is_dead_and_blocks_nobody",
        "test_ids_and_types_where_the_user_says",
        "test_inline_messages_are_handled_before_they_are_settled",
        "test_connections_cut_again_and_again_lose_and_double_nothing",
        "test_a_wrong_set_up_stops_the_worker_loudly",
        "test_killed_again_and_again",
        "test_a_connection_that_stalls_goes_on",
        "test_what_is_released_comes_again",
        "test_what_a_reader_leaves_unsettled_comes_to_the_next",
        "test_one_batch_at_a_time_while_the_store_is_slow",
        "test_a_stop_in_the_middle_settles_what_is_stored_and_nothing_else",
        "test_an_inline_source_that_stops_half_way_settles_what_it_has_handled",
        "test_a_handler_that_fails_is_not_the_brokers_matter",
        "test_the_same_id_of_two_sources_is_two_messages",
        "test_an_inline_message_waits_with_its_handler",
        "test_a_stop_while_the_database_is_away_leaves_the_batch_to_the_broker",
        "test_a_broker_that_is_away_at_the_start_is_waited_for",
    ]
)
"""Cases about the loop that all sources share, and those that files of the slow brokers have in their own way: the
quick brokers play them every day."""


@pytest.hookimpl(trylast=True)  # of what was chosen to run
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """ONCEWARD_SOURCES=all plays every case with every broker."""
    if os.environ.get("ONCEWARD_SOURCES") == "all":
        return
    leave_out(config, items, {item: why for item in items if (why := _why_not(item))})


def _why_not(item: pytest.Item) -> str:
    broker, is_shared = broker_of(item), getattr(item, "originalname", "") in SHARED
    if broker == "kafkamock" and not is_shared and "pair" in getattr(item, "fixturenames", ()):
        return "" if install.KAFKA.missing() else "Kafka plays it, and not its mock cluster too (make brokers does)"
    if broker in SLOW and is_shared:
        return "about the loop that all brokers share: the quick ones play it (make brokers plays all)"
    return ""


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
def kafka_broker(kafka_server: KafkaServer | ForeignServer) -> Iterator[KafkaBroker]:
    """A topic of this test's own."""
    broker = KafkaBroker(kafka_server)
    yield broker
    broker.close()


@pytest.fixture
def kafkamock_broker(kafka_mock: KafkaMock) -> Iterator[KafkaMockBroker]:
    """A topic of this test's own."""
    broker = KafkaMockBroker(kafka_mock)
    yield broker
    broker.close()


@pytest.fixture
def sqs_broker(sqs_server: MotoServer | ForeignServer) -> Iterator[SqsBroker]:
    """A queue of this test's own."""
    broker = SqsBroker(sqs_server)
    yield broker
    broker.close()


@pytest.fixture
def rabbit_broker(rabbit_server: RabbitServer) -> Iterator[RabbitBroker]:
    """A queue of this test's own."""
    broker = RabbitBroker(rabbit_server)
    yield broker
    broker.close()


@pytest.fixture
def pubsub_broker(pubsub_server: PubsubServer | ForeignServer) -> Iterator[PubsubBroker]:
    """A subscription of this test's own."""
    broker = PubsubBroker(pubsub_server)
    yield broker
    broker.close()


@pytest.fixture
def pulsar_broker(pulsar_server: PulsarServer) -> Iterator[PulsarBroker]:
    """A topic of this test's own."""
    broker = PulsarBroker(pulsar_server)
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
    with shop.started():
        yield


def started(environment: dict[str, Any], program: str) -> subprocess.Popen[bytes]:
    """The program, in a process of its own."""
    command = [sys.executable, "-m", "onceward", "run", program]
    return subprocess.Popen(command, env=environment, cwd=ROOT)
