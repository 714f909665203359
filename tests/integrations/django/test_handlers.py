"""Handlers with the ORM: their effects are committed with their message, once, or not at all."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from django.db import DatabaseError, IntegrityError, connection, connections, transaction
from django.db.models import F

from onceward import ConfigurationError, Message
from onceward.integrations.django import DjangoInbox
from onceward.runtime.runner import perform
from onceward.steps.prune import save_uses
from onceward.testing.process import apart, in_real_process
from tests.integrations.django.project import database
from tests.integrations.django.running import DjangoShop, pay
from tests.integrations.django.shop.models import Line, Order
from tests.leases import take_over_all
from tests.stores import with_mariadb
from tests.waiting import wait_until

REFUSED = "the transaction belongs to onceward: returning commits, raising rolls back"
BY_DJANGO = "forbidden when an 'atomic' block is active"


@with_mariadb
def test_each_message_takes_effect_once(shop: DjangoShop) -> None:
    """Copies, a group with failures in it, and inline: what counts is the number of messages that have not failed."""
    shop.handle(pay)
    assert shop.deliver("a", "a", "b", "c") == 3
    for number in range(30):
        shop.receive(f"g{number}", "fail" if number % 10 == 7 else None)
    assert shop.inbox.drain() == 27
    given: dict[str, Any] = {"source": "s", "type": "t"}
    assert shop.inbox.process(id="inline", **given).outcome == "done"
    assert shop.inbox.process(id="inline", **given).outcome == "duplicate"
    assert shop.inbox.process(id="failing", data="fail", **given).outcome == "retrying"
    assert shop.paid() == 31
    assert "ValueError: after the save" in shop.error("g7")


def test_the_drivers_connection_is_the_same_transaction(shop: DjangoShop) -> None:
    @shop.inbox.on("t")
    def both(_: Message, tx: Any) -> int:
        Order.objects.filter(pk=1).update(paid=7)
        return int(tx.execute("SELECT paid FROM shop_order WHERE id = 1").fetchone()[0])

    shop.deliver("a")
    assert shop.detail("a").result == 7


@with_mariadb
def test_blocks_nest(shop: DjangoShop) -> None:
    """What is rolled back inside of a handler takes nothing else along."""

    def behave(message: Message) -> None:
        pay(message)
        with suppress(ZeroDivisionError), transaction.atomic():
            Order.objects.update(paid=F("paid") + 100)
            with transaction.atomic():
                Order.objects.update(paid=F("paid") + 1000)
            raise ZeroDivisionError
        with suppress(IntegrityError), transaction.atomic():
            Order.objects.create(id=2)
        with transaction.atomic(), transaction.atomic():
            Order.objects.filter(pk=2).update(paid=F("paid") + 10)
        sid = connection.savepoint()
        Order.objects.all().delete()
        connection.savepoint_rollback(sid)
        transaction.atomic().__enter__()  # and never left
        Order.objects.filter(pk=2).update(paid=F("paid") + 1)

    shop.handle(behave)
    assert shop.deliver("a", "b") == 2
    assert shop.orders() == {1: 2, 2: 22}


def swallowed(call: Callable[[], Any]) -> None:
    with suppress(Exception):
        call()


def durable() -> None:
    with transaction.atomic(durable=True):
        Order.objects.update(paid=77)


def driver() -> None:
    connection.connection.commit()


def close() -> None:
    connection.close()


def go_on() -> None:
    swallowed(lambda: Order.objects.create(id=2))
    Order.objects.count()


def raw(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "commit": (transaction.commit, BY_DJANGO),
    "rollback": (transaction.rollback, BY_DJANGO),
    "autocommit": (lambda: transaction.set_autocommit(True), BY_DJANGO),
    "durable": (durable, "A durable atomic block cannot be nested"),
    "close": (close, REFUSED),
    "close all": (connections.close_all, REFUSED),
    "driver": (driver, REFUSED),
    "sql": (lambda: raw("COMMIT"), "the handler ran COMMIT"),
    "double": (lambda: Order.objects.create(id=2), "IntegrityError"),
    "swallowed double": (lambda: swallowed(lambda: Order.objects.create(id=2)), "went on, where Django rolls back"),
    "set_rollback": (lambda: transaction.set_rollback(True), "went on, where Django rolls back"),
    "goes on": (go_on, "until the end of the"),
}


@with_mariadb
def test_no_mistake_commits_what_came_before(shop: DjangoShop) -> None:
    """Nor does it harm the messages that share the transaction."""

    def behave(message: Message) -> None:
        pay(message)
        if message.id in MISTAKES:
            MISTAKES[message.id][0]()

    shop.handle(behave)
    assert shop.deliver("before", *MISTAKES, "after") == 2
    assert shop.orders() == {1: 2, 2: 0}
    errors = {name: shop.error(name) for name in MISTAKES}
    assert {name: error for name, error in errors.items() if MISTAKES[name][1] not in error} == {}


def test_a_swallowed_commit_changes_nothing(shop: DjangoShop) -> None:
    """What was refused did not happen, and the handler may go on."""

    def behave(message: Message) -> None:
        pay(message)
        for call in (transaction.commit, transaction.rollback, connection.close):
            swallowed(call)
        if message.data == "fail later":
            raise ValueError("later")

    shop.handle(behave)
    assert shop.deliver("works") == 1
    assert shop.deliver("fails", data="fail later") == 0
    assert shop.paid() == 1


@with_mariadb
def test_on_commit_comes_after_our_commit(shop: DjangoShop) -> None:
    """Once, with what the handler did visible to others; not for what failed or was rolled back."""
    seen: list[Any] = []

    def behave(message: Message) -> None:
        message.after_commit(lambda: seen.append("ours"))
        transaction.on_commit(lambda: seen.append((message.id, shop.paid())))
        with suppress(ZeroDivisionError), transaction.atomic():
            transaction.on_commit(lambda: seen.append("of a block that was rolled back"))
            raise ZeroDivisionError
        transaction.on_commit(lambda: 1 // 0, robust=True)
        transaction.on_commit(lambda: 1 // 0)
        transaction.on_commit(lambda: Order.objects.filter(pk=2).update(paid=F("paid") + 1))
        pay(message)
        assert seen == [] or message.id == "b"

    shop.handle(behave, group=1)
    assert shop.deliver("a") == 1
    assert seen == ["ours", ("a", 1)]
    assert shop.deliver("b", data="fail") == 0
    assert seen == ["ours", ("a", 1)]
    assert shop.orders() == {1: 1, 2: 1}


def test_rows_are_locked(postgres_shop: DjangoShop) -> None:
    """`select_for_update` in the handler's transaction, and named cursors, which live in one."""

    def blocked() -> bool:
        try:
            with transaction.atomic():
                Order.objects.select_for_update(nowait=True).get(pk=1)
        except DatabaseError:
            return True
        finally:
            connection.close()
        return False

    def behave(_: Message) -> int:
        assert not apart(blocked)
        order = Order.objects.select_for_update().get(pk=1)
        assert apart(blocked)
        for each in Order.objects.order_by("id").iterator(chunk_size=1):
            Order.objects.filter(pk=each.pk).update(paid=each.paid + 5)
        return int(order.pk)

    postgres_shop.handle(behave)
    assert postgres_shop.deliver("a") == 1, postgres_shop.error("a")
    assert postgres_shop.orders() == {1: 5, 2: 5}


