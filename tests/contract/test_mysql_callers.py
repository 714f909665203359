"""Receiving in a caller's own transaction on MariaDB, with each driver of MySQL that callers bring (R41)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import asyncmy
import pymysql
import pytest
from asyncmy.cursors import DictCursor as AsyncDictCursor
from pymysql.cursors import DictCursor

from onceward import ConfigurationError
from onceward.errors import StoreBusy, StoreConflict
from onceward.stores.mysql.address import Address
from tests.contract.harness import Shop

# mysqlclient has no wheels: it is played where it is installed.
DRIVERS = ["pymysql", "asyncmy", *(["MySQLdb"] if find_spec("MySQLdb") else [])]


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> str:
    """Whose connection the caller has."""
    return str(request.param)


@pytest.fixture
def shop(mariadb_url: str, driver: str) -> Iterator[Shop]:
    """A shop on MariaDB, async where the driver is."""
    with Shop(mariadb_url, "async" if driver == "asyncmy" else "def") as shop:
        shop.handle()
        yield shop


class Caller:
    """A connection of the caller's own."""

    def __init__(self, shop: Shop, driver: str, options: dict[str, Any]) -> None:
        self.shop = shop
        arguments = {**Address.of(shop.url).arguments(), **options}
        if driver == "asyncmy":
            self.connection = shop.await_(_connected(arguments))
        elif driver == "pymysql":
            self.connection = pymysql.connect(**arguments, ssl_disabled=True)
        else:
            import MySQLdb  # noqa: PLC0415 - where it is installed

            self.connection = MySQLdb.connect(**arguments)

    def do(self, method: str, *args: Any) -> Any:
        """Call a method of the connection."""
        answer = getattr(self.connection, method)(*args)
        return self.shop.await_(_awaited(answer)) if hasattr(answer, "__await__") else answer

    def execute(self, statement: str) -> None:
        """Run a statement."""
        cursor = self.connection.cursor()
        answer = cursor.execute(statement)
        if hasattr(answer, "__await__"):
            self.shop.await_(_awaited(answer))

    def receive(self, message_id: str, **more: Any) -> str:
        """Receive in its transaction."""
        return self.shop.receive(message_id, tx=self.connection, **more).status


async def _connected(arguments: dict[str, Any]) -> Any:
    return await asyncmy.connect(**arguments)


async def _awaited(answer: Any) -> Any:
    return await answer


@contextmanager
def caller(shop: Shop, driver: str, **options: Any) -> Iterator[Caller]:
    """A caller, whose connection is closed at the end."""
    one = Caller(shop, driver, options)
    try:
        yield one
    finally:
        one.connection.close()


@pytest.mark.parametrize(
    "isolation",
    [
        "READ COMMITTED",
        pytest.param("REPEATABLE READ", marks=pytest.mark.needs("late views")),
        pytest.param("SERIALIZABLE", marks=pytest.mark.needs("SERIALIZABLE")),
    ],
)
def test_a_message_is_there_if_and_only_if_the_caller_commits(shop: Shop, driver: str, isolation: str) -> None:
    with caller(shop, driver) as own:
        own.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {isolation}")
        own.do("commit")
        own.execute("INSERT INTO effects (message_id, note) VALUES ('own', 'one')")
        assert own.receive("m1") == "accepted"
        assert own.receive("m1") == "duplicate"
        own.do("rollback")
        assert shop.drain() == 0
        own.execute("INSERT INTO effects (message_id, note) VALUES ('own', 'two')")
        assert own.receive("m1") == "accepted"
        own.do("commit")
    assert shop.drain() == 1
    assert shop.effects() == ["m1", "own"]


def test_what_came_after_the_callers_view_began_is_known(shop: Shop, driver: str) -> None:
    """REPEATABLE READ, MySQL's default, keeps to a view of its own; the copy is found all the same."""
    shop.receive("m0")  # from here on, who wants what is known
    with caller(shop, driver) as own:
        own.execute("SELECT * FROM effects")
        shop.receive("m1")
        assert own.receive("m1") == "duplicate"
        assert own.receive("m2") == "accepted"
        own.do("commit")
    assert shop.drain() == 3


