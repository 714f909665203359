"""`process` inside `atomic()`: the ORM of the handler, its message and "done" are committed with the block, or not."""

from __future__ import annotations

from contextlib import suppress

import pytest
from django.db import DatabaseError, IntegrityError, connection, transaction
from django.db.transaction import TransactionManagementError

from onceward import Inbox, Message
from onceward.errors import TransactionEnded
from onceward.integrations.django.addresses import address_of
from tests.integrations.django.running import DjangoShop, pay
from tests.integrations.django.shop.models import Order


def process(shop: DjangoShop, message_id: str, data: object = None) -> str:
    return shop.inbox.process(source="s", id=message_id, type="t", data=data).outcome


def test_process_joins_the_block(shop: DjangoShop) -> None:
    """Done when, and only when, the outermost block is committed; a failure undoes the handler's work alone."""
    shop.handle(pay)
    with transaction.atomic():
        Order.objects.create(id=3)
        receipt = shop.inbox.process(source="s", id="a", type="t")
        assert (receipt.outcome, receipt.pending) == ("done", True)
        assert process(shop, "fails", "fail") == "retrying"
        assert process(shop, "a") == "duplicate"
        assert Order.objects.get(pk=1).paid == 1
        with suppress(IntegrityError), transaction.atomic():
            assert process(shop, "of a block that is rolled back") == "done"
            Order.objects.create(id=3)
        assert shop.stored() == set()
        assert shop.orders() == {1: 0, 2: 0}
    assert shop.stored() == {"a", "fails"}
    assert shop.orders() == {1: 1, 2: 0, 3: 0}
    assert shop.detail("fails").status == "retrying"
    with suppress(ZeroDivisionError), transaction.atomic():
        shop.inbox.process_many([{"source": "s", "id": f"m{one}", "type": "t"} for one in range(2)])
        raise ZeroDivisionError
    with transaction.atomic():
        shop.inbox.process_many([{"source": "s", "id": f"m{one}", "type": "t"} for one in range(2)])
    assert shop.stored() == {"a", "fails", "m0", "m1"}
    assert shop.paid() == 3


def test_outside_of_a_block_it_commits_by_itself(shop: DjangoShop) -> None:
    shop.handle(pay)
    receipt = shop.inbox.process(source="s", id="a", type="t")
    assert (receipt.outcome, receipt.pending, shop.paid()) == ("done", False, 1)


def test_calls_after_the_commit_come_after_the_blocks(shop: DjangoShop) -> None:
    """At most once, and never for what is rolled back; what one raises is logged by Django."""
    called: list[str] = []

    def calling(message: Message) -> None:
        transaction.on_commit(lambda: called.append(f"on_commit {message.id}"))
        message.after_commit(lambda: called.append(f"after_commit {message.id}"))
        message.after_commit(lambda: 1 / 0)
        pay(message)

    shop.handle(calling)
    with transaction.atomic():
        assert process(shop, "a") == "done"
        assert process(shop, "fails", "fail") == "retrying"
        assert called == []
    assert sorted(called) == ["after_commit a", "on_commit a"]
    with suppress(ZeroDivisionError), transaction.atomic():
        assert process(shop, "b") == "done"
        raise ZeroDivisionError
    assert len(called) == 2


def test_the_connection_is_the_callers_again(shop: DjangoShop) -> None:
    """Django's own object is in its place after the call, inside its block, and works."""
    shop.handle(pay)
    with transaction.atomic():
        mine = connection.connection
        assert process(shop, "a") == "done"
        assert connection.connection is mine
        assert connection.in_atomic_block
        Order.objects.create(id=3)
    assert shop.orders() == {1: 1, 2: 0, 3: 0}


def test_another_inbox_joins_with_the_connection(shop: DjangoShop) -> None:
    """Its handlers have the driver's connection."""
    with Inbox(address_of("default").url) as inbox:

        @inbox.on("u")
        def handler(_: Message, tx: object) -> None:
            tx.execute("UPDATE shop_order SET paid = 7 WHERE id = 1")  # type: ignore[attr-defined] # a driver's

        with suppress(ZeroDivisionError), transaction.atomic():
            assert inbox.process(source="s", id="a", type="u", tx=connection).outcome == "done"
            raise ZeroDivisionError
        assert shop.paid() == 0
        with transaction.atomic():
            assert inbox.process(source="s", id="a", type="u", tx=connection).outcome == "done"
        assert shop.paid() == 7


def test_a_block_that_a_handler_ends(shop: DjangoShop) -> None:
    """By the caller's own connection: what it committed stays, the message is queued, and the call says so."""

    def ending(_: Message) -> None:
        mine.commit()

    shop.handle(ending)
    with suppress(TransactionManagementError, DatabaseError), transaction.atomic():
        Order.objects.create(id=3)
        mine = connection.connection
        with pytest.raises(TransactionEnded):
            process(shop, "a")
    connection.close()
    assert shop.stored() == {"a"}
    assert shop.detail("a").status == "due"
