"""A source's rate limit: no more than so many messages a second, and all of them in the end."""

from __future__ import annotations

import time

import pytest

from onceward import ConfigurationError
from onceward.testing.broker_suite.reading import names, publish, settled
from tests.contract.harness import Shop
from tests.sources.brokers import RedisBroker
from tests.sources.conftest import reading
from tests.waiting import wait_until

RATE = 20


def test_no_more_are_taken_than_the_rate_allows(shop: Shop, redis_broker: RedisBroker) -> None:
    """The broker keeps the others. However slow the machine, there are never more."""
    publish(redis_broker, *names(50))
    shop.inbox.add_source(redis_broker.url(), source="broker", rate=RATE)
    begun = time.monotonic()
    with reading(shop):
        while redis_broker.unsettled():
            taken = shop.count("ledger")
            assert taken <= RATE + RATE * (time.monotonic() - begun)
        settled(redis_broker)
        wait_until(lambda: len(shop.effects()) == 50)


def test_a_rate_that_is_none(shop: Shop, redis_broker: RedisBroker) -> None:
    with pytest.raises(ConfigurationError, match="one a minute at least"):
        shop.inbox.add_source(redis_broker.url(), source="broker", rate=0)
