"""What a handler takes beside its message: known from its signature, refused in a sentence where it cannot be given."""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Optional, Protocol

import aiosqlite  # noqa: TC002 - looked up at run time
import psycopg  # noqa: TC002 - as above
import pytest

from onceward import ConfigurationError, Inbox, Message
from onceward.domain.parameters import CONNECTION, HandlerTransaction, Providers
from onceward.registry import Handler

if TYPE_CHECKING:
    from decimal import Decimal as Unseen


class Executes(Protocol):
    """Whatever runs statements."""

    def execute(self, sql: str) -> Any: ...


class Ledger:
    """What a program of its own wants its handlers to have."""

    def __init__(self, tx: Any) -> None:
        self.tx, self.entries = tx, list[str]()


class SpecialLedger(Ledger):
    """A kind of it."""


class Ledgers:
    """Makes ledgers; they write when they are left."""

    def __init__(self) -> None:
        self.life: list[str] = []

    def check(self, where: str, wanted: Any, *, is_async: bool) -> None:
        """Every kind of handler, but no special ones."""
        if wanted is SpecialLedger:
            raise ConfigurationError(f"{where}: no special ledgers for {'async ' if is_async else ''}handlers")

    @contextmanager
    def _open(self, transaction: HandlerTransaction) -> Iterator[Ledger]:
        self.life.append(f"opened for {','.join(message.id for message in transaction.messages)}")
        ledger = Ledger(transaction.tx)
        try:
            yield ledger
            if "refused" in ledger.entries:
                raise ValueError("refused")
            self.life.append(f"wrote {','.join(ledger.entries)}")
        finally:
            self.life.append("closed")

    def opened(self, transaction: HandlerTransaction) -> AbstractContextManager[Any]:
        """A ledger."""
        return self._open(transaction)

    def async_opened(self, transaction: HandlerTransaction) -> AbstractAsyncContextManager[Any]:
        """The same, awaited."""

        @asynccontextmanager
        async def opened() -> Any:
            with self._open(transaction) as ledger:
                yield ledger

        return opened()

    def cause(self, error: BaseException) -> BaseException:
        """It wraps nothing."""
        return error


def alone(message: Message) -> None: ...
def bare(message, tx): ...  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
def anything(message: Message, tx: Any) -> None: ...
def an_object(message: Message, tx: object) -> None: ...
def spread(*arguments: Any) -> None: ...
def by_default(message: Message, tx: Any = None) -> None: ...
def by_protocol(message: Message, tx: Executes) -> None: ...
def driver(message: Message, tx: sqlite3.Connection) -> None: ...
def quoted(message: Message, tx: "sqlite3.Connection") -> None: ...  # noqa: UP037 - that is the case
def either(message: Message, tx: sqlite3.Connection | psycopg.Connection[Any]) -> None: ...
def annotated(message: Message, tx: Annotated[sqlite3.Connection, "mine"]) -> None: ...
def optional(message: Message, tx: Optional[sqlite3.Connection]) -> None: ...  # noqa: UP045 - that is the case
async def awaited(message: Message, tx: aiosqlite.Connection) -> None: ...


class Called:
    """An object."""

    def __call__(self, message: Message, tx: sqlite3.Connection) -> None: ...

    def method(self, message: Message, tx: sqlite3.Connection) -> None:
        """One of its methods."""


SQLITE = ("sqlite3.Connection", "aiosqlite.core.Connection")
USUAL = [bare, anything, an_object, spread, by_default, by_protocol, driver, quoted, either, annotated, optional]
USUAL += [Called(), Called().method, functools.partial(driver), print, functools.wraps(driver)(lambda *_: None)]


def parameter(function: Any, *, is_async: bool = False, store: tuple[str, str] = SQLITE) -> Any:
    return Providers(connections=store).parameter_of("@inbox.on('t')", function, is_async=is_async)


def test_the_driver_s_connection_is_the_usual_case() -> None:
    assert [one for one in USUAL if parameter(one) is not CONNECTION] == []
    assert parameter(awaited, is_async=True) is CONNECTION


def test_a_handler_may_take_the_message_alone() -> None:
    assert not parameter(alone).passes


def three(message: Message, tx: Any, more: Any) -> None: ...
def named(message: Message, *, tx: Any) -> None: ...
def none() -> None: ...
def another(message: Message, tx: psycopg.Connection[Any]) -> None: ...
def unknown(message: Message, tx: dict[str, Any]) -> None: ...
def unseen(message: Message, tx: Unseen) -> None: ...
def mixed(message: Message, tx: aiosqlite.Connection) -> None: ...
async def unmixed(message: Message, tx: sqlite3.Connection) -> None: ...


