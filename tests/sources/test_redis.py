"""What only Redis Streams have: take-over, trimming, lost groups, and fields that are the data."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from onceward import ConfigurationError
from onceward.brokers.protocol import open_source
from onceward.brokers.redis import RedisStream
from onceward.testing.broker_suite.reading import names, publish, settled
from tests.contract.harness import Shop
from tests.sources.brokers import RedisBroker
from tests.sources.conftest import reading
from tests.waiting import wait_until


def test_what_a_dead_consumer_was_given_is_taken_over(shop: Shop, redis_broker: RedisBroker) -> None:
    """Redis would never deliver it again by itself."""
    publish(redis_broker, *names(10))

    async def die() -> int:
        dead = RedisStream(redis_broker.url())
        await dead.open()
        given = await dead.next(100, 1.0)
        await dead._client.aclose()
        return len(given)

    assert asyncio.run(die()) == 10
    shop.inbox.add_source(redis_broker.url(), source="broker", batch=4)
    with reading(shop):
        settled(redis_broker)
        wait_until(lambda: Counter(shop.effects()) == Counter(names(10)))


def test_a_consumer_that_leaves_tidies_up_unless_something_is_pending(redis_broker: RedisBroker) -> None:
    """Deleting a consumer deletes its pending entries: they would never come again."""
    publish(redis_broker, "m-1")

    async def leave(*, accepting: bool) -> int:
        source = RedisStream(redis_broker.url())
        await source.open()
        given = await source.next(10, 1.0)
        if given and accepting:
            await source.ack(given)
        await source.close()
        return len(given)

    assert asyncio.run(leave(accepting=False)) == 1
    assert (redis_broker.consumers(), redis_broker.unsettled()) == (1, 1)
    wait_until(lambda: asyncio.run(leave(accepting=True)) == 1)  # taken over once it is idle
    assert redis_broker.unsettled() == 0


def test_entries_that_were_trimmed_away_while_pending_do_not_stop_the_rest(
    shop: Shop, redis_broker: RedisBroker
) -> None:
    publish(redis_broker, *names(3))

    async def die() -> None:
        dead = RedisStream(redis_broker.url())
        await dead.open()
        await dead.next(100, 1.0)
        await dead._client.aclose()

    asyncio.run(die())
    redis_broker.trim()
    publish(redis_broker, "after")
    shop.inbox.add_source(redis_broker.url(), source="broker")
    with reading(shop):
        settled(redis_broker)
        wait_until(lambda: shop.effects() == ["after"])


def test_a_redis_that_came_back_without_its_data_gets_its_group_again(shop: Shop, redis_broker: RedisBroker) -> None:
    shop.inbox.add_source(redis_broker.url(), source="broker")
    publish(redis_broker, "m-1")
    with reading(shop):
        wait_until(lambda: shop.effects() == ["m-1"])
        redis_broker.forget_everything()
        publish(redis_broker, "m-2")
        wait_until(lambda: shop.effects() == ["m-1", "m-2"])


def test_without_a_body_the_fields_are_the_data(shop: Shop, redis_broker: RedisBroker) -> None:
    shop.inbox.add_source(redis_broker.url(), source="broker")
    redis_broker.publish_fields({"id": "m-1", "type": "order.paid", "amount": "7"})
    with reading(shop):
        settled(redis_broker)
        wait_until(lambda: shop.effects() == ["m-1"])
    detail = shop.detail(shop.inbox.admin.find("broker", "m-1")[0])
    assert (detail.body, dict(detail.headers)) == (b'{"id": "m-1", "type": "order.paid", "amount": "7"}', {})


@pytest.mark.parametrize(
    "query", ["", "stream=", "stream=x&claim_after=0", "stream=x&claim_after=y", "stream=x&streem=y"]
)
def test_a_wrong_address_says_what_is_right(query: str) -> None:
    with pytest.raises(ConfigurationError, match=r"stream=NAME|claim_after"):
        open_source(f"redis://:canary@localhost/0?{query}")
    with pytest.raises(ConfigurationError, match="no broker for"):
        open_source("carrier-pigeon://x")


def test_credentials_are_not_in_the_name() -> None:
    assert "canary" not in RedisStream("redis://me:canary@localhost/0?stream=x").name
