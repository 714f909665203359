"""Correlation, causation and W3C trace context flow from message to message (R28)."""

from __future__ import annotations

from typing import Any

import pytest

from onceward.testing.broker_suite.sinks import send
from tests.contract.behaviour import effect
from tests.contract.harness import Shop
from tests.order.conftest import everywhere
from tests.outbox.post import Post, into, sending

TRACE = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "vendor=value"}


@everywhere
@pytest.mark.parametrize(
    ("headers", "correlation"),
    [({}, "m1"), ({"correlation-id": "order 7"}, "order 7"), ({"Correlation-ID": "order 7"}, "order 7")],
    ids=["none", "given", "in capitals"],
)
def test_they_flow_through_two_hops(shop: Shop, post: Post, headers: dict[str, str], correlation: str) -> None:
    """Inbox, outbox, inbox, outbox: who started it stays, what caused each changes, the trace goes on as it came."""
    second = shop.another(prefix="second_")
    second.inbox.migrate()
    shop.inbox.add_sink("second", into(second.inbox, source="first"))
    shop.handle(behaviour=sending("hop 1", to="second"))
    second.handle("shipped", sending("hop 2"))
    second.inbox.add_sink("default", post.sink(second.kind))
    shop.receive("m1", headers={**headers, **TRACE, "x-private": "stays"})
    shop.drain()
    second.drain()
    (message,) = post.delivered
    (sent,) = shop.detail("m1").sent
    assert dict(message.headers) == {"correlation-id": correlation, "causation-id": sent.id, **TRACE}


@everywhere
def test_the_first_hop_names_the_incoming_message(shop: Shop, post: Post) -> None:
    """Without a trace none is invented; inline it is the same."""
    shop.handle(behaviour=sending())
    shop.receive("m1")
    shop.drain()
    shop.process("m2")
    shop.drain()
    assert [dict(message.headers) for message in post.delivered] == [
        {"correlation-id": name, "causation-id": name} for name in ("m1", "m2")
    ]


def test_a_handler_s_own_headers_win(shop: Shop, post: Post) -> None:
    """It may start another conversation."""
    shop.handle(behaviour=sending("a", headers={"correlation-id": "mine", "traceparent": "other", "x": "y"}))
    shop.receive("m1", headers={"correlation-id": "theirs", **TRACE})
    shop.drain()
    assert dict(post.delivered[0].headers) == {
        "correlation-id": "mine",
        "causation-id": "m1",
        "traceparent": "other",
        "tracestate": "vendor=value",
        "x": "y",
    }


def test_a_message_without_a_cause_has_what_its_sender_gave_it(shop: Shop, post: Post) -> None:
    """`inbox.send`: nothing is invented."""
    send(shop, "a")
    send(shop, "b", headers=TRACE)
    shop.drain()
    assert [dict(message.headers) for message in post.delivered] == [{}, TRACE]


def test_an_incoming_message_keeps_its_headers(shop: Shop) -> None:
    """R09: the handler sees them as they came."""
    seen: list[Any] = []

    def behaviour(message: Any) -> Any:
        seen.append(dict(message.headers))
        yield from effect(message)

    shop.handle(behaviour=behaviour)
    shop.receive("m1", headers={"Correlation-ID": "Order 7", **TRACE})
    shop.drain()
    assert seen == [{"Correlation-ID": "Order 7", **TRACE}]
