"""Outgoing messages: sent with the effects, published in order per key, under one id however often it takes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from onceward.domain import payload
from onceward.message import Message
from onceward.retry import Reject, RetryPolicy
from onceward.testing.store_suite.behaviour import Behaviour, Steps, raising, wrote
from onceward.testing.store_suite.shop import Shop

LATER = RetryPolicy(attempts=3, first=timedelta(hours=1), jitter=0)


class Post:
    """A sink that remembers; what is named in `trouble` raises that instead."""

    def __init__(self) -> None:
        self.delivered: list[Message] = []
        self.trouble: dict[str, BaseException] = {}

    def take(self, message: Message) -> None:
        """Deliver, or raise."""
        name = name_of(message)
        if name in self.trouble:
            raise self.trouble[name]
        self.delivered.append(message)

    @property
    def names(self) -> list[str]:
        """What was delivered, in order."""
        return [name_of(message) for message in self.delivered]


def name_of(message: Message) -> str:
    """What a test calls an outgoing message; a sink gets it as bytes."""
    return str(payload.decode(message.body)["name"])


class _Sink:
    def __init__(self, post: Post) -> None:
        self._post = post

    def publish(self, message: Message) -> None:
        """Deliver."""
        self._post.take(message)


class _AsyncSink(_Sink):
    async def publish(self, message: Message) -> None:  # type: ignore[override] # a sink may be either
        """Deliver."""
        self._post.take(message)


def opened(shop: Shop, name: str = "default") -> Post:
    """A sink of the shop's kind under a name."""
    post = Post()
    shop.inbox.add_sink(name, _Sink(post) if shop.kind == "def" else _AsyncSink(post), retry=LATER)
    return post


def sending(*names: str, then: BaseException | None = None, **options: Any) -> Behaviour:
    """One effect, and these messages sent."""

    def behaviour(message: Message) -> Steps:
        yield wrote(message)
        for name in names:
            message.send("shipped", {"name": name}, **options)
        if then is not None:
            raise then

    return behaviour


def send(shop: Shop, *names: str, **options: Any) -> None:
    """Send messages that no incoming one caused."""
    for name in names:
        shop._call("send", "shipped", {"name": name}, **options)


class Outbox:
    """Outgoing messages: sent with the effects, published in order per key, under one id however often it takes."""

    @pytest.mark.parametrize("how", ["receive", "process"])
    def test_what_a_handler_sends_is_published_once(self, shop: Shop, how: str) -> None:
        post = opened(shop)
        shop.handle(behaviour=sending("one", "two"))
        for _ in range(2):
            getattr(shop, how)("m1")
            shop.drain()
        assert (post.names, shop.effects()) == (["one", "two"], ["m1"])
        assert [sent.type for sent in shop.detail("m1").sent] == ["shipped", "shipped"]

    @pytest.mark.parametrize("how", ["receive", "process"])
    def test_what_a_handler_sends_before_it_fails_is_not_sent(self, shop: Shop, how: str) -> None:
        post = opened(shop)
        shop.handle(behaviour=sending("one", then=Reject("no")))
        getattr(shop, how)("m1")
        shop.drain()
        assert (post.names, shop.effects(), shop.status("m1")) == ([], [], "dead")

    def test_what_is_sent_without_a_message_is_published(self, shop: Shop) -> None:
        post = opened(shop)
        send(shop, "one", id="my-id")
        send(shop, "one", id="my-id")
        shop.drain()
        assert [(message.id, message.body) for message in post.delivered] == [("my-id", b'{"name":"one"}')]
        assert shop.inbox.admin.stats().outbox_sent == 1

    def test_a_failed_publication_is_repeated_under_its_id_and_holds_its_key(self, shop: Shop) -> None:
        post = opened(shop)
        post.trouble["a1"] = ConnectionError("away")
        send(shop, "a1", "a2", key="a")
        send(shop, "b1", key="b")
        shop.drain()
        assert post.names == ["b1"]
        post.trouble.clear()
        shop.finish()
        assert post.names == ["b1", "a1", "a2"]

    def test_destinations_are_published_to_by_themselves(self, shop: Shop) -> None:
        near, far = opened(shop), opened(shop, "far")
        far.trouble["two"] = ConnectionError("away")
        send(shop, "one")
        send(shop, "two", to="far")
        shop.drain()
        assert (near.names, far.names) == (["one"], [])
        far.trouble.clear()
        shop.finish()
        assert far.names == ["two"]

    def test_what_can_never_be_published_is_dead_and_can_be_redriven(self, shop: Shop) -> None:
        post = opened(shop)
        post.trouble["one"] = Reject("never")
        send(shop, "one", "two")
        shop.drain()
        (dead,) = shop.inbox.admin.messages(status="dead", outgoing=True)
        assert (post.names, shop.inbox.admin.stats().outbox_dead) == (["two"], 1)
        post.trouble.clear()
        shop.inbox.admin.redrive(dead.seq, reason="mended")
        shop.drain()
        assert post.names == ["two", "one"]

    def test_nothing_is_lost_while_no_process_has_the_sink(self, shop: Shop) -> None:
        shop.handle(behaviour=sending("one", to="far"))
        other = shop.another()
        far = opened(other, "far")
        other.drain()
        shop.receive("m1")
        if not far.names:
            opened(shop, "far")
        shop.drain()
        other.drain()
        assert shop.inbox.admin.stats().outbox_unsent == 0

    def test_a_failure_that_is_retried_sends_once(self, shop: Shop) -> None:
        post = opened(shop)
        failed = raising(lambda: RuntimeError("not yet"), attempts=1)

        def behaviour(message: Message) -> Steps:
            message.send("shipped", {"name": "one"})
            yield from failed(message)

        shop.handle(behaviour=behaviour)
        shop.receive("m1")
        shop.finish()
        assert (post.names, shop.effects()) == (["one"], ["m1"])
