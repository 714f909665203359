"""The shipped suite on our own sources, on real servers: what it asks of those who write brokers, ours keep."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from onceward import Inbox
from onceward.testing.broker_suite import SourceSuite
from tests.contract.harness import QUICK, Shop, SqlPlace
from tests.servers import FaultProxy
from tests.sources.brokers import Broker


class PostgresOutage:
    """A PostgreSQL behind a proxy."""

    def __init__(self, url: str, proxy: FaultProxy) -> None:
        self.inbox, self.cut, self.heal = Inbox(url), proxy.cut, proxy.heal
        self.inbox.migrate()


class TestSources(SourceSuite):
    """Every broker, each into one of our stores."""

    @pytest.fixture
    def broker(self, pair: tuple[str, str], request: pytest.FixtureRequest) -> Broker:
        """Each broker there is."""
        found: Broker = request.getfixturevalue(f"{pair[0]}_broker")
        return found

    @pytest.fixture
    def place(self, store_url: str) -> Iterator[SqlPlace]:
        """The store that belongs to the broker."""
        place = SqlPlace(store_url)
        yield place
        place.window.close()

    @pytest.fixture
    def shop(self, place: SqlPlace) -> Iterator[Shop]:
        """A shop that reads, whose tables are looked through at its end."""
        with Shop(place, "def", settings=QUICK) as shop:
            shop.handle()
            yield shop

    @pytest.fixture
    def outage(self, postgres_proxy: FaultProxy, proxied_postgres_url: str) -> PostgresOutage:
        """A database that is really away."""
        return PostgresOutage(proxied_postgres_url, postgres_proxy)
