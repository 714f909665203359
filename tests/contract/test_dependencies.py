"""Dependencies (R59): what the program provides comes by type, for each attempt, and is closed after it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any, Self

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session  # noqa: TC002 - read at run time

from onceward import ConfigurationError, Inbox, Message, Router
from onceward.domain.parameters import CONNECTION
from onceward.testing import prove_exactly_once
from tests.contract.harness import Shop
from tests.contract.test_timeouts import STATEMENTS


class Client:
    """What a program gives to its handlers."""

    def __init__(self, life: list[str], name: str = "client") -> None:
        self.life, self.name = life, name

    def __enter__(self) -> Self:
        self.life.append(f"{self.name} opened")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.life.append(f"{self.name} closed{' after ' + kind.__name__ if kind else ''}")


class AsyncClient:
    """One that is awaited."""

    def __init__(self, life: list[str]) -> None:
        self.life = life

    async def __aenter__(self) -> Self:
        self.life.append("async opened")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await asyncio.sleep(0)
        self.life.append(f"async closed{' after ' + kind.__name__ if kind else ''}")


class Clock:
    """Another one."""


def register(shop: Shop, function: Any, awaited: Any, kind: str = "a", **options: Any) -> None:
    """A handler of the shop's kind."""
    shop.inbox.on(kind, **options)(function if shop.kind == "def" else awaited)


def test_each_attempt_has_its_own_which_is_closed_after_it(shop: Shop) -> None:
    """Also after a failure; in the reverse order of its parameters."""
    life: list[str] = []
    made = iter(range(10))
    shop.inbox.provide(Client, lambda: Client(life, f"client{next(made)}"))
    shop.inbox.provide(Clock, Clock)

    def pay(message: Message, tx: Any, client: Client, *, clock: Clock) -> None:
        assert (tx is not None, type(clock)) == (True, Clock)
        life.append(f"{message.id} {message.attempt} with {client.name}")
        if message.attempt == 1:
            raise ValueError("no")

    async def apay(message: Message, tx: Any, client: Client, *, clock: Clock) -> None:
        pay(message, tx, client, clock=clock)

    register(shop, pay, apay)
    shop.receive("m", "a")
    shop.finish()
    assert life == [
        "client0 opened",
        "m 1 with client0",
        "client0 closed after ValueError",
        "client1 opened",
        "m 2 with client1",
        "client1 closed",
    ]


def test_factories_that_yield_close_what_they_have_made(shop: Shop) -> None:
    """With the message, where they take it; `async def` ones for `async def` handlers."""
    life: list[str] = []

    def make(message: Message) -> Iterator[Client]:
        yield Client(life, message.id)
        life.append("made is over")

    async def amake(message: Message) -> AsyncIterator[Client]:
        yield Client(life, message.id)
        life.append("made is over")

    shop.inbox.provide(Client, make if shop.kind == "def" else amake)

    def pay(message: Message, client: Client) -> str:
        return f"{message.id} {client.name}"

    async def apay(message: Message, client: Client) -> str:
        return pay(message, client)

    register(shop, pay, apay)
    assert shop.process("m", "a").result == "m m"
    assert life == ["made is over"]


def test_an_async_client_is_awaited(shop: Shop) -> None:
    """And refused to a handler that cannot await it."""
    life: list[str] = []
    shop.inbox.provide(AsyncClient, lambda: AsyncClient(life))

    def pay(message: Message, client: AsyncClient) -> None: ...
    async def apay(_message: Message, client: AsyncClient) -> None:
        assert client.life is life

    register(shop, pay, apay)
    shop.receive("m", "a")
    shop.drain()
    if shop.kind == "def":
        assert "only async def handlers" in shop.error("m")
    else:
        assert (shop.status("m"), life) == ("done", ["async opened", "async closed"])


def test_it_is_closed_after_a_timeout(shop: Shop) -> None:
    """However the handler was stopped."""
    life: list[str] = []
    shop.inbox.provide(Client, lambda: Client(life))
    over = timedelta(milliseconds=50)

    def pay(_message: Message, tx: Any, client: Client) -> None:  # noqa: ARG001 - it is there
        STATEMENTS[shop.dialect].take(tx, shop.place)  # until it is interrupted

    async def apay(_message: Message, client: Client) -> None:  # noqa: ARG001 - it is there
        await asyncio.Event().wait()  # as above

    register(shop, pay, apay, timeout=over)
    shop.receive("m", "a")
    shop.drain()
    assert "HandlerTimeout" in shop.error("m")
    assert len(life) == 2
    assert life[1].startswith("client closed")


def test_a_value_is_the_program_s_and_never_closed(shop: Shop) -> None:
    """All get the same one."""
    life: list[str] = []
    client = Client(life)
    shop.inbox.provide(Client, value=client)
    seen: list[Client] = []

    def pay(_message: Message, client: Client) -> None:
        seen.append(client)

    async def apay(_message: Message, client: Client) -> None:
        seen.append(client)

    register(shop, pay, apay)
    for name in "ab":
        shop.receive(name, "a")
    shop.drain()
    assert (seen, life) == ([client, client], [])


