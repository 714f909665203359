"""A message for a plain unit test is what the inbox would give, and remembers what the handler did."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, TypedDict
from uuid import UUID

import pytest
from pydantic import BaseModel

from onceward import ConfigurationError, ContractViolation, Inbox, InvalidMessage, Message
from onceward.errors import DataInvalid
from onceward.testing import message


@dataclass
class Paid:
    """A dataclass that names its type."""

    __message_type__ = "order.paid"
    __message_version__ = 2

    order_id: UUID
    amount: Decimal


class Due(TypedDict):
    """A dict."""

    at: datetime


class Refund(BaseModel):
    """A model of Pydantic."""

    cents: int


ORDER = UUID("7a6e1f0e-6f4f-4a52-9d6a-2f8d3c1b0a9e")


def test_it_is_what_a_handler_of_the_inbox_gets() -> None:
    """The same fields, of the same types, as the inbox gives to the same handler for the same delivery."""
    seen: list[Message[Any]] = []
    delivered: dict[str, Any] = {"source": "stripe", "id": "evt_1", "headers": {"trace": "1"}, "key": 7}
    with Inbox("sqlite://") as inbox:
        inbox.migrate()
        inbox.on("order.paid", consumer="pay")(lambda got, _tx: seen.append(got))
        inbox.receive(type="order.paid", data={"order": 7}, **delivered)
        inbox.drain()
    made = message("order.paid", {"order": 7}, consumer="pay", **delivered)
    assert isinstance(made, Message)
    (got,) = seen
    different = {"seq", "outbox", "effects", "received_at"}
    assert {n: v for n, v in made._asdict().items() if n not in different} == {
        n: v for n, v in got._asdict().items() if n not in different
    }
    assert made.idempotency_key("charge") == got.idempotency_key("charge")


def test_models_come_as_they_would_arrive() -> None:
    paid = message(Paid, {"order_id": str(ORDER), "amount": "19.90"})
    assert (paid.type, paid.version) == ("order.paid", 2)
    assert paid.data == Paid(ORDER, Decimal("19.90"))
    assert message("x", Paid(ORDER, Decimal(1))).data == Paid(ORDER, Decimal(1))
    assert message("x", Refund(cents=5)).data == Refund(cents=5)
    assert message("x", {"at": "2026-11-15T12:00:00+00:00"}, model=Due).data == {
        "at": datetime(2026, 11, 15, 12, tzinfo=UTC)
    }
    assert message("x", {"at": datetime(2026, 11, 15, tzinfo=UTC)}).data == {"at": "2026-11-15T00:00:00+00:00"}
    with pytest.raises(DataInvalid, match="amount is missing"):
        message(Paid, {"order_id": str(ORDER)})


def test_what_no_message_can_be_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="cannot be written as JSON"):
        message("order.paid", {"order": object()})
    with pytest.raises(ConfigurationError, match="attempt"):
        message("order.paid", attempt=0)
    with pytest.raises(ConfigurationError, match="priority"):
        message("order.paid", priority=1)  # type: ignore[call-overload]
    assert message("order.paid", body=b"\xff").data is None
    assert message("order.paid", body=b'{"a": 1}').data == {"a": 1}


def test_what_it_sends_is_remembered() -> None:
    paid = message("order.paid", {"order": 7}, source="stripe", id="evt_1")
    first = paid.send("order.shipped", {"order": 7}, key="7", to="orders")
    second = paid.send("order.shipped", body=b"\x00", version=3)
    sent = paid.sent
    assert [(one.type, one.data, one.key, one.to, one.version) for one in sent] == [
        ("order.shipped", {"order": 7}, "7", "orders", 1),
        ("order.shipped", None, None, "default", 3),
    ]
    assert [one.id for one in sent] == [first, second]
    assert sent[0].headers["causation-id"] == "evt_1"
    with pytest.raises(InvalidMessage):
        paid.send("order.shipped", object())


def test_calls_are_made_once_and_remembered() -> None:
    charged: list[int] = []
    paid = message("order.paid", {"order": 7})

    def charge() -> dict[str, Any]:
        charged.append(7)
        return {"id": "ch_1", "at": (1, 2)}

    assert paid.once("charge", charge, idempotent=True) == {"id": "ch_1", "at": [1, 2]}
    assert paid.once("charge", charge) == {"id": "ch_1", "at": [1, 2]}
    assert charged == [7]
    assert [(call.name, call.made, call.idempotent) for call in paid.calls] == [
        ("charge", True, True),
        ("charge", False, False),
    ]


def test_a_result_on_record_is_given_without_the_call() -> None:
    paid = message("order.paid", known={"charge": "ch_1"}, attempt=2)
    assert paid.once("charge", lambda: pytest.fail("called")) == "ch_1"
    assert [(call.result, call.made) for call in paid.calls] == [("ch_1", False)]


def test_an_error_of_a_call_is_the_handlers() -> None:
    paid = message("order.paid")
    with pytest.raises(ZeroDivisionError):
        paid.once("charge", lambda: 1 / 0)
    assert paid.calls == []


async def test_in_an_async_test_it_is_awaited() -> None:
    async def charge() -> str:
        return "ch_1"

    cleared: list[str] = []

    async def clear() -> None:
        cleared.append("cache")

    async def handler(paid: Message, _tx: Any) -> None:
        assert await paid.once("charge", charge) == "ch_1"
        assert await paid.once("mail", lambda: None, idempotent=timedelta(days=1)) is None
        paid.after_commit(clear)

    paid = message("order.paid", known={})
    await handler(paid, None)
    assert [call.name for call in paid.calls] == ["charge", "mail"]
    with pytest.raises(ContractViolation, match="acommit"):
        paid.commit()
    again = message("order.paid")
    await handler(again, None)
    await again.acommit()
    assert cleared == ["cache"]


def test_what_is_left_for_after_the_commit_waits_for_it() -> None:
    cleared: list[str] = []
    paid = message("order.paid")
    paid.after_commit(lambda: cleared.append("cache"))
    assert cleared == []
    paid.commit()
    paid.commit()
    assert cleared == ["cache"]