PLACED = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)


def read_and_write(message: Message) -> None:
    """Every kind of value, written by one side and read by the other."""
    order = Order.objects.get(pk=1)
    assert order.placed_at == PLACED, order.placed_at
    assert order.is_gift is True
    assert (order.notes, order.total) == ({"a": [1, "100%s"]}, Decimal("12.50"))
    assert Order.objects.filter(placed_at__date=PLACED.date(), notes__a__0=1, placed_at__hour=12).exists()
    with connection.cursor() as cursor:
        cursor.execute("SELECT '100%s', count(*) FROM shop_order WHERE '%%' = '%%'")
        assert cursor.fetchone() == ("100%s", 2)
        cursor.execute("SELECT %s, '%%'", ["x"])
        assert cursor.fetchone() == ("x", "%")
    Order.objects.filter(pk=2).update(placed_at=PLACED, notes={"b": None}, total="0.10", is_gift=bool(message.id))


@pytest.mark.parametrize("more", [{}, {"DISABLE_SERVER_SIDE_CURSORS": True}, {"TIME_ZONE": "Asia/Tokyo"}], ids=str)
def test_values_are_the_same_inside_and_outside(store_url: str, more: dict[str, Any]) -> None:
    """Also on a server whose own time zone is another than Django's."""
    with DjangoShop(store_url, **more) as shop:
        if shop.inbox.store.dialect == "postgres":
            with connection.cursor() as cursor:
                cursor.execute(
                    "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET timezone = %L', current_database(), "
                    "'America/New_York'); END $$"
                )
            connection.close()
        same_values(shop)