def test_what_fails_at_its_end_is_the_handler_s_failure(shop: Shop) -> None:
    """Nothing is committed then."""

    def make() -> Iterator[Client]:
        yield Client([])
        raise RuntimeError("cannot be closed")

    shop.inbox.provide(Client, make)

    def pay(message: Message, client: Client) -> None: ...
    async def apay(message: Message, client: Client) -> None: ...

    register(shop, pay, apay)
    assert shop.process("m", "a").outcome == "retrying"
    assert shop.error("m") == "RuntimeError: cannot be closed"


def test_batches_routers_and_dry_runs_have_them(shop: Shop) -> None:
    """As all handlers do."""
    life: list[str] = []
    shop.inbox.provide(Client, lambda given: Client(life, f"{len(given)} messages" if isinstance(given, list) else "1"))
    router = Router(prefix="shop.")

    def pay(messages: list[Message], _tx: Any, client: Client) -> list[str]:
        return [client.name for _ in messages]

    async def apay(messages: list[Message], tx: Any, client: Client) -> list[str]:
        return pay(messages, tx, client)

    router.on("paid", batch=True)(pay if shop.kind == "def" else apay)
    shop.inbox.include(router)
    for name in "ab":
        shop.receive(name, "shop.paid")
    report = shop.inbox.admin.dry_run(shop.seqs["a"])
    assert (report.ended, report.result) == ("returned", "1 messages")
    shop.drain()
    assert shop.detail("a").result == "2 messages"
    assert life == ["1 messages opened", "1 messages closed", "2 messages opened", "2 messages closed"]


def test_beside_a_session_and_with_a_proof(sqlite_url: str) -> None:
    """SQLAlchemy's Session is the transaction; the client comes beside it. The proof calls it in the same way."""
    life: list[str] = []
    with Inbox(sqlite_url) as inbox:
        inbox.migrate()
        inbox.provide(Client, lambda: Client(life))

        @inbox.on("a")
        def pay(_message: Message, session: Session, client: Client, times: int = 3) -> None:
            assert (session.connection() is not None, client.life is life, times) == (True, True, 3)

        assert inbox.process(source="s", id="1", type="a").outcome == "done"
        assert life == ["client opened", "client closed"]
        with inbox.transaction() as tx:
            tx.execute("CREATE TABLE paid (id text)")

        @inbox.on("b")
        def record(message: Message, session: Session, client: Client) -> None:
            client.life.append(message.id)
            session.execute(text("INSERT INTO paid VALUES (:id)"), {"id": message.id})

        delivery = {"source": "s", "id": "2", "type": "b"}
        report = prove_exactly_once(
            inbox, delivery, check=lambda tx: tx.execute("SELECT id FROM paid").fetchall(), modes=["store-first"]
        )
        assert "2" in life, "the proof has called it, with what it takes"
        opened, closed = (sum(one.startswith(f"client {what}") for one in life) for what in ("opened", "closed"))
        assert (opened, report.ok) == (closed, True), str(report)


def test_what_cannot_be_given_is_refused_at_registration() -> None:
    """In a sentence that says what is missing."""
    inbox = Inbox("sqlite://")

    def unknown(message: Message, tx: Any, client: Client) -> None: ...
    def untyped(message: Message, tx: Any, client) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001
    def pay(message: Message, tx: Any, client: Client) -> None: ...

    with pytest.raises(ConfigurationError, match=r"inbox\.provide\(Client, make_it\)"):
        inbox.on("a")(unknown)
    with pytest.raises(ConfigurationError, match="client has no type"):
        inbox.on("a")(untyped)
    for wrong, what in (
        (lambda: inbox.provide("Client", Client), "a class"),  # type: ignore[call-overload] # that is it
        (lambda: inbox.provide(Client), "needs a factory"),  # type: ignore[call-overload] # that is it
        (lambda: inbox.provide(Client, value=3), "must be a Client"),
        (lambda: inbox.provide(Client, 3), "a function"),  # type: ignore[call-overload] # that is it
        (lambda: inbox.provide(Client, lambda one, two: Client([])), "needs one, two"),  # type: ignore[arg-type] # noqa: ARG005
    ):
        with pytest.raises(ConfigurationError, match=what):
            wrong()

    async def amake() -> AsyncIterator[Client]:
        yield Client([])

    inbox.provide(Client, amake)
    with pytest.raises(ConfigurationError, match="is async, and this handler is def"):
        inbox.on("a")(pay)
    assert len(inbox.context.registry) == 0


def test_handlers_that_use_none_pay_nothing() -> None:
    """They are called as they are."""
    inbox = Inbox("sqlite://")
    inbox.provide(Client, lambda: Client([]))

    @inbox.on("a")
    def plain(message: Message, tx: Any, retries: int = 3) -> None: ...

    (handler,) = inbox.context.registry
    assert handler.parameter is CONNECTION
    assert (handler.inside, handler.outside) == ((), ())
