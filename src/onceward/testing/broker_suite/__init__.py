"""The suite that defines a broker: one that passes it loses, doubles and disorders no message, in or out.

    from onceward.testing.broker_suite import SinkSuite, SourceSuite

    class TestMySource(SourceSuite):
        @pytest.fixture
        def broker(self) -> Iterator[MyBroker]:
            broker = MyBroker()  # a queue of this test's own on a real server, see `Broker`
            yield broker
            broker.close()

    class TestMySink(SinkSuite):
        @pytest.fixture
        def outlet(self) -> Iterator[MyOutlet]:
            ...  # the same, seen from behind, see `Outlet`

It needs pytest and a server to publish to, to cut (a `FaultProxy` does that) and to kill. The inbox behind it is a
SQLite file; override `place` for another database.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from onceward.testing.broker_suite.connections import Connections
from onceward.testing.broker_suite.deliveries import Deliveries
from onceward.testing.broker_suite.outages import Outage, Outages, PlayedOutage
from onceward.testing.broker_suite.places import Broker, Outlet, SqlPlace
from onceward.testing.broker_suite.settling import Settling
from onceward.testing.broker_suite.sinks import Sinks
from onceward.testing.proxy import FaultProxy
from onceward.testing.store_suite.place import Place
from onceward.testing.store_suite.shop import QUICK, Shop

__all__ = ["Broker", "FaultProxy", "Outage", "Outlet", "Place", "Shop", "SinkSuite", "SourceSuite", "SqlPlace"]


class _Suite:
    @pytest.fixture
    def cannot(self) -> Mapping[str, str]:
        """What this broker cannot do of "proxy", "restart" and "refusal", with the reason: what needs it is skipped."""
        return {}

    @pytest.fixture(autouse=True)
    def _is_able(self, request: pytest.FixtureRequest, cannot: Mapping[str, str]) -> None:
        needs = {str(need) for mark in request.node.iter_markers("needs") for need in mark.args}
        for need in sorted(needs & set(cannot)):
            pytest.skip(cannot[need])

    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        """An empty database of this test's own; its `store()` must be a URL, for the processes that are killed."""
        return SqlPlace(f"sqlite:///{tmp_path / 'onceward.db'}")


class SourceSuite(_Suite, Deliveries, Settling, Connections, Outages):
    """What a source must keep. Give it a fixture `broker`."""

    @pytest.fixture
    def broker(self) -> Broker:
        """A queue of this test's own on a real server."""
        raise NotImplementedError("give the suite a fixture `broker`: see onceward.testing.broker_suite.Broker")

    @pytest.fixture
    def shop(self, place: Place) -> Iterator[Shop]:
        """A shop that reads."""
        with Shop(place, "def", settings=QUICK) as shop:
            shop.handle()
            yield shop

    @pytest.fixture
    def outage(self, place: Place) -> Outage:
        """An inbox whose database can be taken away."""
        return PlayedOutage(place)


class SinkSuite(_Suite, Sinks):
    """What a sink must keep. Give it a fixture `outlet`."""

    @pytest.fixture
    def outlet(self) -> Outlet:
        """A queue of this test's own on a real server, and what has arrived there."""
        raise NotImplementedError("give the suite a fixture `outlet`: see onceward.testing.broker_suite.Outlet")

    @pytest.fixture
    def shop(self, place: Place) -> Iterator[Shop]:
        """A shop that sends."""
        with Shop(place, "def") as shop:
            yield shop