def test_values_are_the_same_on_mariadb(mariadb_url: str) -> None:
    """Whose time zones a server has only if somebody has loaded them."""
    with DjangoShop(mariadb_url) as shop:
        same_values(shop)


def same_values(shop: DjangoShop) -> None:
    """Written outside, read and written by a handler, and read outside."""
    Order.objects.filter(pk=1).update(placed_at=PLACED, is_gift=True, notes={"a": [1, "100%s"]}, total="12.50")
    shop.handle(read_and_write)
    assert shop.deliver("a", "b") == 2, shop.error("a")
    order = Order.objects.get(pk=2)
    assert (order.placed_at, order.notes, order.total) == (PLACED, {"b": None}, Decimal("0.10"))
    assert order.is_gift is True


def test_what_the_commit_refuses_fails_alone(shop: DjangoShop) -> None:
    """Django's foreign keys are checked at the commit."""

    def behave(message: Message) -> None:
        pay(message)
        Line.objects.create(order_id=99 if message.data == "nowhere" else 1)

    shop.handle(behave)
    shop.receive("a")
    shop.receive("b", "nowhere")
    assert shop.deliver("c") == 2
    assert shop.paid() == 2
    assert "foreign key" in shop.error("b").lower()
    assert Line.objects.count() == 2


def test_a_lost_connection_is_not_the_messages_fault(postgres_shop: DjangoShop) -> None:
    """Also where the handler has caught Django's error and went on."""
    calls = 0

    def behave(message: Message) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            swallowed(lambda: raw("SELECT pg_terminate_backend(pg_backend_pid())"))
        pay(message)

    postgres_shop.handle(behave, group=1)
    postgres_shop.receive("a")
    wait_until(lambda: postgres_shop.inbox.drain() == 1, message="the message to be handled again")
    assert postgres_shop.paid() == 1
    assert calls == 2
    assert postgres_shop.detail("a").history == (), "nothing was charged"


def test_a_timeout_leaves_nothing(shop: DjangoShop) -> None:
    """The handler is interrupted in a statement of its ORM."""
    slow = "SELECT pg_sleep(60)" if shop.inbox.store.dialect == "postgres" else _COUNTING

    def behave(message: Message) -> None:
        pay(message)
        raw(slow)

    shop.handle(behave, timeout=0.5)
    assert shop.deliver("a") == 0
    assert "HandlerTimeout" in shop.error("a")
    assert shop.paid() == 0


_COUNTING = (
    "WITH RECURSIVE counted (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted WHERE n < 3000000000) "
    "SELECT max(n) FROM counted"
)


@with_mariadb
def test_killed_between_save_and_commit(store_url: str) -> None:
    """A real process: what it had saved is gone, and another one handles the message once."""
    with DjangoShop(store_url) as shop:
        killing = os.getpid()

        def behave(message: Message) -> None:
            pay(message)
            if os.getpid() != killing:
                os.kill(os.getpid(), signal.SIGKILL)

        shop.handle(behave)
        shop.receive("a")
        shop.inbox.close()
        connections.close_all()
        assert in_real_process(shop.inbox.drain)
        assert shop.paid() == 0
        take_over_all(shop.inbox)
        assert shop.inbox.drain() == 1
        assert shop.paid() == 1


