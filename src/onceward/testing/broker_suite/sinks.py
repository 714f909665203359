"""Sinks: what is confirmed has arrived, in order, under one id (R25, R38, R42; HZ-80 to HZ-84)."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from onceward.admin.messages import Row
from onceward.brokers.protocol import open_sink
from onceward.domain import payload
from onceward.testing.broker_suite.places import Outlet, SqlPlace
from onceward.testing.broker_suite.program import started
from onceward.testing.sink_contract import sink_contract
from onceward.testing.store_suite.outbox import LATER
from onceward.testing.store_suite.shop import QUICK, Shop
from onceward.testing.waiting import wait_until


def send(shop: Shop, *names: str, **options: Any) -> list[str]:
    """Send messages that no incoming one caused; their ids."""
    return [shop.call(shop.inbox, "send", "shipped", {"name": name}, **options) for name in names]


def outgoing(shop: Shop) -> dict[str, str]:
    """The status of each outgoing message, by its name, in the order of sending."""
    return {name: row.status for name, row in _sent(shop)}


def number_of(shop: Shop, name: str) -> int:
    """The sequence number of an outgoing message."""
    return dict(_sent(shop))[name].seq


def _sent(shop: Shop) -> Iterator[tuple[str, Row]]:
    for row in reversed(shop.inbox.admin.messages(outgoing=True)):
        yield payload.decode(shop.detail(row.seq).body or b"")["name"], row


class Sinks:
    """Sinks: what is confirmed has arrived, in order, under one id."""

    @pytest.mark.needs("proxy")
    def test_the_promises_of_a_sink(self, outlet: Outlet) -> None:
        """Confirmed means arrived; a copy has the same id; threads; what did not arrive raises."""

        @contextmanager
        def away() -> Iterator[None]:
            outlet.broker.proxy.cut()
            yield
            outlet.broker.proxy.heal()

        with closing(open_sink(outlet.url(proxied=True))) as sink:
            assert len(sink_contract(sink, received=outlet.received, away=away)) == 4

    def test_a_source_reads_what_was_sent(self, shop: Shop, outlet: Outlet, tmp_path: Path) -> None:
        """Id, type, very bytes and headers; twice sent is once received."""
        outlet.close()  # the source takes its place
        shop.inbox.add_sink("default", outlet.url())
        body = '{"name": "ä€😀"}'.encode()
        for _ in range(2):
            shop.inbox.send("order.paid", body=body, id="o-1", headers={"correlation-id": "c-1", "x-note": "100% ok"})
            shop.drain()
        with Shop(SqlPlace(f"sqlite:///{tmp_path / 'other.db'}"), "def", settings=QUICK) as other:
            other.handle()
            other.inbox.add_source(outlet.broker.url(), source="shop")
            with other.started():
                wait_until(lambda: other.effects() == ["o-1"])
                wait_until(lambda: outlet.broker.unsettled() == 0)
            detail = other.detail(other.inbox.admin.find("shop", "o-1")[0])
            assert (detail.type, detail.body) == ("order.paid", body)
            assert (detail.headers["correlation-id"], detail.headers["x-note"]) == ("c-1", "100% ok")
            assert detail.headers["content-type"] == "application/json"

    def test_killed_between_confirmation_and_mark(self, shop: Shop, outlet: Outlet) -> None:
        """It is published again, under the same id (HZ-80)."""
        ids = send(shop, "a", "b", "c", key="k")
        assert started("relay", store=shop.inbox.url, url=outlet.url()).wait(60) == -signal.SIGKILL
        first = [name for name, _, _ in outlet.received()]
        assert set(first) == {ids[0]}
        assert shop.inbox.admin.stats().outbox_sent == 0
        heir = shop.another(settings=QUICK)
        heir.inbox.add_sink("default", outlet.url())
        with heir.started():
            wait_until(lambda: shop.inbox.admin.stats().outbox_sent == 3)
        arrived = [name for name, _, _ in outlet.received()]
        assert list(dict.fromkeys(arrived)) == ids
        assert Counter(arrived) <= Counter({ids[0]: 2, ids[1]: 1, ids[2]: 1})

    @pytest.mark.needs("proxy")
    def test_while_the_broker_is_away_messages_wait_in_order(self, shop: Shop, outlet: Outlet) -> None:
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
    def test_a_connection_lost_between_publication_and_confirmation(self, shop: Shop, outlet: Outlet) -> None:
        """No one can know whether it arrived: it is published again, under the same id, and before its successors."""
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
        # Where the broker knows it, no copy.
        assert (arrived if outlet.repeats else list(dict.fromkeys(arrived))) == ids

    @pytest.mark.needs("refusal")
    def test_what_can_never_be_published_is_dead_with_the_reason(self, shop: Shop, outlet: Outlet) -> None:
        """And blocks no other (HZ-81)."""
        shop.inbox.add_sink("default", outlet.url())
        shop.inbox.add_sink("nowhere", outlet.nowhere())
        send(shop, "lost", to="nowhere")
        (arrived,) = send(shop, "b")
        shop.drain()
        assert outgoing(shop) == {"lost": "dead", "b": "done"}
        assert "then redrive" in shop.error(number_of(shop, "lost"))
        assert [name for name, _, _ in outlet.received()] == [arrived]
