"""Middleware (R59): around every attempt, outside and inside of its transaction, in order; it saves no message."""

from __future__ import annotations

import contextvars
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import suppress
from typing import Any

import pytest

from onceward import ConfigurationError, Inbox, Message, Reject, Router
from tests.contract.behaviour import Steps, raising, wrote
from tests.contract.harness import Shop

tenant = contextvars.ContextVar("tenant", default="nobody's")


class Told:
    """What happened around the attempts, in order."""

    def __init__(self, shop: Shop) -> None:
        self.events: list[str] = []
        self._shop = shop

    def say(self, what: str, given: Any) -> None:
        """An event, with the effects that are committed by then."""
        ids = [message.id for message in given] if isinstance(given, list) else [given.id]
        self.events.append(f"{what} {','.join(ids)} {len(self._shop.effects())}")

    def add(self, name: str, to: Inbox | Router | None = None, *, inside: bool = False, awaited: bool = False) -> None:
        """Middleware that tells of its beginning and end."""

        def around(message: Message) -> Generator[None, None, None]:
            self.say(f"{name} begins", message)
            try:
                yield
            except GeneratorExit:
                self.say(f"{name} is left", message)
                raise
            except BaseException as error:
                self.say(f"{name} sees {type(error).__name__}", message)
                raise
            self.say(f"{name} ends", message)

        async def around_async(message: Message) -> AsyncIterator[None]:
            told = around(message)
            next(told)
            try:
                yield
            except BaseException as error:
                told.throw(error)
                raise
            next(told, None)

        (to or self._shop.inbox).middleware(inside=inside)(around_async if awaited else around)


def test_it_is_around_the_transaction_and_inside_around_the_call(shop: Shop) -> None:
    """In order of registration: the effect is committed between the inner ends and the outer ones."""
    told = Told(shop)
    told.add("first")
    told.add("inner", inside=True)
    told.add("second", awaited=shop.kind == "async")
    shop.handle()
    shop.receive("m")
    shop.drain()
    assert told.events == [
        "first begins m 0",
        "second begins m 0",
        "inner begins m 0",
        "inner ends m 0",
        "second ends m 1",
        "first ends m 1",
    ]


def test_it_sees_what_the_handler_raised(shop: Shop) -> None:
    """Each attempt anew, when it is settled."""
    told = Told(shop)
    told.add("outer")
    told.add("inner", inside=True)
    shop.handle(behaviour=raising(lambda: ValueError("no"), attempts=1))
    shop.receive("m")
    shop.finish()
    assert told.events == [
        "outer begins m 0",
        "inner begins m 0",
        "inner sees ValueError m 0",
        "outer sees ValueError m 0",
        "outer begins m 0",
        "inner begins m 0",
        "inner ends m 0",
        "outer ends m 1",
    ]


@pytest.mark.parametrize("inside", [False, True])
def test_an_error_that_it_swallows_counts_all_the_same(shop: Shop, inside: bool) -> None:  # noqa: FBT001 - a case
    """No message is finished that its handler has failed."""

    @shop.inbox.middleware(inside=inside)
    def careless(message: Message) -> Iterator[None]:
        del message
        with suppress(ValueError):
            yield

    shop.handle(behaviour=raising(lambda: ValueError("no")))
    shop.receive("m")
    shop.drain()
    assert (shop.status("m"), shop.effects(), shop.error("m")) == ("retrying", [], "ValueError: no")
    assert shop.process("n").outcome == "retrying"


def test_inside_it_may_say_what_the_error_means(shop: Shop) -> None:
    """What it raises in its place is the handler's error; also after a handler that returned."""

    @shop.inbox.middleware(inside=True)
    def strict(message: Message, tx: Any) -> Iterator[None]:
        assert tx is not None
        try:
            yield
        except KeyError as error:
            raise Reject("a field is missing") from error
        if message.id == "unwanted":
            raise Reject("not this one")

    shop.handle(behaviour=raising(lambda: KeyError("price")))
    shop.handle("good")
    shop.receive("m")
    shop.receive("unwanted", "good")
    shop.drain()
    assert [shop.error(one) for one in ("m", "unwanted")] == ["Reject: a field is missing", "Reject: not this one"]
    assert shop.effects() == []


@pytest.mark.parametrize("inside", [False, True])
def test_what_it_raises_before_fails_the_attempt(shop: Shop, inside: bool) -> None:  # noqa: FBT001 - a case
    """The handler does not run; those that were entered before are left with the error."""
    told = Told(shop)
    told.add("outer", inside=inside)

    @shop.inbox.middleware(inside=inside)
    def closed(message: Message) -> Iterator[None]:
        if message.attempt == 1:
            raise PermissionError("closed")
        yield

    shop.handle()
    shop.receive("m")
    shop.drain()
    assert (shop.runs["m"], shop.error("m")) == (0, "PermissionError: closed")
    assert told.events == ["outer begins m 0", "outer sees PermissionError m 0"]
    shop.finish()
    assert shop.effects() == ["m"]
    assert shop.process("n").outcome == "retrying"


