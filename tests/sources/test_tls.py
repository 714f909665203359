"""Connections with TLS and a password, in and out; and what is said where they fail: of whom, why, and no secret."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import pytest

from onceward.testing.broker_suite.reading import PAID
from tests.contract.harness import Shop
from tests.servers import KafkaServer, PulsarServer
from tests.servers.certificates import papers
from tests.servers.nats import SecureNatsServer
from tests.servers.private import PASSWORD, USER
from tests.servers.pulsar import token
from tests.sources.brokers import MqttBroker, NatsBroker, RabbitBroker, RedisBroker
from tests.sources.conftest import reading
from tests.sources.kafka_broker import KafkaBroker
from tests.sources.pulsar_broker import PulsarBroker
from tests.waiting import wait_until

ROOTS = "SSL_CERT_FILE"
CANARY = "canary"
UNKNOWN = "certificate verify failed"


class Door(NamedTuple):
    """The secure listener of a broker."""

    scheme: str
    port: int
    user: str
    password: str
    source: str
    """What follows the host in the address of a source,"""
    sink: str
    """and of a sink."""
    refusal: str
    """What the broker says to a wrong password."""

    def url(self, rest: str, password: str) -> str:
        """An address, with this password."""
        return f"{self.scheme}://{self.user}:{quote(password)}@127.0.0.1:{self.port}{rest}"


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A file with the authority of the servers, which every client is told of."""
    path = tmp_path / "root.pem"
    path.write_text(papers().root)
    monkeypatch.setenv(ROOTS, str(path))
    return path


@pytest.fixture
def redis_door(redis_broker: RedisBroker) -> Door:
    """Redis, where a user is one of its ACL."""
    stream = f"/0?stream={redis_broker.stream}"
    port = redis_broker.server.secure_port  # type: ignore[union-attr] # a private one has it
    return Door("rediss", port, USER, PASSWORD, stream, stream, "invalid username-password pair")


@pytest.fixture
def nats_door(root: Path) -> Iterator[Door]:
    """NATS, which speaks either TLS or not."""
    assert root.exists()
    with SecureNatsServer() as server, closing(NatsBroker(server)) as broker:
        source = f"?{broker.url().partition('?')[2]}"
        yield Door("tls", server.port, USER, PASSWORD, source, f"?subject={broker.subject}", "uthorization")


@pytest.fixture
def rabbit_door(rabbit_broker: RabbitBroker) -> Door:
    """RabbitMQ."""
    queue, port = rabbit_broker.queue, rabbit_broker.server.secure_port
    return Door("amqps", port, "guest", "guest", f"/?queue={queue}", f"/?routing_key={queue}", "ACCESS_REFUSED")


@pytest.fixture
def mqtt_door(mqtt_broker: MqttBroker) -> Door:
    """MQTT."""
    source = f"?topic={mqtt_broker.topic}/%23&client={mqtt_broker.client}"
    port = mqtt_broker.server.secure_port
    return Door("mqtts", port, USER, PASSWORD, source, f"?topic={mqtt_broker.topic}/paid", "Not authorized")


@pytest.fixture
def kafka_door(kafka_server: KafkaServer, kafka_broker: KafkaBroker) -> Door:
    """Kafka, where a password is proven with SCRAM."""
    kafka_broker.make_user(USER, PASSWORD)
    source = f"?{kafka_broker.url().partition('?')[2]}&sasl=scram-sha-512"
    sink = f"?topic={kafka_broker.topic}&sasl=scram-sha-512"
    return Door("kafkas", kafka_server.secure_port, USER, PASSWORD, source, sink, "Authentication failed")


@pytest.fixture
def pulsar_door(pulsar_server: PulsarServer, pulsar_broker: PulsarBroker) -> Door:
    """Pulsar, where a token says who one is."""
    source = f"?{pulsar_broker.url().partition('?')[2]}"
    refused = "accepts the token"
    return Door(
        "pulsar+ssl", pulsar_server.secure_port, "", token(USER), source, f"?topic={pulsar_broker.topic}", refused
    )


@pytest.fixture(params=["redis", "nats", "rabbit", "mqtt", "kafka", "pulsar"])
def door(request: pytest.FixtureRequest) -> Door:
    """Each broker that has one."""
    found: Door = request.getfixturevalue(f"{request.param}_door")
    return found


@pytest.mark.needs("passwords")
@pytest.mark.usefixtures("root")
def test_what_is_sent_comes_in_again(shop: Shop, door: Door) -> None:
    shop.inbox.add_sink("default", door.url(door.sink, door.password))
    shop.inbox.add_source(door.url(door.source, door.password), source="broker")
    shop.inbox.send(PAID, {"name": "o-1"}, id="o-1")
    with reading(shop):
        wait_until(lambda: shop.effects() == ["o-1"])


@pytest.mark.parametrize("wrong", ["password", "root"])
@pytest.mark.needs("passwords")
@pytest.mark.usefixtures("root")
def test_a_connection_that_is_refused_says_why_and_no_secret(
    shop: Shop, door: Door, wrong: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if wrong == "root":
        monkeypatch.delenv(ROOTS)
    shop.inbox.add_sink("default", door.url(door.sink, CANARY))
    shop.inbox.add_source(door.url(door.source, CANARY), source="broker")
    shop.inbox.send(PAID, {"name": "o-1"}, id="o-1")

    def outcome() -> str:
        (row,) = shop.inbox.admin.messages(outgoing=True)
        history = shop.detail(row.seq).history
        return history[-1].error if history else ""

    with reading(shop):
        wait_until(lambda: "cannot be read" in caplog.text)
        wait_until(outcome)
    reason, where = door.refusal if wrong == "password" else UNKNOWN, f"{door.scheme}://127.0.0.1:{door.port}"
    said = next(line.getMessage() for line in caplog.records if "cannot be read" in line.getMessage())
    for sentence in (said, outcome()):
        assert where in sentence
        assert reason in sentence
    assert CANARY not in caplog.text + outcome()
    (row,) = shop.inbox.admin.messages(outgoing=True)
    assert row.status in ("retrying", "due")  # whoever mends it must not also have to redrive
    shop.inbox.admin.discard(row.seq, reason="test")
