"""A message goes out if, and only if, the transaction it was sent in commits; under one id (R25, R26; HZ-83, HZ-84)."""

from __future__ import annotations

from typing import Any

import pytest

from onceward import ContractViolation, Inbox, InvalidMessage, Message
from onceward.message import Delivery
from onceward.testing.broker_suite.sinks import number_of, outgoing, send
from tests.contract.behaviour import Do, Steps, wrote
from tests.contract.caller import own_transaction
from tests.contract.harness import TYPE, Shop
from tests.order.conftest import everywhere
from tests.outbox.post import Post, sending


@everywhere
def test_what_a_handler_sends_is_committed_with_its_effects(shop: Shop) -> None:
    """Written, not yet published; the incoming message knows what it sent, the outgoing one what caused it."""
    shop.handle(behaviour=sending("first", "second", to="warehouse", key=7))
    shop.receive("m1")
    shop.drain()
    assert shop.effects() == ["m1"]
    assert outgoing(shop) == {"first": "due", "second": "due"}
    detail = shop.detail("m1")
    assert [(one.type, one.to) for one in detail.sent] == [("shipped", "warehouse")] * 2
    for sent, name in zip(detail.sent, ("first", "second"), strict=True):
        assert sent.seq == number_of(shop, name)
        other = shop.detail(sent.seq)
        assert (other.cause, other.id, other.key, other.destination) == (detail.seq, sent.id, "7", "warehouse")
        assert other.source == shop.inbox.context.service


@everywhere
def test_what_a_failed_attempt_sent_never_goes_out(shop: Shop, post: Post) -> None:
    """I4: rolled back with everything else; the attempt that succeeds sends under the same ids."""
    ids: list[list[str]] = []

    def behaviour(message: Message) -> Steps:
        yield wrote(message)
        ids.append([message.send("shipped", {"name": name}) for name in ("a", "b")])
        if message.attempt < 3:
            raise RuntimeError("not yet")

    shop.handle(behaviour=behaviour)
    shop.receive("m1")
    shop.drain()
    assert outgoing(shop) == {}
    shop.hurry()
    shop.drain()
    assert (outgoing(shop), post.delivered) == ({}, [])
    shop.finish()
    assert post.names == ["a", "b"]
    assert ids == [post.ids] * 3


@everywhere
def test_a_result_that_cannot_be_stored_sends_nothing(shop: Shop, post: Post) -> None:
    """The attempt fails after the handler has returned: all of it is undone."""

    def behaviour(message: Message) -> Steps:
        yield from sending("a")(message)
        return object()

    shop.handle(behaviour=behaviour)
    shop.receive("m1")
    shop.drain()
    shop.process("m2")
    assert (shop.status("m1"), shop.status("m2")) == ("dead", "dead")
    assert (outgoing(shop), post.delivered) == ({}, [])


@everywhere
def test_inline_it_is_the_same(shop: Shop, post: Post) -> None:
    """R03: one commit for ledger, effects and what was sent; nothing when the handler raises."""

    def behaviour(message: Message) -> Steps:
        yield from sending(to=None)(message)
        if message.id == "bad" and message.attempt == 1:
            raise RuntimeError("not yet")

    shop.handle(behaviour=behaviour)
    assert shop.process("good").finished
    assert not shop.process("bad").finished
    assert outgoing(shop) == {"good": "due"}
    assert shop.process("good").status == "duplicate"
    shop.finish()
    assert post.names == ["good", "bad"]


def test_in_a_group_only_those_that_succeed_send(shop: Shop, post: Post) -> None:
    """HZ-51: the group ran more than once; what went out went out once."""

    def behaviour(message: Message) -> Steps:
        yield from sending()(message)
        if message.id == "m3":
            raise RuntimeError("never")

    shop.handle(behaviour=behaviour)
    for number in range(6):
        shop.receive(f"m{number}")
    shop.finish()
    assert sorted(post.names) == ["m0", "m1", "m2", "m4", "m5"]
    assert len(set(post.ids)) == 5


def test_a_batch_sends_for_each_of_its_messages(shop: Shop, post: Post) -> None:
    """R21: each outgoing message is caused by one incoming one, and has an id of its own."""

    def handler(messages: list[Message], tx: Any) -> None:  # noqa: ARG001 - what a handler takes
        for message in messages:
            message.send("shipped", {"name": message.id})

    async def async_handler(messages: list[Message], tx: Any) -> None:
        handler(messages, tx)

    shop.inbox.on(TYPE, batch=True)(handler if shop.kind == "def" else async_handler)
    for name in ("a", "b"):
        shop.receive(name)
    shop.drain()
    assert post.names == ["a", "b"]
    for name in ("a", "b"):
        assert [one.seq for one in shop.detail(name).sent] == [number_of(shop, name)]


