"""`process(tx=...)` in a Session or Connection of the caller's: its message is done with that."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from onceward import Message
from onceward.errors import TransactionEnded
from tests.integrations.shop import Order, OrmShop, sync_url
from tests.integrations.test_orm_callers import message, on_engine

SYNC = ["psycopg", "psycopg2", "sqlite"]
ASYNC = ["psycopg_async", "asyncpg", "aiosqlite"]


@pytest.fixture
def shop(request: pytest.FixtureRequest) -> Any:
    """A shop on the store that the driver of the case is for."""
    driver: str = request.param
    url = request.getfixturevalue("sqlite_url" if "sqlite" in driver else "postgres_url")
    with OrmShop(url, "async" if driver in ASYNC else "def") as shop:
        shop.handle(paying)
        shop.handle_connection(paying_by_hand, "by hand")
        yield shop, driver


def paying(message: Message, session: Session) -> Any:
    """A Session's handler: an order, which may be the caller's new one."""
    order = session.get_one(Order, message.data["order"])
    order.paid += 1
    session.flush()
    if message.data.get("fails"):
        raise ValueError("no")
    return {"paid": order.paid}


def paying_by_hand(message: Message, connection: Any) -> Any:
    """A Connection's handler."""
    connection.execute(text("UPDATE orders SET paid = paid + 1 WHERE id = :id"), {"id": message.data["order"]})


@pytest.mark.parametrize("shop", SYNC, indirect=True)
def test_process_joins_the_transaction(shop: tuple[OrmShop, str]) -> None:
    inbox, engine = shop[0].inbox, create_engine(sync_url(shop[0].url, shop[1]))
    with Session(engine) as session, session.begin():
        session.add(Order(id=3))  # the handler sees what the Session still holds
        receipt = inbox.process(**message("in a session", data={"order": 3}), tx=session)
        assert (receipt.outcome, receipt.result, receipt.pending) == ("done", {"paid": 1}, True)
        failed = inbox.process(**message("fails", data={"order": 3, "fails": True}), tx=session)
        assert failed.outcome == "retrying"
        assert shop[0].orders() == {1: 0, 2: 0}
    assert shop[0].orders() == {1: 0, 2: 0, 3: 1}
    with engine.connect() as connection:
        assert inbox.process(**message("by hand", type="by hand", data={"order": 1}), tx=connection).outcome == "done"
        connection.commit()
    registry = scoped_session(sessionmaker(engine))
    assert inbox.process(**message("scoped", data={"order": 1}), tx=registry).outcome == "done"
    registry.commit()
    registry.remove()
    with Session(engine) as session:
        assert inbox.process(**message("undone", data={"order": 1}), tx=session).outcome == "done"
        session.rollback()
    with Session(engine) as session, session.begin():
        nested = session.begin_nested()
        assert inbox.process(**message("undone", data={"order": 1}), tx=session).outcome == "done"
        nested.rollback()
    assert shop[0].orders() == {1: 2, 2: 0, 3: 1}
    assert inbox.admin.find("s", "undone") == []
    assert shop[0].detail("fails").status == "retrying"
    engine.dispose()


@pytest.mark.parametrize("shop", ASYNC, indirect=True)
def test_aprocess_joins_the_transaction(shop: tuple[OrmShop, str]) -> None:
    inbox = shop[0].inbox

    async def process_them(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session, session.begin():
            session.add(Order(id=3))
            receipt = await inbox.aprocess(**message("in a session", data={"order": 3}), tx=session)
            assert (receipt.outcome, receipt.result, receipt.pending) == ("done", {"paid": 1}, True)
            failed = await inbox.aprocess(**message("fails", data={"order": 3, "fails": True}), tx=session)
            assert failed.outcome == "retrying"
        async with engine.connect() as connection:
            arguments = message("by hand", type="by hand", data={"order": 1})
            assert (await inbox.aprocess(**arguments, tx=connection)).outcome == "done"
            await connection.commit()
        registry = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
        assert (await inbox.aprocess(**message("scoped", data={"order": 1}), tx=registry)).outcome == "done"
        await registry.commit()
        await registry.remove()
        async with AsyncSession(engine) as session:
            assert (await inbox.aprocess(**message("undone", data={"order": 1}), tx=session)).outcome == "done"
            await session.rollback()

    on_engine(shop[0].url, shop[1], process_them)
    assert shop[0].orders() == {1: 2, 2: 0, 3: 1}
    assert inbox.admin.find("s", "undone") == []
    assert shop[0].detail("fails").status == "retrying"


@pytest.mark.parametrize("shop", SYNC, indirect=True)
def test_a_commit_of_the_callers_session_in_the_handler(shop: tuple[OrmShop, str]) -> None:
    """The usual mistake with a Session in a global: the call says so, and the message is not lost."""
    inbox, engine = shop[0].inbox, create_engine(sync_url(shop[0].url, shop[1]))
    with Session(engine) as session:

        @inbox.on("global")
        def handler(_: Message) -> None:
            session.add(Order(id=4))
            session.commit()

        with pytest.raises(TransactionEnded):
            inbox.process(**message("m1", type="global"), tx=session)
        session.rollback()
    assert shop[0].orders() == {1: 0, 2: 0, 4: 0}
    assert shop[0].detail("m1").status == "due"
    engine.dispose()


@pytest.mark.parametrize("shop", ["psycopg2", "asyncpg"], indirect=True)
def test_a_handler_of_the_drivers_connection_waits_for_a_worker(shop: tuple[OrmShop, str]) -> None:
    """Which has one: the caller's is of another driver."""
    inbox = shop[0].inbox
    if shop[1] == "psycopg2":

        @inbox.on("plain")
        def handler(_: Message, tx: Any) -> None:
            tx.execute("UPDATE orders SET paid = 7 WHERE id = 1")

        engine = create_engine(sync_url(shop[0].url, "psycopg2"))
        with Session(engine) as session, session.begin():
            assert inbox.process(**message("m1", type="plain"), tx=session).outcome == "queued"
        engine.dispose()
    else:

        @inbox.on("plain")
        async def async_handler(_: Message, tx: Any) -> None:
            await tx.execute("UPDATE orders SET paid = 7 WHERE id = 1")

        async def process_it(engine: AsyncEngine) -> None:
            async with AsyncSession(engine) as session, session.begin():
                assert (await inbox.aprocess(**message("m1", type="plain"), tx=session)).outcome == "queued"

        on_engine(shop[0].url, shop[1], process_it)
    assert inbox.drain() == 1
    assert shop[0].paid() == 7
