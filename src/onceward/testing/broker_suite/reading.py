"""Publishing to a broker and reading from its source, as the cases do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from onceward.brokers.protocol import Arrival, BrokerUnavailable, Source
from onceward.testing.broker_suite.places import Broker
from onceward.testing.waiting import TIMEOUT, wait_until

PAID = "order.paid"


def names(count: int, prefix: str = "m") -> list[str]:
    """Ids of so many messages."""
    return [f"{prefix}-{number:03}" for number in range(count)]


def publish(broker: Broker, *ids: str, **data: Any) -> None:
    """Deliver messages whose data have their ids."""
    for one in ids:
        broker.publish(json.dumps({"name": one, **data}).encode(), id=one, type=PAID)


def settled(broker: Broker) -> None:
    """Wait until every delivery is."""
    wait_until(lambda: broker.unsettled() == 0, message="every delivery settled")


async def taken(source: Source, count: int) -> list[Arrival]:
    """So many deliveries of an open source, neither acknowledged nor given back."""
    found: list[Arrival] = []
    async with asyncio.timeout(TIMEOUT):
        while len(found) < count:
            found += await source.next(count - len(found), 1.0)
    return found


async def taken_again(source: Source, count: int) -> list[Arrival]:
    """As `taken`, connecting again where the source says so, as the loop before it does."""
    found: dict[Any, Arrival] = {}
    async with asyncio.timeout(TIMEOUT):
        while len(found) < count:
            try:
                found |= {arrival.id: arrival for arrival in await source.next(count - len(found), 1.0)}
            except BrokerUnavailable:
                await source.close()
                await source.open()
    return list(found.values())


def ids(arrivals: Sequence[Arrival]) -> list[str | None]:
    """What the producer called them."""
    return [arrival.id for arrival in arrivals]
