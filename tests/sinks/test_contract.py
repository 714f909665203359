"""What every broker's sink must keep, on a real server (R25, R38, R42; HZ-80 to HZ-84)."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from onceward import ConfigurationError, Inbox
from onceward.sinks.protocol import open_sink
from onceward.testing import sink_contract
from tests.contract.harness import QUICK, Shop
from tests.nursery import Nursery
from tests.outbox.post import LATER, number_of, outgoing, send
from tests.sinks.outlets import Outlet
from tests.sources.conftest import reading
from tests.waiting import wait_until


@pytest.mark.needs("proxy")
def test_the_promises_of_a_sink(outlet: Outlet) -> None:
    """Confirmed means arrived; a copy has the same id; threads; what did not arrive raises."""

    @contextmanager
    def away() -> Iterator[None]:
        outlet.broker.proxy.cut()
        yield
        outlet.broker.proxy.heal()

    with closing(open_sink(outlet.url(proxied=True))) as sink:
        assert len(sink_contract(sink, received=outlet.received, away=away)) == 4


def test_a_source_reads_what_was_sent(shop: Shop, outlet: Outlet, tmp_path: Path) -> None:
    """Id, type, very bytes and headers; twice sent is once received."""
    outlet.close()  # the source takes its place
    shop.inbox.add_sink("default", outlet.url())
    body = '{"name": "ä€😀"}'.encode()
    for _ in range(2):
        shop.inbox.send("order.paid", body=body, id="o-1", headers={"correlation-id": "c-1", "x-note": "100% ok"})
        shop.drain()
    with Shop(f"sqlite:///{tmp_path / 'other.db'}", "def", settings=QUICK) as other:
        other.handle()
        other.inbox.add_source(outlet.broker.url(), source="shop")
        with reading(other):
            wait_until(lambda: other.effects() == ["o-1"])
            wait_until(lambda: outlet.broker.unsettled() == 0)
        story = other.story(other.inbox.admin.find("shop", "o-1")[0])
        assert (story.type, story.body) == ("order.paid", body)
        assert (story.headers["correlation-id"], story.headers["x-note"]) == ("c-1", "100% ok")
        assert story.headers["content-type"] == "application/json"


def test_killed_between_confirmation_and_mark(shop: Shop, outlet: Outlet, nursery: Nursery, tmp_path: Path) -> None:
    """It is published again, under the same id (HZ-80)."""
    ids = send(shop, "a", "b", "c", key="k")
    words = {"url": shop.url, "sink": outlet.url(), "marker": str(tmp_path / "died")}
    assert nursery.start("tests.sinks.program:relay", tmp_path, **words).end() == -signal.SIGKILL
    first = [name for name, _, _ in outlet.received()]
    assert set(first) == {ids[0]}
    with Inbox(shop.url) as inbox:
        assert inbox.admin.stats().outbox_sent == 0
    second = nursery.start("tests.sinks.program:relay", tmp_path, **words)
    wait_until(lambda: shop.inbox.admin.stats().outbox_sent == 3)
    second.stop()
    arrived = [name for name, _, _ in outlet.received()]
    assert list(dict.fromkeys(arrived)) == ids
    assert Counter(arrived) <= Counter({ids[0]: 2, ids[1]: 1, ids[2]: 1})


@pytest.mark.needs("proxy")
def test_while_the_broker_is_away_messages_wait_in_order(shop: Shop, outlet: Outlet) -> None:
    shop.inbox.add_sink("default", outlet.url(proxied=True), retry=LATER)
    ids = send(shop, "a1", "a2", "a3", key="a")
    outlet.broker.proxy.cut()
    shop.drain()
    assert outgoing(shop) == {"a1": "retrying", "a2": "waiting", "a3": "waiting"}
    assert "did not confirm" in shop.error(number_of(shop, "a1"))
    outlet.broker.proxy.heal()
    shop.finish()
    assert [name for name, _, _ in outlet.received()] == ids


@pytest.mark.needs("proxy")
def test_a_connection_lost_between_publication_and_confirmation(shop: Shop, outlet: Outlet) -> None:
    """Nobody can know whether it arrived: it is published again, under the same id, and before its successors."""
    shop.inbox.add_sink("default", outlet.url(proxied=True), retry=LATER)
    send(shop, "first")
    shop.drain()  # connected
    ids = send(shop, "a1", "a2", key="a")
    outlet.broker.proxy.drop_reply_after(ids[0].encode())
    shop.drain()
    assert outlet.broker.proxy.hits == 1
    if not outlet.repeats:
        assert {name: outgoing(shop)[name] for name in ("a1", "a2")} == {"a1": "retrying", "a2": "waiting"}
    shop.finish()
    arrived = [name for name, _, _ in outlet.received() if name in ids]
    assert (arrived if outlet.repeats else list(dict.fromkeys(arrived))) == ids  # where the broker knows it, no copy


@pytest.mark.needs("refusal")
def test_what_can_never_be_published_is_dead_with_the_reason(shop: Shop, outlet: Outlet) -> None:
    """And blocks nobody else (HZ-81)."""
    shop.inbox.add_sink("default", outlet.url())
    shop.inbox.add_sink("nowhere", outlet.nowhere())
    send(shop, "lost", to="nowhere")
    (arrived,) = send(shop, "b")
    shop.drain()
    assert outgoing(shop) == {"lost": "dead", "b": "done"}
    assert "then redrive" in shop.error(number_of(shop, "lost"))
    assert [name for name, _, _ in outlet.received()] == [arrived]


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
        "pigeon://:canary@localhost",
    ],
)
def test_a_wrong_address_says_what_is_right(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"should be like|no sink for") as caught:
        open_sink(url)
    assert "canary" not in str(caught.value)
