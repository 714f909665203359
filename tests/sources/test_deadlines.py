"""What brokers share that give a delivery away for a time: SQS calls it visibility, Pub/Sub a deadline."""

from __future__ import annotations

import asyncio
import re

import pytest

from onceward.brokers.protocol import open_source
from onceward.testing.broker_suite.reading import names, publish, taken
from tests.sources.brokers import Broker


@pytest.fixture(params=["sqs", "pubsub"])
def broker(request: pytest.FixtureRequest) -> Broker:
    """Each of them."""
    found: Broker = request.getfixturevalue(f"{request.param}_broker")
    return found


def url(broker: Broker, seconds: int) -> str:
    """The source's address, with another time than two seconds."""
    changed, times = re.subn("(visibility|deadline)=2&", rf"\1={seconds}&", broker.url())
    assert times == 1
    return changed


def test_what_is_in_hand_is_given_to_nobody_else(broker: Broker) -> None:
    """For longer than its time, since that is extended; when its reader is gone, it comes to others."""
    publish(broker, *names(12))

    async def hold() -> None:
        first, second = open_source(url(broker, 4)), open_source(url(broker, 4))
        await first.open()
        held = await taken(first, 12)
        await second.open()
        for _ in range(5):
            assert await second.next(100, 1) == []
        await first.close()
        theirs = await taken(second, 12)
        assert {arrival.id for arrival in theirs} == set(names(12))
        # The same messages under other handles.
        assert not {arrival.handle for arrival in theirs} & {arrival.handle for arrival in held}
        assert {arrival.position for arrival in theirs} == {arrival.position for arrival in held}
        await second.ack(theirs)
        await second.close()

    asyncio.run(hold())
    assert broker.unsettled() == 0


def test_what_is_nacked_is_there_at_once(broker: Broker) -> None:
    publish(broker, *names(3))

    async def give_back() -> None:
        source = open_source(url(broker, 600))
        await source.open()
        given = await taken(source, 3)
        await source.ack(given[:1])
        await source.nack(given[1:])
        again = await taken(source, 2)
        assert {arrival.id for arrival in again} == {arrival.id for arrival in given[1:]}
        await source.ack(again)
        await source.close()

    asyncio.run(give_back())
    assert broker.unsettled() == 0
