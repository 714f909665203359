"""What only Pub/Sub has: its own ids, and ordering keys."""

from __future__ import annotations

import asyncio

import pytest

from onceward import ConfigurationError
from onceward.brokers.protocol import open_source
from onceward.brokers.pubsub import PubsubSubscription
from onceward.testing.broker_suite.reading import PAID, publish, settled
from tests.contract.harness import Shop
from tests.sources.conftest import reading
from tests.sources.pubsub_broker import PubsubBroker
from tests.waiting import wait_until


def test_its_own_message_id_is_the_place_and_the_ordering_key_a_header(shop: Shop, pubsub_broker: PubsubBroker) -> None:
    shop.inbox.add_source(pubsub_broker.url(), source="broker", id="position", type=f"={PAID}")
    for _ in range(2):
        pubsub_broker.publish(b'{"key": "k"}')
    with reading(shop):
        settled(pubsub_broker)
        wait_until(lambda: len(shop.effects()) == 2)
    assert all(effect.startswith(f"pubsub:{pubsub_broker.subscription}/") for effect in shop.effects())
    detail = shop.detail(shop.inbox.admin.find("broker", shop.effects()[0])[0])
    assert detail.headers["pubsub-ordering-key"] == "k"


def test_a_subscription_that_is_not_there_yet_is_waited_for(shop: Shop, pubsub_broker: PubsubBroker) -> None:
    pubsub_broker.delete_subscription()
    shop.inbox.add_source(pubsub_broker.url(), source="broker")
    with reading(shop):
        pubsub_broker.make_subscription()
        publish(pubsub_broker, "m-1")
        wait_until(lambda: shop.effects() == ["m-1"])


def test_without_credentials_it_waits_for_them(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    """Google's library looks for them in files and, at last, asks the machine that it runs on."""
    monkeypatch.delenv("PUBSUB_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", f"{tmp_path}/missing.json")

    async def open_and_close() -> None:
        source = PubsubSubscription("pubsub://project/orders")
        with pytest.raises(Exception, match=r"missing\.json") as trouble:
            await source.open()
        assert type(trouble.value).__name__ == "BrokerUnavailable"
        await source.close()

    asyncio.run(open_and_close())


@pytest.mark.parametrize(
    "url",
    ["pubsub://project", "pubsub:///orders", "pubsub://project/orders?deadline=0", "pubsub://project/orders?dead=3"],
)
def test_a_wrong_address_says_what_is_right(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"pubsub://PROJECT/SUBSCRIPTION|deadline"):
        open_source(url)
