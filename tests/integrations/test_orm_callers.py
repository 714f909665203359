"""`tx=` a Session or Connection of the caller's own: stored when, and only when, that commits; on every driver."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from onceward import ConfigurationError, Inbox, InvalidMessage, StoreUnavailable
from tests.integrations.shop import Order, OrmShop, async_url, sync_url
from tests.servers import MariadbServer

SYNC = ["psycopg", "psycopg2", "sqlite", "pymysql"]
ASYNC = ["psycopg_async", "asyncpg", "aiosqlite", "asyncmy"]
STORES = {"sqlite": "sqlite", "aiosqlite": "sqlite", "pymysql": "mariadb", "asyncmy": "mariadb"}
"""Where the drivers lead that are not PostgreSQL's."""


def message(message_id: str, **more: Any) -> dict[str, Any]:
    return {"source": "s", "id": message_id, "type": "t", "data": {"id": message_id}, **more}


@pytest.fixture
def shop(request: pytest.FixtureRequest) -> Any:
    """A shop on the store that the driver of the case is for."""
    driver: str = request.param
    url = request.getfixturevalue(f"{STORES.get(driver, 'postgres')}_url")
    with OrmShop(url, "def") as shop:
        shop.handle(lambda _, session: session.execute(text("SELECT 1")) and None)
        yield shop, driver


def stored(shop: OrmShop) -> set[str]:
    """The ids that are in the ledger, and whole: each can be run."""
    with shop.inbox.transaction() as tx:
        found = {row[0] for row in tx.execute("SELECT id FROM onceward_body").fetchall()}
    stats = shop.inbox.admin.stats()
    assert stats.due + stats.outbox_unsent == len(found)
    return found


@pytest.mark.parametrize("shop", SYNC, indirect=True)
def test_receive_joins_the_transaction(shop: tuple[OrmShop, str]) -> None:
    inbox, engine = shop[0].inbox, create_engine(sync_url(shop[0].url, shop[1]))
    with Session(engine) as session, session.begin():
        session.add(Order(id=3))
        assert inbox.receive(**message("in a session", key="k"), tx=session).outcome == "queued"
    with Session(engine) as session:
        assert inbox.receive(**message("first of all"), tx=session).outcome == "queued"
        assert inbox.receive(**message("in a session"), tx=session).status == "duplicate"
        assert inbox.receive(**message("in a session", data={"other": None}), tx=session).status == "mismatch"
        session.commit()
    with engine.connect() as connection:
        inbox.receive(**message("in a connection"), tx=connection)
        connection.commit()
    registry = scoped_session(sessionmaker(engine))
    inbox.receive(**message("in a scoped session"), tx=registry)
    registry.commit()
    registry.remove()
    for number, undo in enumerate((Session.rollback, Session.close)):
        with Session(engine) as session:
            inbox.receive(**message(f"undone {number}"), tx=session)
            undo(session)
    with Session(engine) as session, session.begin():
        nested = session.begin_nested()
        inbox.receive(**message("undone by a savepoint"), tx=session)
        nested.rollback()
        inbox.receive(**message("after it"), tx=session)
    assert stored(shop[0]) == {"in a session", "first of all", "in a connection", "in a scoped session", "after it"}
    inbox.add_sink("default", Silent())
    with Session(engine) as session, session.begin():
        inbox.send("sent", {"n": 1}, tx=session, id="x1", key="k")
        assert inbox.send("sent", {"n": 1}, tx=session, id="x1", key="k") == "x1"
        with pytest.raises(InvalidMessage, match="was sent to 'default' before with another type or other data"):
            inbox.send("sent", {"n": 2}, tx=session, id="x1", key="k")
    assert inbox.drain() == 5
    assert inbox.admin.stats().outbox_unsent == 0
    engine.dispose()


class Silent:
    """Publishes to nobody."""

    def publish(self, message: Any) -> None:
        """Done."""


