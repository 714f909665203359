"""Handlers with a Session or Connection: their effects are committed with their message, once, or not at all."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from onceward import ConfigurationError, Inbox, Message
from onceward.testing.process import in_real_process
from tests.integrations.shop import Kind, Order, OrmShop
from tests.leases import take_over_all
from tests.stores import with_mariadb

REFUSED = "the transaction belongs to onceward: returning commits, raising rolls back"
GONE_ON = "the handler went on as if nothing had happened"


def pay(message: Message, session: Session) -> None:
    """One update by the ORM, written by the flush at the end."""
    order = session.get(Order, 1)
    assert order is not None
    order.paid += 1
    if message.data == "fail":
        session.flush()
        raise ValueError("after the flush")


@with_mariadb
def test_each_message_takes_effect_once(orm_shop: OrmShop) -> None:
    """Copies, a group with failures in it, and inline: what counts is the number of messages that have not failed."""
    orm_shop.handle(pay)
    assert orm_shop.deliver("a", "a", "b", "c") == 3
    for number in range(30):
        orm_shop.inbox.receive(source="s", id=f"g{number}", type="t", data="fail" if number % 10 == 7 else None)
    assert orm_shop.inbox.drain() == 27
    assert orm_shop.process("inline").outcome == "done"
    assert orm_shop.process("inline").outcome == "duplicate"
    assert orm_shop.process("failing", data="fail").outcome == "retrying"
    assert orm_shop.paid() == 31
    assert "ValueError: after the flush" in orm_shop.error("g7")


def test_a_connection_is_the_same_transaction(orm_shop: OrmShop) -> None:
    def work(message: Message, connection: Connection) -> None:
        with connection.begin_nested():
            connection.execute(text("UPDATE orders SET paid = paid + 1 WHERE id = 1"))
        nested = connection.begin_nested()
        connection.execute(text("UPDATE orders SET paid = paid + 100"))
        nested.rollback()
        if message.id == "commits":
            connection.commit()
        if message.id == "rolls":
            connection.rollback()
        if message.id == "closes":
            connection.close()
        if message.id == "swallows":
            root = connection.get_transaction()
            assert root is not None
            root.rollback()

    orm_shop.handle_connection(work)
    assert orm_shop.deliver("fine", "commits", "rolls", "closes", "swallows", "fine too") == 2
    assert orm_shop.paid() == 2
    assert all(REFUSED in orm_shop.error(one) for one in ("commits", "rolls", "closes"))
    assert GONE_ON in orm_shop.error("swallows")


def swallowed(call: Callable[[], Any]) -> None:
    with suppress(Exception):
        call()


def flush_a_double(session: Session) -> None:
    session.add(Order(id=2))
    session.flush()


def root_of(session: Session) -> Any:
    transaction = session.get_transaction()
    assert transaction is not None
    return transaction


MISTAKES: dict[str, tuple[Callable[[Session], Any], str]] = {
    "commit": (lambda session: session.commit(), REFUSED),
    "rollback": (lambda session: session.rollback(), REFUSED),
    "close": (lambda session: session.close(), REFUSED),
    "reset": (lambda session: session.reset(), REFUSED),
    "invalidate": (lambda session: session.invalidate(), REFUSED),
    "with": (lambda session: session.__exit__(None, None, None), REFUSED),
    "driver": (lambda session: session.connection().connection.commit(), REFUSED),
    "sql": (lambda session: session.execute(text("COMMIT")), "the handler ran COMMIT"),
    "root commit": (lambda session: root_of(session).commit(), REFUSED),
    "double": (flush_a_double, "IntegrityError"),
    "swallowed double": (lambda session: swallowed(lambda: flush_a_double(session)), GONE_ON),
    "swallowed rollback": (lambda session: swallowed(session.rollback), GONE_ON),
    "root rollback": (lambda session: root_of(session).rollback(), GONE_ON),
    "another connection": (lambda session: session.get_bind().engine.connect(), "no connection but the handler's"),
}


@with_mariadb
def test_no_mistake_commits_what_was_flushed(orm_shop: OrmShop) -> None:
    """Nor does it harm the messages that share the transaction."""

    def behave(message: Message, session: Session) -> None:
        order = session.get(Order, 1)
        assert order is not None
        order.paid += 1
        session.flush()
        if message.id in MISTAKES:
            MISTAKES[message.id][0](session)

    orm_shop.handle(behave)
    assert orm_shop.deliver("before", *MISTAKES, "after") == 2
    assert orm_shop.orders() == {1: 2, 2: 0}
    errors = {name: orm_shop.error(name) for name in MISTAKES}
    assert {name: error for name, error in errors.items() if MISTAKES[name][1] not in error} == {}


def test_a_row_that_was_so_already_is_found(mariadb_url: str, kind: Kind) -> None:
    """MySQL counts what has changed; SQLAlchemy takes a row that has not for one that is gone."""
    with OrmShop(mariadb_url, kind) as shop:

        def behave(_: Message, session: Session) -> None:
            order = session.get(Order, 1)
            assert order is not None
            session.execute(text("UPDATE orders SET paid = 7 WHERE id = 1"))
            order.paid = 7
            session.flush()

        shop.handle(behave)
        assert shop.deliver("a") == 1
        assert shop.paid() == 7


def test_a_swallowed_commit_changes_nothing(orm_shop: OrmShop) -> None:
    """As with tx: what was refused did not happen, and the handler may go on."""

    def behave(message: Message, session: Session) -> None:
        pay(message, session)
        swallowed(session.commit)
        if message.data == "fail later":
            raise ValueError("later")

    orm_shop.handle(behave)
    assert orm_shop.deliver("works") == 1
    assert orm_shop.deliver("fails", data="fail later") == 0
    assert orm_shop.paid() == 1


@with_mariadb
def test_savepoints_nest_and_open_ones_are_kept(orm_shop: OrmShop) -> None:
    def behave(_: Message, session: Session) -> None:
        with session.begin_nested():
            session.execute(text("UPDATE orders SET paid = paid + 1 WHERE id = 1"))
            with pytest.raises(IntegrityError), session.begin_nested():
                flush_a_double(session)
        undone = session.begin_nested()
        session.execute(text("UPDATE orders SET paid = paid + 100"))
        undone.rollback()
        session.begin_nested()
        pay(_, session)

    orm_shop.handle(behave)
    assert orm_shop.deliver("a", "b") == 2
    assert orm_shop.orders() == {1: 4, 2: 0}


@with_mariadb
def test_a_dry_run_shows_what_the_session_does(orm_shop: OrmShop) -> None:
    orm_shop.handle(pay)
    seq = orm_shop.inbox.receive(source="s", id="a", type="t").seq
    report = orm_shop.inbox.admin.dry_run(seq)
    assert report.ended == "returned", report.error
    assert [change.table for change in report.changes] == ["orders"]
    assert any("UPDATE orders" in statement.sql for statement in report.statements)
    assert orm_shop.paid() == 0
    assert orm_shop.inbox.drain() == 1
    assert orm_shop.paid() == 1


@with_mariadb
def test_sending_and_calls_after_the_commit_go_along(orm_shop: OrmShop) -> None:
    made: list[str] = []

    def behave(message: Message, session: Session) -> Any:
        pay(message, session)
        message.send("shipped", {"order": 1})
        message.after_commit(lambda: made.append(f"{message.id} {orm_shop.paid()}"))
        orm_shop.inbox.receive(source="s", id=f"of {message.id}", type="other", tx=session)
        return {"paid": True}

    if orm_shop.kind == "async":  # there the Session's own call is awaited, outside of run_sync

        @orm_shop.inbox.on("t")
        async def handler(message: Message, session: AsyncSession) -> Any:
            order = await session.get(Order, 1)
            assert order is not None
            order.paid += 1
            message.after_commit(lambda: made.append(f"{message.id} {orm_shop.paid()}"))
            await orm_shop.inbox.areceive(source="s", id=f"of {message.id}", type="other", tx=session)
            return {"paid": True}

    else:
        orm_shop.handle(behave)
    receipt = orm_shop.process("a")
    assert (receipt.outcome, receipt.result) == ("done", {"paid": True})
    assert made == ["a 1"]
    assert orm_shop.detail("of a").status == "unhandled"


def test_a_timeout_leaves_nothing(store_url: str, kind: Kind) -> None:
    """The handler is interrupted in a statement of its Session."""
    slow = "SELECT pg_sleep(60)" if store_url.startswith("postgres") else _COUNTING
    with OrmShop(store_url, kind) as shop:

        def behave(_: Message, session: Session) -> None:
            session.execute(text("UPDATE orders SET paid = 5"))
            session.execute(text(slow))

        shop.handle(behave, timeout=0.5)
        assert shop.deliver("a") == 0
        assert "HandlerTimeout" in shop.error("a")
        assert shop.paid() == 0


_COUNTING = (
    "WITH RECURSIVE counted (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted WHERE n < 3000000000) "
    "SELECT max(n) FROM counted"
)


@with_mariadb
def test_killed_between_flush_and_commit(store_url: str, kind: Kind) -> None:
    """A real process: what it had flushed is gone, and another one handles the message once."""
    with OrmShop(store_url, kind) as shop:
        killing = os.getpid()

        def behave(message: Message, session: Session) -> None:
            pay(message, session)
            session.flush()
            if os.getpid() != killing:
                os.kill(os.getpid(), signal.SIGKILL)

        shop.inbox.receive(source="s", id="a", type="t")
        shop.inbox.close()
        shop.engine.dispose()

        def life() -> None:
            with Inbox(store_url) as inbox:
                of_child = OrmShop.__new__(OrmShop)
                of_child.inbox, of_child.kind = inbox, kind
                of_child.handle(behave)
                inbox.drain()

        assert in_real_process(life)
        assert shop.paid() == 0
        shop.handle(behave)
        take_over_all(shop.inbox)
        assert shop.inbox.drain() == 1
        assert shop.paid() == 1


class OwnSession(Session):
    """A class of the program's own."""

    def double(self) -> None:
        """What it is for."""
        self.execute(text("UPDATE orders SET paid = paid * 2 + 2"))


