"""The shipped suite on our own sinks, on real servers: what it asks of those who write brokers, ours keep."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from onceward import ConfigurationError
from onceward.brokers.protocol import open_sink
from onceward.testing.broker_suite import SinkSuite
from tests.contract.harness import Shop, SqlPlace
from tests.sinks.conftest import OUTLETS
from tests.sinks.outlets import Outlet


class TestSinks(SinkSuite):
    """Every broker."""

    @pytest.fixture(params=OUTLETS)
    def outlet(self, request: pytest.FixtureRequest) -> Iterator[Outlet]:
        """Each broker there is."""
        outlet: Outlet = OUTLETS[request.param](request.getfixturevalue(f"{request.param}_broker"))
        yield outlet
        outlet.close()

    @pytest.fixture
    def shop(self, place: SqlPlace) -> Iterator[Shop]:
        """A shop that sends, whose tables are looked through at its end."""
        with Shop(place.url, "def") as shop:
            yield shop


@pytest.mark.parametrize(
    "url",
    [
        "redis://:canary@localhost/0",
        "nats://:canary@localhost?subjekt=x",
        "amqp://:canary@localhost/?queue=x",
        "mqtt://:canary@localhost?topic=a/#",
        "kafka://:canary@localhost?thema=x",
        "sqs://eu-west-1",
        "pubsub://project",
        "pulsar://:canary@localhost?thema=x",
        "pigeon://:canary@localhost",
    ],
)
def test_a_wrong_address_says_what_is_right(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"should be like|no broker for") as caught:
        open_sink(url)
    assert "canary" not in str(caught.value)