def test_a_message_that_cannot_be_written_fails_where_it_is_sent(shop: Shop, post: Post) -> None:
    """The handler decides; what it had sent before is not lost."""
    problems: list[str] = []

    def behaviour(message: Message) -> Steps:
        message.send("shipped", {"name": "before"})
        for wrong in (
            {"data": object()},
            {"data": 1, "body": b"{}"},
            {"data": 1, "to": ""},
            {"data": 1, "version": -1},
        ):
            try:
                message.send("shipped", **wrong)
            except InvalidMessage as error:
                problems.append(str(error))
        message.send("shipped", {"name": "after"})
        yield wrote(message)

    shop.handle(behaviour=behaviour)
    shop.receive("m1")
    shop.drain()
    assert len(problems) == 4
    assert post.names == ["before", "after"]


def test_sending_after_the_handler_has_ended_is_refused(shop: Shop, post: Post) -> None:
    """HZ-84: its transaction is over, so the message could only be lost or sent without its cause."""
    kept: list[Message] = []

    def behaviour(message: Message) -> Steps:
        kept.append(message)
        yield wrote(message)

    shop.handle(behaviour=behaviour)
    shop.receive("m1")
    shop.drain()
    shop.process("m2")
    for message in kept:
        with pytest.raises(ContractViolation, match="outside of its handler"):
            message.send("shipped", {"name": "late"})
    shop.drain()
    assert post.delivered == []


def test_a_worker_that_lost_its_claim_sends_nothing(shop: Shop, post: Post) -> None:
    """R12, I4: taken over while it ran; what it sent is undone with its effects, and the next attempt sends it."""

    def behaviour(message: Message) -> Steps:
        message.send("shipped", {"name": "m1"})
        if not shop.detail("m1").history:
            for worker in shop.inbox.admin.workers():
                shop.declare_dead(worker.process)
        yield wrote(message)

    shop.handle(behaviour=behaviour)
    shop.receive("m1")
    shop.drain()
    shop.drain()
    assert shop.effects() == ["m1"]
    assert post.names == ["m1"]


def test_a_duplicate_does_not_send_again(shop: Shop, post: Post) -> None:
    """HZ-83: it comes while what the first one sent is still unpublished, and after."""
    shop.handle(behaviour=sending())
    shop.process("m1")
    shop.process("m1")
    assert outgoing(shop) == {"m1": "due"}
    shop.drain()
    shop.receive("m1")
    shop.drain()
    assert post.names == ["m1"]


@everywhere
def test_sending_without_an_incoming_message(shop: Shop, post: Post) -> None:
    """R25: committed when it returns, under an id that is not used twice."""
    ids = [*send(shop, "a"), *send(shop, "b")]
    assert len(set(ids)) == 2
    assert outgoing(shop) == {"a": "due", "b": "due"}
    assert shop.detail(number_of(shop, "a")).cause is None
    shop.drain()
    assert post.ids == ids


@everywhere
@pytest.mark.parametrize("commit", [True, False])
def test_sending_in_the_caller_s_transaction(shop: Shop, post: Post, *, commit: bool) -> None:
    """R25, R41: it goes out with the caller's own rows, or not at all."""
    with own_transaction(shop, commit=commit) as own:
        own.execute("INSERT INTO effects (message_id, note) VALUES ('own', '')")
        send(shop, "a", "b", tx=own.connection)
    shop.drain()
    assert shop.effects() == (["own"] if commit else [])
    assert post.names == (["a", "b"] if commit else [])


def test_a_program_without_handlers_may_send_first_in_a_transaction(store_url: str) -> None:
    """R25: nothing has introduced itself to this database before."""
    with Inbox(store_url) as inbox:
        inbox.migrate()
        with inbox.transaction() as tx:
            sent = inbox.send("a", tx=tx)
        assert [row.id for row in inbox.admin.messages(outgoing=True)] == [sent]


@everywhere
def test_sending_with_the_inbox_inside_a_handler(shop: Shop, post: Post) -> None:
    """R25: `inbox.send(tx=tx)` joins the handler's transaction."""

    def behaviour(message: Message) -> Steps:
        yield wrote(message)
        method = shop.inbox.send if shop.kind == "def" else shop.inbox.asend
        yield Do(lambda tx: method("shipped", {"name": message.id}, tx=tx))
        if message.id == "bad":
            raise RuntimeError("never")

    shop.handle(behaviour=behaviour, group=1)
    for message_id in ("good", "bad"):
        shop.receive(message_id)
    shop.finish()
    assert post.names == ["good"]


