"""FastStream: what a subscriber gets is received before it is acknowledged; policies that lose are refused (R57)."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from faststream import AckPolicy
from faststream.confluent import KafkaBroker
from faststream.rabbit import RabbitBroker, RabbitQueue, TestRabbitBroker
from faststream.redis import RedisBroker

from onceward import ConfigurationError, Inbox
from onceward.integrations.faststream import add_subscriber

if TYPE_CHECKING:
    from tests.recipes.conftest import Recipe
    from tests.servers import RabbitServer

pytestmark = pytest.mark.timeout(300)

_PUBLISH = """
import asyncio, stream

async def publish():
    async with stream.broker:
        await stream.broker.publish({"order_id": 7}, "QUEUE", headers={"event-id": "evt-1"}, persist=True)

asyncio.run(publish())
"""


@pytest.fixture
def stream(recipe: Callable[..., Recipe], rabbit_server: RabbitServer, request: pytest.FixtureRequest) -> Recipe:
    """The program of the page, on a queue of its own that exists."""
    name = request.node.name
    made = recipe(
        "faststream", {"amqp://localhost/": rabbit_server.address, 'RabbitQueue("orders"': f'RabbitQueue("{name}"'}
    )
    made.migrate()
    made.run(
        "import asyncio, stream\n"
        "async def declare():\n"
        "    async with stream.broker:\n"
        f"        await stream.broker.declare_queue(stream.RabbitQueue({name!r}, durable=True))\n"
        "asyncio.run(declare())"
    )
    return made


def subscriber(module: str) -> list[str]:
    """The command that runs a subscriber of a module."""
    return ["python", "-c", f"import asyncio, {module}; asyncio.run({module}.app.run())"]


def publish(stream: Recipe, request: pytest.FixtureRequest) -> None:
    """A message of the producer."""
    stream.run(_PUBLISH.replace("QUEUE", request.node.name))


def test_a_message_that_comes_twice_has_one_effect(stream: Recipe, request: pytest.FixtureRequest) -> None:
    stream.start(*subscriber("stream"))
    stream.start("onceward", "run", "stream:inbox")
    publish(stream, request)
    publish(stream, request)
    stream.wait_for(lambda: stream.copies("orders", "evt-1") == 1, "the copy")
    stream.wait_for(lambda: stream.rows("shipped") == [7], "the effect")
    assert stream.rows("shipped") == [7]


def test_a_subscriber_that_dies_after_its_commit_has_one_effect(stream: Recipe, request: pytest.FixtureRequest) -> None:
    stream.dying("stream", "receive")
    first = stream.start(*subscriber("dying"))
    publish(stream, request)
    stream.wait_for((stream.folder / "died").exists, "the death of the subscriber")
    stream.kill(first)
    stream.start(*subscriber("stream"))
    stream.start("onceward", "run", "stream:inbox")
    stream.wait_for(lambda: stream.copies("orders", "evt-1") == 1, "the message, delivered again")
    stream.wait_for(lambda: stream.rows("shipped") == [7], "the effect")


def test_a_subscriber_that_dies_before_its_commit_loses_nothing(stream: Recipe, request: pytest.FixtureRequest) -> None:
    stream.beginning("stream", "receive")
    with closing(stream.connect()) as blocker:
        blocker.execute("BEGIN IMMEDIATE")
        first = stream.start(*subscriber("beginning"))
        publish(stream, request)
        stream.wait_for((stream.folder / "began").exists, "the message, delivered")
        stream.kill(first)
    stream.start(*subscriber("stream"))
    stream.start("onceward", "run", "stream:inbox")
    stream.wait_for(lambda: stream.rows("shipped") == [7], "the effect, at the second delivery")


def test_a_message_comes_again_while_the_database_is_away(stream: Recipe, request: pytest.FixtureRequest) -> None:
    """Nothing is acknowledged that is not stored."""
    folder = stream.folder
    (folder / "no.db").write_text("this is no database")
    os.rename(folder / "shop.db", folder / "away.db")  # noqa: PTH104 - as below
    os.rename(folder / "no.db", folder / "shop.db")  # noqa: PTH104 - as below
    stream.beginning("stream", "receive")
    stream.start(*subscriber("beginning"))
    publish(stream, request)
    stream.wait_for(lambda: _size(folder / "began") > 1, "the message, delivered in vain, and again")
    os.replace(folder / "away.db", folder / "shop.db")  # noqa: PTH105 - at once, so that it is never missing
    stream.start("onceward", "run", "stream:inbox")
    stream.wait_for(lambda: stream.rows("shipped") == [7], "the effect")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@pytest.mark.parametrize("policy", [one for one in AckPolicy if one is not AckPolicy.NACK_ON_ERROR])
def test_a_policy_that_loses_messages_is_refused(sqlite_url: str, policy: AckPolicy) -> None:
    subscriber = RabbitBroker("amqp://localhost").subscriber("orders", ack_policy=policy)
    with Inbox(sqlite_url) as inbox, pytest.raises(ConfigurationError, match=r"ack_policy=.*NACK_ON_ERROR"):
        add_subscriber(inbox, subscriber, source="orders", id="header:event-id")


@pytest.mark.parametrize(
    "subscriber",
    [
        RabbitBroker("amqp://localhost").subscriber("orders"),
        KafkaBroker("localhost").subscriber("orders"),
        KafkaBroker("localhost").subscriber("orders", group_id="shop"),
        RedisBroker("redis://localhost").subscriber("orders"),
        RedisBroker("redis://localhost").subscriber(stream="orders"),
        RedisBroker("redis://localhost").subscriber(list="orders"),
        object(),
    ],
    ids=["rabbit", "kafka", "kafka group", "channel", "stream", "list", "nothing"],
)
def test_what_is_usual_and_loses_messages_is_refused(sqlite_url: str, subscriber: Any) -> None:
    with Inbox(sqlite_url) as inbox, pytest.raises(ConfigurationError, match="NACK_ON_ERROR"):
        add_subscriber(inbox, subscriber, source="orders", id="header:event-id")


def test_a_position_is_no_id_here(sqlite_url: str) -> None:
    subscriber = RabbitBroker("amqp://localhost").subscriber("orders", ack_policy=AckPolicy.NACK_ON_ERROR)
    with Inbox(sqlite_url) as inbox, pytest.raises(ConfigurationError, match="no position"):
        add_subscriber(inbox, subscriber, source="orders", id="position", type="=order.paid")


async def test_names_are_found_as_in_a_source(sqlite_url: str) -> None:
    """By path, in a CloudEvent; what has no id is kept for an operator, and never under FastStream's own."""
    broker = RabbitBroker("amqp://localhost")
    handled: list[tuple[str, Any]] = []
    with Inbox(sqlite_url) as inbox:
        inbox.migrate()
        inbox.on("order.paid")(lambda message, _tx: handled.append((message.id, message.data)))
        named = broker.subscriber(RabbitQueue("named"), ack_policy=AckPolicy.NACK_ON_ERROR)
        add_subscriber(inbox, named, source="named", id="event.id", type="event.kind", inline=True)
        events = broker.subscriber(RabbitQueue("events"), ack_policy=AckPolicy.NACK_ON_ERROR)
        add_subscriber(inbox, events, source="events", inline=True)
        async with TestRabbitBroker(broker):
            body: Any = {"event": {"id": "evt-1", "kind": "order.paid"}}
            await broker.publish(body, "named")
            await broker.publish(body, "named")
            event: dict[str, Any] = {
                "ce-specversion": "1.0",
                "ce-id": "1",
                "ce-source": "/shop",
                "ce-type": "order.paid",
            }
            await broker.publish({"order": 7}, "events", headers=event)
            await broker.publish({"order": 8}, "events", message_id="set-by-hand")
        assert handled == [("evt-1", body), ("5:/shop:1", {"order": 7})]
        (unread,) = inbox.admin.messages(type="onceward.unidentified")
        assert unread.source == "events"
