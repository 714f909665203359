"""What an inbox takes is an AsyncAPI document that AsyncAPI's own schema accepts, and that fits what is sent (R58)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict
from uuid import UUID

import msgspec
import pytest
from click.testing import CliRunner
from jsonschema import Draft7Validator
from pydantic import BaseModel, Field

from onceward import Inbox, Message
from onceward.admin.asyncapi import document
from onceward.cli.app import application
from onceward.domain import payload
from tests.servers import install

ORDER = UUID("7a6e1f0e-6f4f-4a52-9d6a-2f8d3c1b0a9e")
NAME = "^[A-Za-z0-9._-]+$"


class Colour(Enum):
    """An Enum."""

    RED = "red"


@dataclass
class Line:
    """Refers to itself."""

    article: str
    place: tuple[int, str]
    parts: list[Line] = field(default_factory=list)


@dataclass
class PaidV1:
    """The first version."""

    __message_type__ = "order.paid"

    order_id: UUID


@dataclass
class Paid:
    """The second version."""

    __message_type__ = "order.paid"
    __message_version__ = 2

    order_id: UUID
    amount: Decimal
    at: datetime
    colour: Colour
    lines: list[Line]
    prefixItems: int = 0  # noqa: N815 - a field that is called as a keyword


class Card(BaseModel):
    """One of two."""

    kind: Literal["card"]
    number: tuple[int, int]


class Cash(BaseModel):
    """The other."""

    kind: Literal["cash"] = "cash"


class Refund(BaseModel):
    """A model of Pydantic."""

    how: Annotated[Card | Cash, Field(discriminator="kind")]
    cents: Annotated[int, Field(gt=0)] = 1


class Shipped(msgspec.Struct):
    """A struct of msgspec."""

    order_id: int
    next: Shipped | None = None


class Audited(TypedDict):
    """What another consumer reads of the same message."""

    order_id: int


PAID = Paid(ORDER, Decimal("1.50"), datetime.fromisoformat("2026-11-15T12:00:00Z"), Colour.RED, [Line("a", (1, "b"))])

REFUND = Refund(how=Card(kind="card", number=(1, 2)))


@pytest.fixture
def described(sqlite_url: str) -> dict[str, Any]:
    """The document of a shop with every kind of handler."""
    with Inbox(sqlite_url, service="shop", code_version="1.4.2") as inbox:

        @inbox.on(Paid, key="order_id")
        def pay(message: Message[Paid], tx: Any) -> None:
            """Book a payment.

            More of it.
            """

        @inbox.upcast(PaidV1)
        def up(old: PaidV1) -> Paid:
            raise NotImplementedError

        inbox.on("order.paid", consumer="mailer", version=1)(lambda _message, _tx: None)
        inbox.on("order/refund requested", key=lambda message: message.id)(refund)
        inbox.on("order.shipped")(shipped)
        inbox.on("order.refused", version=2)(lambda _message, _tx: None)
        inbox.upcast("order.refused", 1)(lambda data: data)
        inbox.on("file.sent", raw=True)(lambda _message, _tx: None)
        inbox.on("order.shipped", consumer="audit")(audited)
        inbox.add_sink("billing", Nowhere())
        return document(inbox.context)


class Nowhere:
    """A sink."""

    def publish(self, message: Message) -> None:
        """Do nothing."""


def refund(message: Message[Refund], tx: Any) -> None:
    del message, tx


def audited(message: Message[Audited], tx: Any) -> None:
    del message, tx


def shipped(message: Message[Shipped], tx: Any) -> None:
    del message, tx


@pytest.mark.needs("AsyncAPI's schema")
def test_it_is_a_document_of_asyncapi(described: dict[str, Any]) -> None:
    official = json.loads(install.asyncapi_schema().read_text())
    problems = [f"{error.json_path}: {error.message}" for error in Draft7Validator(official).iter_errors(described)]
    assert problems == []
    described["channels"]["inbox"]["messages"] = 7
    assert not Draft7Validator(official).is_valid(described)


def test_every_reference_leads_somewhere(described: dict[str, Any]) -> None:
    found = list(references(described))
    assert len(found) > 15
    for reference in found:
        place: Any = described
        for part in reference.removeprefix("#/").split("/"):
            place = place[int(part) if isinstance(place, list) else part]


def references(value: Any) -> list[str]:
    """The references in a document."""
    if isinstance(value, list):
        return [found for one in value for found in references(one)]
    if not isinstance(value, dict):
        return []
    own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
    return own + [found for one in value.values() for found in references(one)]


@pytest.mark.parametrize(
    ("name", "fits", "wrong"),
    [
        ("order.paid.v2", PAID, {"order_id": 1}),
        ("order.paid.v1", PaidV1(ORDER), {}),
        (
            "order_refund_requested.v1",
            Refund(how=Card(kind="card", number=(1, 2))),
            {"how": {"kind": "card", "number": [1]}},
        ),
        ("order.shipped.v1", Shipped(1, Shipped(2)), {"order_id": 1, "next": {"order_id": "x"}}),
    ],
)
def test_a_schema_fits_what_is_sent(described: dict[str, Any], name: str, fits: Any, wrong: Any) -> None:
    schema = {**described, "$ref": f"#/components/messages/{name}/payload"}
    Draft7Validator.check_schema(described["components"]["messages"][name]["payload"])
    Draft7Validator(schema).validate(json.loads(payload.encode(fits)))
    assert not Draft7Validator(schema).is_valid(wrong)


def test_it_says_what_the_handlers_take(described: dict[str, Any]) -> None:
    messages, operations = described["components"]["messages"], described["operations"]
    assert set(messages) == {
        *(
            "order.paid.v1",
            "order.paid.v2",
            "order.refused.v1",
            "order.refused.v2",
            "order_refund_requested.v1",
            "order.shipped.v1",
        ),
        "file.sent.v1",
    }
    assert described["info"]["title"] == "shop"
    assert described["info"]["version"] == "1.4.2"
    assert messages["order_refund_requested.v1"]["name"] == "order/refund requested"
    assert messages["order.refused.v1"]["summary"] == "Version 1, which is brought up to version 2."
    assert "summary" not in messages["order.paid.v1"]  # the mailer takes it as it is
    assert messages["file.sent.v1"]["contentType"] == "application/octet-stream"
    assert "payload" not in messages["order.refused.v1"]
    assert len(messages["order.shipped.v1"]["payload"]["allOf"]) == 2
    pay = operations["shop.order.paid.v2"]
    assert (pay["action"], pay["summary"]) == ("receive", "Book a payment.")
    assert pay["description"] == "In order of arrival for each value of `order_id`."
    assert [one["$ref"].rpartition("/")[2] for one in pay["messages"]] == ["order.paid.v2", "order.paid.v1"]
    assert [one["$ref"].rpartition("/")[2] for one in operations["mailer.order.paid.v1"]["messages"]] == [
        "order.paid.v1"
    ]
    assert not [name for name in operations if "billing" in name or "outbox" in name]
    assert all("/" not in name and " " not in name for name in (*messages, *operations))


def test_the_command_prints_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "described_shop.py").write_text(
        'from onceward import Inbox\ninbox = Inbox("sqlite:///shop.db", service="shop")\n'
        '@inbox.on("order.paid")\ndef pay(message, tx):\n    "Book it."\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    done = CliRunner().invoke(
        application, ["asyncapi", "described_shop:inbox", "--title", "Shop", "--api-version", "2"]
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["info"]["title"] == "Shop"
    assert found["info"]["version"] == "2"
    assert found["operations"]["shop.order.paid.v1"]["summary"] == "Book it."
    assert not (tmp_path / "shop.db").exists()  # it only looks at the program
    assert CliRunner().invoke(application, ["asyncapi", "--store", "sqlite:///shop.db"]).exit_code == 2
