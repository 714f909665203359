"""What only MQTT has: sessions that end or are taken over, packet ids that come again, retained messages, QoS 0."""

from __future__ import annotations

import asyncio

import pytest

from onceward import ConfigurationError
from onceward.brokers import mqtt
from onceward.brokers.mqtt import MqttTopic
from onceward.brokers.protocol import BrokerUnavailable, open_source
from onceward.testing.broker_suite.reading import PAID, names, publish, settled, taken
from tests.contract.harness import Shop
from tests.sources.brokers import MqttBroker
from tests.sources.conftest import reading
from tests.waiting import wait_until


def test_a_packet_id_of_a_lost_connection_acknowledges_nothing_on_the_next(mqtt_broker: MqttBroker) -> None:
    """HZ-14."""
    publish(mqtt_broker, *names(4))

    async def read() -> list[str | None]:
        source = MqttTopic(mqtt_broker.url())
        await source.open()
        old = await taken(source, 4)
        await source.nack(old[:1])
        with pytest.raises(BrokerUnavailable, match="given back"):
            await source.next(1, 1.0)
        await source.close()
        publish(mqtt_broker, "newer")
        await source.open()
        again = await taken(source, 5)
        with pytest.raises(BrokerUnavailable):
            await source.ack(old[:2])
        await source.ack(again[:2])
        await source.close()
        return [arrival.id for arrival in (*old, *again)]

    assert asyncio.run(read()) == [*names(4) * 2, "newer"]  # what comes again comes first, in order
    wait_until(lambda: mqtt_broker.unsettled() == 3)


def test_no_more_is_in_hand_than_prefetch(mqtt_broker: MqttBroker) -> None:
    publish(mqtt_broker, *names(12))

    async def read() -> None:
        source = MqttTopic(mqtt_broker.url().replace("prefetch=50", "prefetch=5"))
        await source.open()
        held = await taken(source, 5)
        assert await source.next(5, 0.2) == []
        await source.ack(held)
        assert [arrival.id for arrival in await taken(source, 5)] == names(12)[5:10]
        await source.close()

    asyncio.run(read())


def test_a_session_that_the_broker_forgot_is_made_again_and_said(
    shop: Shop, mqtt_broker: MqttBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """What was sent meanwhile is lost, and MQTT has no way to have it back; nobody shall be left to guess."""
    shop.inbox.add_source(mqtt_broker.url(proxied=True), source="broker")
    with reading(shop):
        publish(mqtt_broker, "m-1")
        wait_until(lambda: shop.effects() == ["m-1"])
        settled(mqtt_broker)
        mqtt_broker.proxy.cut()
        mqtt_broker.forget_session()
        mqtt_broker.proxy.heal()
        wait_until(lambda: "has forgotten the session" in caplog.text)
        publish(mqtt_broker, "m-2")
        wait_until(lambda: shop.effects() == ["m-1", "m-2"])


def test_two_readers_with_one_name_do_not_throw_each_other_out_as_fast_as_they_can(
    mqtt_broker: MqttBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mqtt, "SHORT_LIFE_SECONDS", 600.0)  # on any machine
    monkeypatch.setattr(mqtt, "CALM_SECONDS", 0.0)

    async def fight() -> None:
        winner, loser = MqttTopic(mqtt_broker.url()), MqttTopic(mqtt_broker.url())
        await winner.open()
        for _ in range(2 * mqtt.SHORT_LIVES):
            assert "again and again" not in caplog.text
            winner, loser = loser, winner
            await winner.open()
            with pytest.raises(BrokerUnavailable):
                await loser.next(1, 10.0)
            await loser.close()
        await winner.close()

    asyncio.run(fight())
    assert "check that no other process reads with the same client=" in caplog.text


def test_retained_messages_and_those_of_qos_0_are_messages_too(shop: Shop, mqtt_broker: MqttBroker) -> None:
    """The topic may be the type."""
    topic = f"{mqtt_broker.topic}/kept"
    shop.handle(topic)
    mqtt_broker.forget_session()
    mqtt_broker.publish_to(topic, b"{}", id="m-1", retain="yes")
    shop.inbox.add_source(mqtt_broker.url(), source="broker", type="header:mqtt-topic")
    with reading(shop):
        wait_until(lambda: shop.effects() == ["m-1"])
        mqtt_broker.publish_to(topic, b"{}", id="m-2", qos="0")
        wait_until(lambda: shop.effects() == ["m-1", "m-2"])
        settled(mqtt_broker)
    mqtt_broker.publish_to(topic, b"", retain="yes")  # deletes the retained one


def test_cloud_events_carry_their_attributes_without_a_prefix(shop: Shop, mqtt_broker: MqttBroker) -> None:
    """As its binding to MQTT says."""
    shop.inbox.add_source(mqtt_broker.url(), source="broker")
    mqtt_broker.publish(b"{}", specversion="1.0", id="c-1", type=PAID, source="/x", content_type="application/json")
    with reading(shop):
        wait_until(lambda: shop.effects() == ["c-1"])


@pytest.mark.parametrize(
    "query", ["", "topic=x", "client=x", "topic=a/#&client=x", "topic=x&client=x&prefetch=0", "topic=x&client=x&a=b"]
)
def test_a_wrong_address_says_what_is_right(query: str) -> None:
    with pytest.raises(ConfigurationError, match=r"topic=FILTER&client=NAME|prefetch"):
        open_source(f"mqtt://:canary@localhost?{query}")


def test_credentials_are_not_in_the_name_and_the_session_is_the_window() -> None:
    source = MqttTopic("mqtt://me:canary@localhost?topic=x&client=x&session_expiry=86400")
    assert "canary" not in source.name
    assert source.redelivery.days == 1