@with_mariadb
def test_a_dry_run_shows_what_the_orm_does(shop: DjangoShop) -> None:
    shop.handle(pay)
    shop.receive("a")
    report = shop.inbox.admin.dry_run(shop.detail("a").seq)
    assert any("UPDATE" in statement.sql for statement in report.statements)
    assert shop.paid() == 0


def test_a_batch_runs_on_commit_once(shop: DjangoShop) -> None:
    seen: list[int] = []

    @shop.inbox.on("t", batch=True)
    def batch(messages: list[Message]) -> None:
        Order.objects.filter(pk=1).update(paid=F("paid") + len(messages))
        transaction.on_commit(lambda: seen.append(len(messages)))

    assert shop.deliver("a", "b", "c") == 3
    assert (shop.paid(), sum(seen)) == (3, 3)


def test_threads_get_their_own_connections_back(shop: DjangoShop, tmp_path: Any) -> None:
    """And what a handler opens to another database does not stay open."""
    inside: list[Any] = []

    def behave(message: Message) -> None:
        inside.extend([connection.connection, connections["other"]])
        raw_other = connections["other"].cursor()
        raw_other.execute("SELECT 1")
        pay(message)

    with database(f"sqlite:///{tmp_path / 'other.db'}", "other"):
        shop.handle(behave)
        outer = connections["default"]
        assert shop.inbox.process(source="s", id="a", type="t").outcome == "done"
        assert connections["default"] is outer
        assert inside[0] is not outer.connection
        assert inside[1].connection is None
        assert shop.deliver("b") == 1


def test_a_connection_is_over_when_its_handler_is(shop: DjangoShop) -> None:
    """One that was kept, and one in another thread, which has its own."""
    kept: list[Any] = []
    elsewhere: list[bool] = []

    def behave(_: Message) -> None:
        kept.append(connections["default"])
        thread = threading.Thread(target=lambda: elsewhere.append(connections["default"] is kept[-1]))
        thread.start()
        thread.join()

    shop.handle(behave)
    assert shop.deliver("a") == 1
    assert elsewhere == [False]
    with pytest.raises(Exception, match="transaction is over"):
        kept[0].cursor()


def test_async_handlers_are_refused_at_the_door(sqlite_shop: DjangoShop) -> None:
    with pytest.raises(ConfigurationError, match="an async def handler cannot have Django's ORM in its transaction"):

        @sqlite_shop.inbox.on("t")
        async def handler(_: Message) -> None:
            await Order.objects.aget(pk=1)


def test_what_cannot_be_made_is_refused(sqlite_shop: DjangoShop) -> None:
    with pytest.raises(ConfigurationError, match="using='nowhere' is not in DATABASES, which has 'default'"):
        DjangoInbox("nowhere")
    with pytest.raises(ConfigurationError, match="sessions= is for SQLAlchemy"):
        DjangoInbox(sessions=object)
    assert sqlite_shop.inbox.using == "default"


def test_effects_in_another_database_are_reported(shop: DjangoShop, tmp_path: Any) -> None:
    """D48: they are committed by themselves, and may come twice; what goes through the ORM of ours does not."""
    with database(f"sqlite:///{tmp_path / 'other.db'}", "other"):
        with connections["other"].cursor() as cursor:
            cursor.execute("CREATE TABLE elsewhere (id integer)")

        def behave(_: Message) -> None:
            with connections["other"].cursor() as cursor:
                cursor.execute("INSERT INTO elsewhere VALUES (1)")

        shop.handle(behave, "apart")
        shop.handle(pay, "inside")
        for number in range(3):
            shop.deliver(f"a{number}", message_type="apart")
            shop.deliver(f"i{number}", message_type="inside")
        connections["other"].close()
    perform(shop.inbox.store, lambda: save_uses(shop.inbox.context))  # as a worker does with its heartbeat
    assert [one.type for one in shop.inbox.admin.effects_outside()] == ["apart"]