@everywhere
def test_one_id_is_one_message(shop: Shop, post: Post) -> None:
    """R25: an id of the caller's own, sent twice, also after it was published."""
    assert send(shop, "a", id="mine") == send(shop, "a", id="mine") == ["mine"]
    shop.drain()
    send(shop, "a", id="mine")
    with own_transaction(shop, commit=True) as own:
        send(shop, "a", id="mine", tx=own.connection)
    shop.drain()
    assert post.ids == ["mine"]
    assert shop.inbox.admin.stats().outbox_sent == 1


@everywhere
def test_one_id_goes_to_each_destination_and_never_with_other_content(shop: Shop, post: Post) -> None:
    """D03: the destination is part of the identity; other content under a known id is said, and sends nothing."""
    shop.inbox.add_sink("warehouse", post.sink(shop.kind))
    for destination in (None, "default", "warehouse", "warehouse"):
        assert send(shop, "a", id="mine", to=destination) == ["mine"]
    for kind, name, version in (("returned", "a", 1), ("shipped", "a", 2), ("shipped", "b", 1)):
        with pytest.raises(InvalidMessage, match=r"id='mine' was sent to 'warehouse' before .* nothing was sent"):
            shop._call("send", kind, {"name": name}, id="mine", to="warehouse", version=version)
    with own_transaction(shop, commit=True) as own:
        with pytest.raises(InvalidMessage, match="nothing was sent"):
            send(shop, "b", id="mine", tx=own.connection)
        send(shop, "c", id="other", tx=own.connection)
    shop.drain()
    assert sorted((message.to or "", message.id) for message in post.delivered) == [
        ("", "mine"),
        ("", "other"),
        ("warehouse", "mine"),
    ]
    assert len(shop.inbox.admin.find(shop.inbox.context.service, "mine")) == 2
    assert len(shop.inbox.admin.find_anywhere("mine")) == 2


def test_outgoing_and_incoming_do_not_mix(shop: Shop, post: Post) -> None:
    """An incoming message with the id, source and type of an outgoing one is another message."""
    service = shop.inbox.context.service
    shop.handle("shipped")
    send(shop, "a", id="same")
    assert shop.receive("same", "shipped", service, data={"name": "a"}).status == "accepted"
    assert [row.id for row in shop.inbox.admin.messages()] == ["same"]
    assert [row.id for row in shop.inbox.admin.messages(outgoing=True)] == ["same"]
    assert shop.inbox.admin.stats().due == 1
    assert shop.inbox.admin.stats().outbox_unsent == 1
    shop.drain()
    assert (post.names, shop.effects()) == (["a"], ["same"])


def test_a_key_for_external_calls_is_the_same_on_every_attempt(shop: Shop) -> None:
    """R26: over retries, in another process, inline or not."""
    keys: list[str] = []

    def behaviour(message: Message) -> Steps:
        keys.append(message.idempotency_key("charge"))
        yield wrote(message)
        if message.attempt == 1:
            raise RuntimeError("not yet")

    shop.handle(behaviour=behaviour)
    shop.process("m1")
    with shop.visitor() as other:
        other.handle(behaviour=behaviour)
        other.finish()
    assert len(keys) == 2
    assert len(set(keys)) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"name": "refund"},
        {"id": "m2"},
        {"source": "paypal"},
        {"consumer": "audit"},
        {"source": "stripem", "id": "1"},
        {"id": "m", "name": "1charge"},
        {"id": "m1\u00a06:charge", "name": ""},
    ],
    ids=str,
)
def test_a_key_belongs_to_one_step_of_one_message(other: dict[str, str]) -> None:
    """R26: also where the parts would read the same when put together."""

    def key(*, name: str = "charge", consumer: str = "shop", source: str = "stripe", id: str = "m1") -> str:  # noqa: A002
        delivery = Delivery.of(source=source, id=id, type=TYPE)
        message = Message(
            **{
                field: getattr(delivery, field)
                for field in ("id", "source", "type", "version", "body", "headers", "key")
            },
            data=None,
            seq=1,
            attempt=1,
            received_at=None,  # type: ignore[arg-type]
            consumer=consumer,
        )
        return message.idempotency_key(name)

    assert key() == key()
    assert key(**other) != key()