class OwnAsyncSession(AsyncSession):
    """The same, awaited."""

    sync_session_class = OwnSession


def test_sessions_of_ones_own_class(store_url: str, kind: Kind) -> None:
    """By `sessions=`, with its options, or by the annotation alone; never with another engine than the handler's."""
    elsewhere = create_engine("sqlite://")
    makers: list[Any] = [None]
    if kind == "def":
        makers += [
            sessionmaker(elsewhere, class_=OwnSession, expire_on_commit=False, binds={Order: elsewhere}),
            OwnSession,
        ]
    else:
        makers += [async_sessionmaker(class_=OwnAsyncSession, expire_on_commit=False), OwnAsyncSession]
    with OrmShop(store_url, kind):
        for number, sessions in enumerate(makers):
            with Inbox(store_url, sessions=sessions, service=f"s{number}") as inbox:
                if kind == "def":

                    @inbox.on("own")
                    def handler(_: Message, session: OwnSession) -> None:
                        session.double()
                        assert session.scalars(select(Order.paid).where(Order.id == 1)).one() > 0

                else:

                    @inbox.on("own")
                    async def async_handler(_: Message, session: OwnAsyncSession) -> None:
                        await session.run_sync(lambda plain: plain.double())  # type: ignore[attr-defined]

                inbox.receive(source="s", id="own", type="own")
                assert inbox.drain() == 1
    elsewhere.dispose()