REFUSED: dict[Callable[..., Any], str] = {
    three: "@inbox.on('t'): more has no type; parameters beyond message and tx are filled by their types",
    named: "@inbox.on('t'): tx has no type; parameters beyond message and tx",
    none: "@inbox.on('t'): none has no parameters; a handler is def f(message, tx) or async def",
    another: "@inbox.on('t'): tx: psycopg.Connection is nothing that this inbox can give to its def handlers. Annotate "
    "it as sqlite3.Connection, as SQLAlchemy's Session or Connection, or not at all",
    unknown: "tx: builtins.dict is nothing that this inbox can give to its def handlers",
    unseen: "what tx: Unseen is cannot be seen at run time. Import 'Unseen' at the top of the module, not under",
    mixed: "tx: aiosqlite.core.Connection is nothing that this inbox can give to its def handlers",
    unmixed: "nothing that this inbox can give to its async def handlers. Annotate it as aiosqlite.core.Connection, as "
    "SQLAlchemy's AsyncSession or AsyncConnection",
}


def test_what_cannot_be_given_is_refused_in_a_sentence() -> None:
    for function, sentence in REFUSED.items():
        with pytest.raises(ConfigurationError) as caught:
            parameter(function, is_async=function is unmixed)
        assert sentence in str(caught.value)
        assert "\n" not in str(caught.value)


def test_names_are_looked_up_where_the_handler_was_written() -> None:
    """Also where that is inside of a function, if the handler has them; they are never run."""
    module = sqlite3

    def closed(_message: Message, tx: module.Connection) -> None:
        assert isinstance(tx, module.Connection)

    def local(message: Message, tx: module.Connection) -> None: ...

    assert parameter(closed) is CONNECTION
    with pytest.raises(ConfigurationError, match=r"what tx: module\.Connection is cannot be seen at run time"):
        parameter(local)


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    with Inbox("sqlite://") as inbox:
        inbox.migrate()
        yield inbox


def deliver(inbox: Inbox, *ids: str) -> None:
    for one in ids:
        inbox.receive(source="s", id=one, type="t")
    inbox.drain()


def test_a_provider_makes_what_is_asked_for(inbox: Inbox) -> None:
    """It is opened with the transaction, written when the handler returns, and closed in any case."""
    ledgers = Ledgers()
    inbox.context.registry.providers.add(Ledger, ledgers)

    @inbox.on("t", batch=True)
    def record(messages: Sequence[Message], ledger: Ledger) -> None:
        ledger.tx.execute("SELECT 1")
        ledger.entries += [message.id for message in messages]

    deliver(inbox, "a", "b")
    assert ledgers.life == ["opened for a,b", "wrote a,b", "closed"]


def test_what_fails_at_the_end_is_the_handler_s_failure(inbox: Inbox) -> None:
    ledgers = Ledgers()
    inbox.context.registry.providers.add(Ledger, ledgers)

    @inbox.on("t", batch=False)
    def record(message: Message, ledger: Ledger) -> None:
        if message.id == "raises":
            raise KeyError("mine")
        ledger.entries.append("refused")

    deliver(inbox, "refused", "raises")
    assert ledgers.life == ["opened for refused", "closed", "opened for raises", "closed"]
    errors = sorted(detail.history[-1].error for seq in (1, 2) if (detail := inbox.admin.message(seq)))
    assert errors == ["KeyError: 'mine'", "ValueError: refused"]


async def test_async_handlers_have_providers_too(inbox: Inbox) -> None:
    ledgers = Ledgers()
    inbox.context.registry.providers.add(Ledger, ledgers)

    @inbox.on("t")
    async def record(message: Message, ledger: Ledger) -> None:
        ledger.entries.append(message.id)

    receipt = await inbox.aprocess(source="s", id="a", type="t")
    assert (receipt.outcome, ledgers.life) == ("done", ["opened for a", "wrote a", "closed"])
    await inbox.store.async_close()


def test_a_provider_refuses_at_the_door(inbox: Inbox) -> None:
    inbox.context.registry.providers.add(Ledger, Ledgers())

    def special(message: Message, ledger: SpecialLedger) -> None: ...

    with pytest.raises(ConfigurationError, match=r"@inbox.on\('t'\): no special ledgers for handlers"):
        inbox.on("t")(special)
    assert len(inbox.context.registry) == 0


def test_a_provider_may_be_around_every_call(inbox: Inbox) -> None:
    """As a framework's is, whose own names lead to the transaction while it runs."""
    around, ledgers = Ledgers(), Ledgers()
    providers = inbox.context.registry.providers
    providers.around = around
    providers.add(Ledger, ledgers)
    given: list[Any] = []
    inbox.on("t", consumer="alone")(lambda message: given.append(message.id))
    inbox.on("t", consumer="bare")(lambda _message, tx: given.append(type(tx).__name__))

    @inbox.on("t", consumer="ledger")
    def record(_message: Message, ledger: Ledger) -> None:
        given.append(type(ledger).__name__)

    deliver(inbox, "m")
    assert sorted(given) == ["HandlerConnection", "Ledger", "m"]
    assert around.life.count("closed") == 3
    assert ledgers.life == ["opened for m", "wrote ", "closed"]


def test_handlers_of_a_registry_alone_take_a_connection(inbox: Inbox) -> None:
    inbox.on("t")(alone)
    (registered,) = inbox.context.registry
    assert isinstance(registered, Handler)
    assert registered.parameter == parameter(alone)