@pytest.mark.parametrize("shop", ASYNC, indirect=True)
def test_areceive_joins_the_transaction(shop: tuple[OrmShop, str]) -> None:
    inbox = shop[0].inbox

    async def receive_them(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session, session.begin():
            session.add(Order(id=3))
            assert (await inbox.areceive(**message("in a session", key="k"), tx=session)).outcome == "queued"
        async with AsyncSession(engine) as session:
            assert (await inbox.areceive(**message("first of all"), tx=session)).outcome == "queued"
            assert (await inbox.areceive(**message("in a session"), tx=session)).status == "duplicate"
            await session.commit()
        async with engine.connect() as connection:
            await inbox.areceive(**message("in a connection"), tx=connection)
            await connection.commit()
        registry = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
        await inbox.areceive(**message("in a scoped session"), tx=registry)
        await registry.commit()
        await registry.remove()
        async with AsyncSession(engine) as session:
            await inbox.areceive(**message("undone"), tx=session)
            await session.rollback()
        async with AsyncSession(engine) as session, session.begin():
            await inbox.asend("sent", {"n": 1}, tx=session)

    on_engine(shop[0].url, shop[1], receive_them)
    assert len(stored(shop[0])) == 5
    assert inbox.drain() == 4
    assert {shop[0].detail(one).status for one in ("in a connection", "in a scoped session")} == {"done"}
    assert inbox.admin.find("s", "undone") == []


def on_engine(url: str, driver: str, work: Callable[[AsyncEngine], Awaitable[None]], **options: Any) -> None:
    """Run something on an engine of an event loop of its own."""

    async def run() -> None:
        engine = create_async_engine(async_url(url, driver), **options)
        try:
            await work(engine)
        finally:
            await engine.dispose()

    asyncio.run(run())


@pytest.mark.parametrize("shop", SYNC, indirect=True)
def test_what_cannot_be_joined_is_refused_in_a_sentence(shop: tuple[OrmShop, str], tmp_path: Any) -> None:
    inbox, url = shop[0].inbox, sync_url(shop[0].url, shop[1])
    engine, auto = create_engine(url), create_engine(url, isolation_level="AUTOCOMMIT")

    def refused(tx: Any, sentence: str) -> None:
        with pytest.raises(ConfigurationError, match=sentence) as caught:
            inbox.receive(**message("never"), tx=tx)
        assert "nothing was stored" in str(caught.value) or "await inbox" in str(caught.value)

    with Session(auto) as session:
        refused(session, "tx= is in AUTOCOMMIT, so there is no transaction to join")
    with engine.connect() as connection:
        refused(connection.execution_options(isolation_level="AUTOCOMMIT"), "tx= is in AUTOCOMMIT")
    connection = engine.connect()
    connection.close()
    refused(connection, "tx= is a Connection that cannot be used, so nothing was stored: This Connection is closed")
    closed = Session(engine, close_resets_only=False)
    closed.close()
    refused(closed, "tx= is a Session that cannot be used, so nothing was stored: This Session has been permanently")
    refused(Session(), "tx= is a Session that cannot be used, so nothing was stored")
    with Session(engine) as broken:
        broken.add(Order(id=1))
        with pytest.raises(Exception, match="orders"):
            broken.flush()
        refused(broken, "tx= is a Session that cannot be used, so nothing was stored")
    elsewhere = create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    with Session(elsewhere) as session:
        refused(
            session,
            "tx= is on sqlite, and the inbox is at" if shop[1] != "sqlite" else "tx= leads to sqlite:///.*other.db",
        )
    refused(AsyncSession(), "tx= is an AsyncSession, which is awaited: use await inbox.areceive")
    for other in (engine, sessionmaker(engine), 5):
        with pytest.raises(ConfigurationError, match=r"tx= must be .*SQLAlchemy's Session or Connection, not \w+"):
            inbox.receive(**message("never"), tx=other)
    if shop[1] != "sqlite":
        with engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            if shop[1] == "pymysql":
                driver.autocommit(value=True)
            else:
                driver.autocommit = True
            refused(connection, "tx= is in AUTOCOMMIT")
            if shop[1] != "pymysql":
                driver.autocommit = False
    for one in (engine, auto, elsewhere):
        one.dispose()
    assert stored(shop[0]) == set()


def test_an_engine_of_another_server_is_refused(mariadb_url: str, private_mariadb: MariadbServer) -> None:
    """Also where that has an inbox, too. Another database of the same server is in the same transaction."""
    with OrmShop(mariadb_url, "def") as shop, OrmShop(private_mariadb.url(), "def") as elsewhere:
        shop.handle(lambda _, session: session.execute(text("SELECT 1")) and None)
        with Session(elsewhere.engine) as session:
            with pytest.raises(
                ConfigurationError, match=r"tx= leads to .*, and the inbox is at .*: nothing was stored"
            ):
                shop.inbox.receive(**message("never"), tx=session)
            session.rollback()
        beside = create_engine(sync_url(mariadb_url).rpartition("/")[0] + "/mysql")
        with Session(beside) as session:
            shop.inbox.receive(**message("there"), tx=session)
            session.commit()
        beside.dispose()
        assert (stored(shop), stored(elsewhere)) == ({"there"}, set())


def test_an_engine_of_another_database_is_refused(postgres_url: str) -> None:
    """Also where that has an inbox, too: the message would wait in another service's."""
    with OrmShop(postgres_url, "def") as shop:
        other = create_engine(sync_url(postgres_url).rpartition("/")[0] + "/postgres")
        with Session(other) as session:
            with pytest.raises(ConfigurationError, match=r"tx= leads to .*/postgres, and the inbox is at .*: nothing"):
                shop.inbox.receive(**message("never"), tx=session)
            session.rollback()
        other.dispose()
        assert stored(shop) == set()


def test_a_session_that_blocks_is_refused_on_an_event_loop(sqlite_url: str) -> None:
    with OrmShop(sqlite_url, "def") as shop:

        async def blocking() -> None:
            with Session(shop.engine) as session:
                await shop.inbox.areceive(**message("never"), tx=session)

        with pytest.raises(
            ConfigurationError, match="tx= is a Session, which blocks the event loop; use an AsyncSession"
        ):
            asyncio.run(blocking())


@pytest.mark.parametrize("shop", ["asyncpg", "aiosqlite", "asyncmy"], indirect=True)
def test_autocommit_is_refused_on_async_drivers(shop: tuple[OrmShop, str]) -> None:
    async def receive_it(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session:
            with pytest.raises(ConfigurationError, match="tx= is in AUTOCOMMIT"):
                await shop[0].inbox.areceive(**message("never"), tx=session)

    on_engine(shop[0].url, shop[1], receive_it, isolation_level="AUTOCOMMIT")
    assert stored(shop[0]) == set()


def test_errors_of_other_drivers_are_ours(postgres_url: str) -> None:
    """As with the store's own driver: what may be tried again says so."""
    with OrmShop(postgres_url, "def") as shop:
        engine = create_engine(sync_url(postgres_url, "psycopg2"))
        with engine.connect() as connection:
            connection.execute(text("SET LOCAL statement_timeout = '1s'"))
            with shop.inbox.transaction() as tx:
                tx.execute("LOCK TABLE onceward_ledger")
                with pytest.raises(StoreUnavailable, match="did not answer in time"):
                    shop.inbox.receive(**message("late"), tx=connection)
        engine.dispose()


def test_an_async_handler_is_refused_in_a_running_event_loop(sqlite_url: str) -> None:
    """Its own loop cannot be nested; and nothing was stored."""
    with OrmShop(sqlite_url, "async") as shop:
        shop.handle(lambda _, session: session.execute(text("SELECT 1")) and None)

        async def nested() -> None:
            shop.inbox.process(**message("never"))

        with pytest.raises(
            ConfigurationError, match=r"'t' has an async handler; inside an event loop use `await inbox"
        ):
            asyncio.run(nested())
        assert stored(shop) == set()


def test_urls_as_sqlalchemy_writes_them(sqlite_url: str, postgres_url: str, mariadb_url: str) -> None:
    """The inbox is in the same database; and an engine's own URL is one."""
    places = (
        (sqlite_url, ["aiosqlite", "pysqlite"]),
        (postgres_url, ["psycopg", "psycopg2", "asyncpg"]),
        (mariadb_url, ["pymysql", "asyncmy"]),
    )
    for url, drivers in places:
        with Inbox(url) as inbox:
            inbox.migrate()
        scheme, _, rest = url.partition("://")
        for driver in drivers:
            with Inbox(f"{scheme}+{driver}://{rest}") as inbox:
                assert inbox.migrate() == []
        engine = create_engine(sync_url(url))
        with Inbox(engine.url) as inbox:
            assert inbox.migrate() == []
        engine.dispose()


@pytest.mark.parametrize("shop", ASYNC, indirect=True)
def test_the_inner_session_of_an_async_one_is_refused(shop: tuple[OrmShop, str]) -> None:
    """In `run_sync` code looks synchronous, and its connection is awaited all the same."""

    async def receive_it(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session:
            with pytest.raises(ConfigurationError, match=r"tx= is the Session of an async engine, as in run_sync\(\)"):
                await session.run_sync(lambda plain: shop[0].inbox.receive(**message("never"), tx=plain))

    on_engine(shop[0].url, shop[1], receive_it)
    assert stored(shop[0]) == set()


def test_a_file_that_another_writer_holds_is_unavailable(sqlite_url: str) -> None:
    """With the error that callers of an inbox know, from whichever driver."""
    with OrmShop(sqlite_url, "def") as shop, shop.inbox.transaction() as held:
        held.execute("UPDATE orders SET paid = 1")
        hasty: dict[str, Any] = {"connect_args": {"timeout": 0}}
        engine = create_engine(sqlite_url, **hasty)
        with Session(engine) as session, pytest.raises(StoreUnavailable, match="the SQLite database is busy"):
            shop.inbox.receive(**message("never"), tx=session)
        engine.dispose()

        async def receive_it(engine: AsyncEngine) -> None:
            async with AsyncSession(engine) as session:
                with pytest.raises(StoreUnavailable, match="the SQLite database is busy"):
                    await shop.inbox.areceive(**message("never"), tx=session)

        on_engine(sqlite_url, "aiosqlite", receive_it, **hasty)