def test_outside_what_it_raises_afterwards_changes_nothing(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """The effect is committed; the log says what was raised."""

    @shop.inbox.middleware
    def late(message: Message) -> Iterator[None]:
        del message
        yield
        raise RuntimeError("too late")

    shop.handle()
    shop.receive("m")
    assert shop.drain() == 1
    assert (shop.status("m"), shop.effects()) == ("done", ["m"])
    assert "middleware raised after the attempt had ended" in caplog.text


def test_each_message_has_its_own_context(shop: Shop) -> None:
    """A handler with middleware outside of the transaction shares that with no other."""
    seen: dict[str, str] = {}

    @shop.inbox.middleware
    def of_tenant(message: Message) -> Iterator[None]:
        before = tenant.set(message.data["tenant"])
        yield
        tenant.reset(before)

    def behaviour(message: Message) -> Steps:
        seen[message.id] = tenant.get()
        yield wrote(message)

    shop.handle(behaviour=behaviour)
    for name in ("a", "b", "c"):
        shop.receive(name, data={"tenant": name})
    assert shop.drain() == 3
    assert seen == {"a": "a", "b": "b", "c": "c"}


def test_around_process(shop: Shop) -> None:
    """Before the message is stored, and after its commit; a copy has no attempt."""
    told = Told(shop)
    told.add("outer")
    shop.handle()
    assert shop.process("m").outcome == "done"
    assert told.events == ["outer begins m 0", "outer ends m 1"]
    assert shop.process("m").status == "duplicate"
    assert told.events[2:] == ["outer begins m 1", "outer is left m 1"]


def test_a_batch_has_one_around_it_all(shop: Shop) -> None:
    """With the list that its handler gets; where one of it fails, each is tried by itself inside of it."""
    told = Told(shop)
    told.add("outer")
    got: list[int] = []

    def batch(messages: list[Message], tx: Any) -> None:
        del tx
        got.append(len(messages))
        if any(message.id == "b" for message in messages):
            raise ValueError("b")

    async def async_batch(messages: list[Message], tx: Any) -> None:
        batch(messages, tx)

    shop.inbox.on("batch", batch=True)(batch if shop.kind == "def" else async_batch)
    for name in "abc":
        shop.receive(name, "batch")
    shop.drain()
    assert told.events == ["outer begins a,b,c 0", "outer sees ValueError a,b,c 0"]
    assert [shop.status(one) for one in "abc"] == ["done", "retrying", "done"]


def test_routers_have_their_own_inside_of_the_inbox_s(shop: Shop) -> None:
    """Whatever is registered first, and whatever is included when."""
    told, router, nested = Told(shop), Router(), Router()
    kind = shop.kind

    def handler(message: Message) -> None: ...
    async def async_handler(message: Message) -> None: ...

    nested.on("nested")(handler if kind == "def" else async_handler)
    told.add("nested", nested)
    router.include(nested)
    shop.inbox.include(router)
    told.add("router", router)
    told.add("inbox")
    shop.handle("plain")
    shop.receive("m", "nested")
    shop.receive("n", "plain")
    shop.drain()
    begun = [one.removesuffix(" 0").removesuffix(" 1") for one in told.events if "begins" in one]
    assert begun == ["inbox begins m", "router begins m", "nested begins m", "inbox begins n"]


def test_a_dry_run_is_inside_of_it_and_ends_nothing(shop: Shop) -> None:
    """It is left early: what comes after the attempt is not true."""
    told = Told(shop)
    told.add("outer")
    shop.handle()
    shop.receive("m")
    assert shop.inbox.admin.dry_run(shop.seqs["m"]).ended == "returned"
    assert told.events == ["outer begins m 0", "outer is left m 0"]


def test_what_cannot_be_middleware_is_refused() -> None:
    """In a sentence, where it is registered; nothing of it stays."""
    inbox = Inbox("sqlite://")

    def plain(message: Message) -> None: ...
    def nothing() -> Iterator[None]:
        yield

    def with_tx(_message: Message, _tx: Any) -> Iterator[None]:
        yield

    async def awaited(_message: Message) -> AsyncIterator[None]:
        yield

    for function, what in ((plain, "a generator function"), (nothing, "has the parameters"), (with_tx, "inside=True")):
        with pytest.raises(ConfigurationError, match=what):
            inbox.middleware(function)  # type: ignore[type-var] # that is it
    inbox.on("a")(lambda message: None)  # noqa: ARG005 - never runs
    with pytest.raises(ConfigurationError, match=r"is async, and .* is a def handler"):
        inbox.middleware(awaited)
    assert inbox.context.registry.middleware == []
    other = Inbox("sqlite://")
    other.middleware(awaited)
    with pytest.raises(ConfigurationError, match=r"is async, and .* is a def handler"):
        other.on("a")(lambda message: None)  # noqa: ARG005 - never runs
    assert len(other.context.registry) == 0
