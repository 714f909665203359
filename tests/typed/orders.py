"""The same order in each kind of model."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, ClassVar, NotRequired, TypedDict
from uuid import UUID

import msgspec
import pydantic


class State(Enum):
    """Of an order."""

    PAID = "paid"
    LATE = "late"


ID = UUID("7a6e1f0e-6f4f-4a52-9d6a-2f8d3c1b0a9e")
AT = datetime(2026, 5, 4, 12, 30, tzinfo=UTC)


@dataclass
class Line:
    """Of an order."""

    sku: str
    price: Decimal


@dataclass
class PlainOrder:
    """A dataclass."""

    __message_type__: ClassVar[str] = "order.paid"

    order_id: UUID
    at: datetime
    state: State
    lines: list[Line]
    note: bytes = b""
    tags: frozenset[str] = frozenset()
    parent: PlainOrder | None = None
    unsaid: dict[str, int] = field(default_factory=dict)


class PydanticLine(pydantic.BaseModel):
    """Of an order."""

    model_config = pydantic.ConfigDict(frozen=True)
    sku: str
    price: Decimal


class PydanticOrder(pydantic.BaseModel):
    """Pydantic, strict: dates and decimals come from text all the same."""

    model_config = pydantic.ConfigDict(strict=True, frozen=True)
    __message_type__ = "order.paid"

    order_id: UUID
    at: datetime
    state: State
    lines: list[PydanticLine]
    note: bytes = b""
    tags: frozenset[str] = frozenset()
    parent: PydanticOrder | None = None
    unsaid: dict[str, int] = {}

    @pydantic.field_validator("tags")
    @classmethod
    def few(cls, tags: frozenset[str]) -> frozenset[str]:
        """Quotes the data, as validators do."""
        if len(tags) > 3:
            raise ValueError(f"too many: {sorted(tags)}")
        return tags


class MsgspecLine(msgspec.Struct):
    """Of an order."""

    sku: str
    price: Decimal


class MsgspecOrder(msgspec.Struct):
    """msgspec."""

    __message_type__ = "order.paid"

    order_id: UUID
    at: datetime
    state: State
    lines: list[MsgspecLine]
    note: bytes = b""
    tags: frozenset[str] = frozenset()
    parent: MsgspecOrder | None = None
    unsaid: dict[str, int] = {}

    def __post_init__(self) -> None:
        if len(self.tags) > 3:
            raise ValueError(f"too many: {sorted(self.tags)}")


class DictOrder(TypedDict):
    """A TypedDict."""

    order_id: UUID
    at: datetime
    state: State
    lines: list[Line]
    note: NotRequired[bytes]
    tags: NotRequired[frozenset[str]]
    parent: NotRequired[DictOrder | None]
    unsaid: NotRequired[dict[str, int]]


KINDS: dict[str, tuple[Any, Any]] = {
    "dataclass": (PlainOrder, Line),
    "pydantic": (PydanticOrder, PydanticLine),
    "msgspec": (MsgspecOrder, MsgspecLine),
    "TypedDict": (DictOrder, Line),
}


def order(kind: str) -> Any:
    """An order with something in each field."""
    model, line = KINDS[kind]
    lines = [line(sku="x", price=Decimal("1.50")), line(sku="y", price=Decimal(20))]
    tags = frozenset({"a", "b", "c"})
    return model(order_id=ID, at=AT, state=State.PAID, lines=lines, note=b"hi", tags=tags)


SECRET = "4111-1111"
WRONG: dict[str, Any] = {
    "order_id": SECRET,
    "state": SECRET,
    "lines": [{"sku": 1, "price": SECRET}, {"sku": 2, "price": SECRET}, {"price": "1"}],
    "unsaid": {SECRET: SECRET},
    SECRET: 1,
}
"""Wrong in most fields, with something in it that no error may show."""
REFUSED: dict[str, Any] = {
    "order_id": str(ID),
    "at": "2026-05-04T12:30:00Z",
    "state": "paid",
    "lines": [],
    "tags": [SECRET, "b", "c", "d"],
}
"""Refused by the model's own validator, which quotes it."""
