"""Models: read from JSON, refused with their fields, written the same in every process (R58)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, NewType, TypedDict
from uuid import UUID

import jsonschema
import pytest

from onceward import InvalidMessage
from onceward.domain import identity, payload
from onceward.domain.data_types import Model
from onceward.errors import DataInvalid
from onceward.message import Delivery
from onceward.models.model import model_of
from tests.typed.orders import ID, KINDS, REFUSED, SECRET, WRONG, Line, State, order

Number = NewType("Number", int)


@dataclass
class Address:
    """A class that has everything."""

    street: str
    floor: int | None = None
    kind: Literal["home", 1] = "home"


class Place(TypedDict, total=False):
    """All of it may be missing."""

    lat: float
    address: Address


@dataclass
class Strict:
    """It has a mind of its own."""

    count: int
    made: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        if self.count < 0:
            raise RuntimeError(f"{SECRET} is negative")


def model(wanted: Any) -> Model:
    found = model_of("@inbox.on('t')", wanted)
    assert found is not None
    return found


def read(wanted: Any, data: Any) -> Any:
    body = payload.encode(data)
    return model(wanted).read(payload.decode(body), body)


READ: list[tuple[Any, Any, Any]] = [
    (int, 7, 7),
    (float, 7, 7.0),
    (bool, True, True),
    (None, None, None),
    (str | int, 7, 7),
    (str | None, None, None),
    (list[int], [1], [1]),
    (list, [1, "a"], [1, "a"]),
    (tuple[int, str], [1, "a"], (1, "a")),
    (tuple[int, ...], [1, 2], (1, 2)),
    (set[str], ["a", "b"], {"a", "b"}),
    (Mapping[str, list[bool]], {"a": [True]}, {"a": [True]}),
    (dict, {"a": 1}, {"a": 1}),
    (Annotated[Number, "an id"], 7, 7),
    (date, "2026-05-04", date(2026, 5, 4)),
    (time, "12:30", time(12, 30)),
    (datetime, "2026-05-04T12:30:00", datetime(2026, 5, 4, 12, 30)),  # noqa: DTZ001 - as it was sent
    (Decimal, "1.50", Decimal("1.50")),
    (Decimal, 12.5, Decimal("12.5")),
    (Decimal, 10**30, Decimal(10**30)),
    (UUID, str(ID), ID),
    (bytes, "aGk=", b"hi"),
    (State, "paid", State.PAID),
    (Literal["a", 1], 1, 1),
    (Address, {"street": "x", "unknown": 1}, Address("x")),
    (Address, {"street": "x", "floor": 2, "kind": 1}, Address("x", 2, 1)),
    (Place, {"address": {"street": "x"}, "unknown": 1}, {"address": Address("x")}),
    (list[Address | None], [None, {"street": "x"}], [None, Address("x")]),
    (Strict, {"count": 1, "made": 7}, Strict(1)),
]


@pytest.mark.parametrize(("wanted", "data", "value"), READ)
def test_data_becomes_what_is_wanted(wanted: Any, data: Any, value: Any) -> None:
    found = read(wanted, data)
    assert (found, type(found)) == (value, type(value))
    jsonschema.validate(data, model(wanted).schema())


NOT_READ: list[tuple[Any, Any, str]] = [
    (int, "7", "must be a whole number, not text"),
    (int, True, "must be a whole number, not true or false"),
    (int, 7.0, "must be a whole number, not a number"),
    (bool, 1, "must be true or false, not a whole number"),
    (str, None, "must be text, not null"),
    (float, "1", "must be a number, not text"),
    (str | int, [], "is none of str | int"),
    (list[int], {"0": 1}, "must be a list, not an object"),
    (list[int], [1, "a", "b", 2.5], "[] must be a whole number, not text; [] must be a whole number, not a number"),
    (tuple[int, str], [1], "must be a list of 2"),
    (set[Any], [[1]], "must be a list of values that can be in a set"),
    (dict[str, int], {SECRET: SECRET}, "[] must be a whole number, not text"),
    (dict[str, int], [], "must be an object, not a list"),
    (date, "tomorrow", "must be a date as in ISO 8601"),
    (datetime, 1_700_000_000, "must be a date and time as in ISO 8601, not a whole number"),
    (Decimal, "NaN", "must be a decimal number"),
    (Decimal, 0.1234567890123456, "has more digits than JSON's numbers keep (15): send it as text"),
    (UUID, SECRET, "must be a UUID"),
    (bytes, "a b", "must be bytes as base64"),
    (State, SECRET, "must be one of paid, late"),
    (Literal["a", 1], True, "must be one of a, 1"),
    (Address, [], "must be an object, not a list"),
    (Address, {"floor": "x"}, "street is missing; floor must be a whole number, not text"),
    (list[Address], [{}, {}, {"street": 1}], "[].street is missing; [].street must be text, not a whole number"),
    (Place, {"address": {}}, "address.street is missing"),
    (Strict, {"count": -1}, "refused by Strict with RuntimeError"),
]


@pytest.mark.parametrize(("wanted", "data", "problem"), NOT_READ)
def test_data_that_does_not_fit_is_refused_by_its_fields(wanted: Any, data: Any, problem: str) -> None:
    with pytest.raises(DataInvalid) as refused:
        read(wanted, data)
    assert str(refused.value).partition(": ")[2] == problem
    assert refused.value.__cause__ is None
    assert refused.value.__context__ is None


def test_only_some_fields_are_told() -> None:
    wanted = TypedDict("wanted", {f"field_{letter}": int for letter in "abcdefghijkl"})  # type: ignore[misc] # many
    with pytest.raises(DataInvalid, match=r"field_j is missing; and 2 more$") as refused:
        read(wanted, {})
    assert len(refused.value.fields) == 12


@pytest.mark.parametrize("kind", KINDS)
def test_an_order_comes_as_it_was_sent(kind: str) -> None:
    body = payload.encode(order(kind))
    assert model(KINDS[kind][0]).read(payload.decode(body), body) == order(kind)
    jsonschema.validate(json.loads(body), model(KINDS[kind][0]).schema())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("data", [WRONG, REFUSED], ids=["wrong", "refused"])
def test_no_value_is_told(kind: str, data: Any) -> None:
    if data is REFUSED and kind in ("dataclass", "TypedDict"):
        data = WRONG
    with pytest.raises(DataInvalid) as refused:
        read(KINDS[kind][0], data)
    assert SECRET not in str(refused.value)
    assert refused.value.__context__ is None


@pytest.mark.parametrize("kind", KINDS)
def test_what_an_upcaster_returns_is_taken(kind: str) -> None:
    """Its model as it is, data or another model by its fields."""
    wanted = model(KINDS[kind][0])
    assert wanted.read(order(kind), None) == order(kind)
    read_again = wanted.read(order("dataclass"), None)
    if kind == "pydantic":  # which takes text for bytes as it is
        assert read_again == order(kind).model_copy(update={"note": b"aGk="})
    elif kind == "TypedDict":  # which has no default values
        assert read_again == {**order(kind), "parent": None, "unsaid": {}}
    else:
        assert read_again == order(kind)


class Loose(Enum):
    """Of what JSON has no form for."""

    NOTHING = object()


REFUSED_MODELS: list[tuple[Any, str]] = [
    (object, ""),
    (complex, "complex is not read from JSON. Use a dataclass"),
    (dict[int, str], "the names of a mapping are text in JSON, not int"),
    (list[bytearray], "bytearray is not read from JSON"),
]


@pytest.mark.parametrize(("wanted", "problem"), REFUSED_MODELS)
def test_what_cannot_be_read_is_refused_at_once(wanted: Any, problem: str) -> None:
    if not problem:
        assert model_of("@inbox.on('t')", wanted) is None
        return
    with pytest.raises(Exception, match=problem) as refused:
        model_of("@inbox.on('t')", wanted)
    assert str(refused.value).startswith("@inbox.on('t'): data cannot be read as ")


WRITTEN: list[tuple[Any, str]] = [
    (datetime(2026, 5, 4, 12, 30), '"2026-05-04T12:30:00"'),  # noqa: DTZ001 - as it was given
    (date(2026, 5, 4), '"2026-05-04"'),
    (time(12, 30), '"12:30:00"'),
    (Decimal("1.50"), '"1.50"'),
    (ID, f'"{ID}"'),
    (State.PAID, '"paid"'),
    ({"a": b"hi"}, '{"a":"aGk="}'),
    ({"b": {3, 1, 2}, "a": frozenset("ab")}, '{"a":["a","b"],"b":[1,2,3]}'),
    (Line("x", Decimal("1.5")), '{"price":"1.5","sku":"x"}'),
    ([Address("x", None, 1)], '[{"floor":null,"kind":1,"street":"x"}]'),
]


@pytest.mark.parametrize(("data", "body"), WRITTEN)
def test_what_json_has_no_form_for_is_written(data: Any, body: str) -> None:
    assert payload.encode(data).decode() == body


@pytest.mark.parametrize("data", [Loose.NOTHING, {"a": Decimal("NaN")}, {ID: 1}, complex(1)])
def test_what_has_no_form_at_all_is_refused(data: Any) -> None:
    with pytest.raises(InvalidMessage, match="data cannot be written as JSON"):
        payload.encode(data)


_WRITING = """
from onceward.domain import payload
from tests.typed.orders import KINDS, order
print(*(payload.encode(order(kind)).hex() for kind in KINDS))
"""


def test_models_are_the_same_bytes_in_every_process() -> None:
    """A sender that tries again in another process must not send other bytes under the same id: that is a mismatch."""
    written = set()
    for seed in ("1", "2", "3"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", _WRITING]
        written.add(subprocess.run(command, env=environment, capture_output=True, check=True, timeout=60).stdout)
    assert len(written) == 1


def test_a_message_has_the_version_that_its_model_names() -> None:
    class Newer(dict[str, Any]):
        __message_version__ = 3

    arguments: dict[str, Any] = {"source": "s", "id": "1", "type": "t"}
    assert Delivery.of(**arguments, data=Newer()).version == 3
    assert Delivery.of(**arguments, data=Newer(), version=2).version == 2
    assert Delivery.of(**arguments, data={}).version == 1


def test_a_key_may_be_a_uuid_or_an_enum() -> None:
    assert identity.key_text(ID) == str(ID)
    assert identity.key_text(State.PAID) == "paid"
    with pytest.raises(InvalidMessage, match="has no text form"):
        identity.key_text(Decimal("7.0"))  # nor is 7 the same text
