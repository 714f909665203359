"""`prove_exactly_once` on handlers that work through a Session."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from onceward import Message
from onceward.testing import prove_exactly_once
from tests.integrations.shop import Kind, Order, OrmShop

PAID = {"source": "stripe", "id": "evt_1", "type": "paid", "data": {"order": 1}}


def effect(connection: Any) -> Any:
    """What can be seen of it."""
    return connection.execute("SELECT id, paid FROM orders ORDER BY id").fetchall()


def pay(message: Message, session: Session) -> None:
    """One update by the ORM, one in a savepoint, one message."""
    order = session.get(Order, message.data["order"])
    assert order is not None
    order.paid += 1
    with session.begin_nested():
        session.execute(text("UPDATE orders SET paid = paid + 10 WHERE id = 2"))
    message.send("shipped", {"order": order.id})


@pytest.fixture
def shop(sqlite_url: str, kind: Kind) -> Any:
    with OrmShop(sqlite_url, kind) as shop:
        yield shop


def test_a_handler_with_a_session_is_proven(shop: OrmShop) -> None:
    shop.handle(pay, "paid")
    report = prove_exactly_once(shop.inbox, PAID, check=effect)
    assert report.ok, report
    assert any("UPDATE orders" in statement.sql for statement in report.statements), "it saw what the Session did"


def test_one_on_postgres_is_proven(postgres_url: str) -> None:
    with OrmShop(postgres_url, "def") as shop:
        shop.handle(pay, "paid")
        assert prove_exactly_once(shop.inbox, PAID, check=effect).ok


def test_an_effect_past_the_session_is_caught(postgres_url: str, kind: Kind) -> None:
    """An engine of the program's own commits by itself: after a crash it has done so twice."""
    with OrmShop(postgres_url, kind) as shop:
        if kind == "async":

            @shop.inbox.on("paid")
            async def careless_too(_: Message) -> None:
                _past(shop)

        else:

            @shop.inbox.on("paid")
            def careless(_: Message) -> None:
                _past(shop)

        assert not prove_exactly_once(shop.inbox, PAID, check=effect).ok


def _past(shop: OrmShop) -> None:
    with Session(shop.engine) as session, session.begin():
        session.execute(text("UPDATE orders SET paid = paid + 1 WHERE id = 1"))


def seen_by_a_session(session: Session) -> Any:
    """The effect as the ORM sees it."""
    return [(order.id, order.paid) for order in session.query(Order).order_by(Order.id)]


def test_the_effect_is_looked_at_with_a_session(shop: OrmShop) -> None:
    """As `check` says by the annotation of its parameter; an effect that is lost is seen by it, too."""
    shop.handle(pay, "paid")
    assert prove_exactly_once(shop.inbox, PAID, check=seen_by_a_session).ok
    shop.handle(lambda _, session: _swallowing(session), "swallowed")
    report = prove_exactly_once(shop.inbox, {**PAID, "type": "swallowed"}, check=seen_by_a_session)
    assert not report.ok


def _swallowing(session: Session) -> None:
    """Catches the error that a fault makes of a statement, and returns."""
    with suppress(Exception), session.begin_nested():
        session.execute(text("UPDATE orders SET paid = paid + 1"))