def test_what_cannot_be_made_is_refused_at_the_door(inbox: Inbox) -> None:
    def mixed(message: Message, session: AsyncSession) -> None: ...
    async def mixed_too(message: Message, session: Session) -> None: ...
    def own(message: Message, session: OwnSession) -> None: ...

    where = r"@inbox.on\('t'\): "
    with pytest.raises(
        ConfigurationError, match=where + "AsyncSession is not for def handlers; annotate it as Session"
    ):
        inbox.on("t")(mixed)
    with pytest.raises(ConfigurationError, match=where + "Session is not for async def handlers; annotate it as Async"):
        inbox.on("t")(mixed_too)
    with (
        Inbox("sqlite://", sessions=sessionmaker()) as plain,
        pytest.raises(
            ConfigurationError, match="sessions= of the inbox makes Session, and the handler wants OwnSession"
        ),
    ):
        plain.on("t")(own)
    with pytest.raises(ConfigurationError, match="Inbox: sessions=5 must be a sessionmaker, an async_sessionmaker or"):
        Inbox("sqlite://", sessions=5).on("t")(own)  # type: ignore[arg-type]


@pytest.fixture
def inbox() -> Any:
    with Inbox("sqlite://") as inbox:
        yield inbox


def test_a_session_is_over_when_its_handler_is(orm_shop: OrmShop) -> None:
    """Also for the next handler, which has the same connection."""
    kept: list[Session] = []
    said: list[str] = []

    def behave(message: Message, session: Session) -> None:
        pay(message, session)
        for old in kept:
            try:
                old.execute(text("UPDATE orders SET paid = 100"))
            except Exception as error:  # noqa: BLE001 - looked at below
                said.append(str(error))
        kept.append(session)

    orm_shop.handle(behave)
    assert orm_shop.deliver("a", "b") == 2
    assert orm_shop.paid() == 2
    assert len(said) == 1
    assert "was used outside of its handler" in said[0]


def test_the_programs_own_listeners_meet_no_handler(orm_shop: OrmShop) -> None:
    """One for every engine, as is usual for SQLite's pragmas, would write into the transactions of handlers."""
    met: list[str] = []

    def connected(connection: Any, _record: Any) -> None:
        met.append(type(connection).__name__)

    event.listen(Engine, "connect", connected)
    try:
        orm_shop.handle(pay)
        orm_shop.process("a")
    finally:
        event.remove(Engine, "connect", connected)
    assert met == []
    assert orm_shop.paid() == 1