def test_text_that_needs_quoting_arrives_as_it_was_sent(shop: Shop, driver: str) -> None:
    with caller(shop, driver) as own:
        for number, mode in enumerate(("", "NO_BACKSLASH_ESCAPES", "ANSI_QUOTES")):
            own.execute(f"SET SESSION sql_mode = '{mode}'")
            assert own.receive(f"a'b\\'c\"%s {number}", data={"text": "\\ ' \" \n %(name)s"}) == "accepted"
            own.do("commit")
    assert shop.drain() == 3
    assert shop.effects() == sorted(f"a'b\\'c\"%s {number}" for number in range(3))


def test_a_connection_without_a_transaction_is_refused(shop: Shop, driver: str) -> None:
    with caller(shop, driver, autocommit=True) as own, pytest.raises(ConfigurationError, match="autocommit"):
        own.receive("m1")


def test_a_connection_in_another_charset_is_refused(shop: Shop, driver: str) -> None:
    with caller(shop, driver, charset="latin1") as own, pytest.raises(ConfigurationError, match="utf8mb4"):
        own.receive("m1")


def test_the_callers_own_kind_of_cursor_is_not_ours(shop: Shop, driver: str) -> None:
    habits: dict[str, Any] = {"pymysql": {"cursorclass": DictCursor}, "asyncmy": {"cursor_cls": AsyncDictCursor}}
    with caller(shop, driver, **habits.get(driver, {})) as own:
        assert own.receive("m1") == "accepted"
        own.do("commit")
    assert shop.drain() == 1


def test_handlers_do_not_run_in_it(shop: Shop, driver: str) -> None:
    """`process(tx=...)` is refused with what to do instead."""
    with caller(shop, driver) as own:
        with pytest.raises(ConfigurationError, match=r"nothing was stored; call a?receive") as caught:
            shop.process("m1", tx=own.connection)
        assert "handlers cannot run in a transaction of yours on mysql" in str(caught.value)
        own.do("commit")
    assert shop.count("ledger") == 0


@pytest.mark.needs("triggers")
@pytest.mark.parametrize("before", [True, False], ids=["behind a write", "as the first"])
def test_a_call_that_failed_in_the_middle_leaves_nothing(shop: Shop, driver: str, *, before: bool) -> None:
    """MySQL undoes the statement alone: without its ledger row the message would be a duplicate, and in no queue."""
    shop.receive("m0")  # from here on, who wants what is known
    shop.sql(
        "CREATE TRIGGER full BEFORE INSERT ON onceward_queue FOR EACH ROW "
        "SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 1205, MESSAGE_TEXT = 'Lock wait timeout exceeded'"
    )
    with caller(shop, driver) as own:
        if before:
            own.execute("INSERT INTO effects (message_id, note) VALUES ('own', 'kept')")
        with pytest.raises(StoreBusy):
            own.receive("m1")
        own.do("commit")
    assert (shop.count("ledger"), shop.count("body"), shop.count("queue")) == (1, 1, 1)
    shop.sql("DROP TRIGGER full")
    with caller(shop, driver) as own:
        assert own.receive("m1") == "accepted"
        own.do("commit")
    assert shop.drain() == 2
    assert shop.effects() == ["m0", "m1", *(["own"] if before else [])]


@pytest.mark.needs("gap locks")
def test_a_deadlock_takes_the_callers_own_rows_and_says_so(shop: Shop, driver: str) -> None:
    """The server has undone the whole transaction: a caller that reads the error knows what a commit would lack."""
    shop.receive("m0")
    with caller(shop, driver) as own, _other(shop) as other, other.cursor() as cursor:
        many = [(str(number),) for number in range(500)]  # it is not the lighter one, which the server undoes
        cursor.executemany("INSERT INTO effects (message_id, note) VALUES (%s, 'much')", many)
        cursor.execute("SELECT id FROM onceward_ledger WHERE id IS NOT NULL FOR UPDATE")
        own.execute("INSERT INTO effects (message_id, note) VALUES ('own', 'gone')")
        crossing = threading.Thread(target=cursor.execute, args=["SELECT * FROM effects FOR UPDATE"])
        crossing.start()
        with pytest.raises(StoreConflict, match=r"undone your whole transaction.*[Dd]eadlock"):
            own.receive("m1")
        crossing.join()
        other.rollback()
        own.do("commit")
    assert (shop.count("ledger"), shop.effects()) == (1, [])


@contextmanager
def _other(shop: Shop) -> Iterator[Any]:
    connection = pymysql.connect(**Address.of(shop.url).arguments(), autocommit=False, ssl_disabled=True)
    try:
        yield connection
    finally:
        connection.close()
