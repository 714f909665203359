"""Models of dataclasses, TypedDicts and what Python has: read without any package.

A reader is made for each class when the handler is registered; what cannot be read is refused there. Types are exact:
"7" is no number and 1 is no truth. Unknown fields are left out, so that a producer may add some.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import types
import typing
from collections import abc
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import Any
from uuid import UUID

from onceward.domain import payload
from onceward.models import json_schema
from onceward.models.fields import fields_of, unwrapped
from onceward.models.model import misfit, name_of

Problems = list[tuple[str, str]]
Reader = Callable[[Any, str, Problems], Any]
"""Takes a value, where it is and the problems so far; what it returns counts only where it has added none."""

EXACT = 15
"""So many digits a number of JSON keeps in every program."""
_LISTS: dict[Any, Callable[[list[Any]], Any]] = {
    list: list,
    set: set,
    frozenset: frozenset,
    abc.Sequence: list,
    abc.Collection: list,
    abc.Iterable: list,
    abc.Set: frozenset,
}
_JSON = {str: "text", int: "a whole number", float: "a number", bool: "true or false", type(None): "null"}


class PlainModel:
    """A dataclass, a TypedDict, or one of Python's own types of what they have."""

    def __init__(self, wanted: Any) -> None:
        self.name = name_of(wanted)
        self._wanted = wanted
        self._instances = wanted if isinstance(wanted, type) and dataclasses.is_dataclass(wanted) else ()
        self._read = _Readers().of(wanted)

    def read(self, data: Any, body: bytes | None) -> Any:
        """As the class."""
        if body is None:  # of an upcaster
            if isinstance(data, self._instances):
                return data
            data = payload.decode(payload.encode(data))
        problems: Problems = []
        value = self._read(data, "", problems)
        if problems:
            raise misfit(self.name, problems)
        return value

    def schema(self) -> dict[str, Any]:
        """Made of the same types."""
        return json_schema.of(self._wanted)


class _Readers:
    """The readers of one model; a class that refers to itself is read by the reader that is being made."""

    def __init__(self) -> None:
        self._of_classes: dict[Any, Reader] = {}

    def of(self, wanted: Any) -> Reader:  # noqa: C901, PLR0911 - one for each kind of type
        """The reader of a type; raises `TypeError` where there is none."""
        wanted = unwrapped(wanted)
        origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
        if wanted is Any or wanted is object:
            return _anything
        if wanted in _JSON or wanted is None:
            return _exactly(type(None) if wanted is None else wanted)
        if wanted in _FROM_TEXT:
            return _from_text(wanted)
        if origin is typing.Literal:
            return _one_of({(type(one), one): one for one in arguments}, arguments)
        if origin in (typing.Union, types.UnionType):
            some = [one for one in arguments if one is not type(None)]
            if len(some) == 1:
                return _optional(self.of(some[0]))
            return _either(name_of(wanted), [self.of(one) for one in arguments])
        if isinstance(wanted, type) and issubclass(wanted, Enum):
            return _one_of({(type(one.value), one.value): one for one in wanted}, [one.value for one in wanted])
        if (origin or wanted) is tuple and arguments and arguments[-1] is not ...:
            return _fixed([self.of(one) for one in arguments])
        if (origin or wanted) in (dict, abc.Mapping, abc.MutableMapping):
            return self._mapping(arguments)
        if (origin or wanted) is tuple or (origin or wanted) in _LISTS:
            return _listed(_LISTS.get(origin or wanted, tuple), self.of(arguments[0] if arguments else Any))
        if dataclasses.is_dataclass(wanted) or typing.is_typeddict(wanted):
            return self._object(wanted)
        raise TypeError(
            f"{name_of(wanted)} is not read from JSON. Use a dataclass, a TypedDict, a Pydantic model or a msgspec "
            "Struct of text, numbers, dates, UUID, Decimal, Enum, bytes and lists and mappings of them"
        )

    def _mapping(self, arguments: tuple[Any, ...]) -> Reader:
        names, values = arguments or (str, Any)
        if unwrapped(names) not in (str, Any):
            raise TypeError(f"the names of a mapping are text in JSON, not {name_of(names)}")
        read = self.of(values)

        def mapping(value: Any, at: str, problems: Problems) -> Any:
            if not isinstance(value, dict):
                return problems.append((at, _must("an object", value)))
            return {name: read(one, f"{at}[]", problems) for name, one in value.items()}

        return mapping

    def _object(self, wanted: Any) -> Reader:
        if wanted not in self._of_classes:
            made: list[Reader] = []
            self._of_classes[wanted] = lambda *given: made[0](*given)  # noqa: PLW0108 - it is not made yet
            fields = {field.name: self.of(field.type) for field in fields_of(wanted)}
            required = [field.name for field in fields_of(wanted) if field.required]
            made.append(_read_object(wanted, fields, required))
        return self._of_classes[wanted]


def _read_object(wanted: Any, fields: dict[str, Reader], required: list[str]) -> Reader:
    is_typed_dict = typing.is_typeddict(wanted)

    def read(value: Any, at: str, problems: Problems) -> Any:
        if not isinstance(value, dict):
            return problems.append((at, _must("an object", value)))
        before, inside = len(problems), f"{at}." if at else ""
        problems += [(f"{inside}{name}", "is missing") for name in required if name not in value]
        found = {name: one(value[name], f"{inside}{name}", problems) for name, one in fields.items() if name in value}
        if is_typed_dict or len(problems) > before:
            return found
        try:
            return wanted(**found)
        except Exception as error:  # noqa: BLE001 - whatever it has against this data; its text may quote it
            return problems.append((at, f"refused by {wanted.__name__} with {type(error).__name__}"))

    return read


def _must(be: str, value: Any) -> str:
    what = _JSON.get(type(value)) or ("a list" if isinstance(value, list) else "an object")
    return f"must be {be}, not {what}"


def _anything(value: Any, _at: str, _problems: Problems) -> Any:
    return value


def _exactly(wanted: type) -> Reader:
    def read(value: Any, at: str, problems: Problems) -> Any:
        if type(value) is wanted:
            return value
        if wanted is float and type(value) is int:
            return float(value)
        return problems.append((at, _must(_JSON[wanted], value)))

    return read


def _decimal(value: str) -> Decimal:
    number = Decimal(value)
    if not number.is_finite():
        raise InvalidOperation
    return number


def _bytes(value: str) -> bytes:
    return base64.b64decode(value, validate=True)


_FROM_TEXT: dict[Any, tuple[Callable[[str], Any], str]] = {
    datetime: (datetime.fromisoformat, "a date and time as in ISO 8601"),
    date: (date.fromisoformat, "a date as in ISO 8601"),
    time: (time.fromisoformat, "a time as in ISO 8601"),
    Decimal: (_decimal, "a decimal number"),
    UUID: (UUID, "a UUID"),
    bytes: (_bytes, "bytes as base64"),
}


def _from_text(wanted: Any) -> Reader:
    convert, called = _FROM_TEXT[wanted]

    def read(value: Any, at: str, problems: Problems) -> Any:
        text = value
        if wanted is Decimal and type(value) in (int, float):
            text = repr(value)
            if type(value) is float and len(Decimal(text).as_tuple().digits) > EXACT:
                return problems.append((at, f"has more digits than JSON's numbers keep ({EXACT}): send it as text"))
        if not isinstance(text, str):
            return problems.append((at, _must(called, value)))
        try:
            return convert(text)
        except (ValueError, InvalidOperation, binascii.Error):
            return problems.append((at, f"must be {called}"))

    return read


def _one_of(known: dict[tuple[type, Any], Any], allowed: typing.Iterable[Any]) -> Reader:
    words = ", ".join(map(str, allowed))

    def read(value: Any, at: str, problems: Problems) -> Any:
        try:
            return known[type(value), value]
        except (KeyError, TypeError):  # a list is no key
            return problems.append((at, f"must be one of {words}"))

    return read


def _optional(element: Reader) -> Reader:
    def read(value: Any, at: str, problems: Problems) -> Any:
        return None if value is None else element(value, at, problems)

    return read


def _either(name: str, readers: list[Reader]) -> Reader:
    def read(value: Any, at: str, problems: Problems) -> Any:
        tried: list[Problems] = []
        for one in readers:
            found: Problems = []
            result = one(value, at, found)
            if not found:
                return result
            tried.append(found)
        # Where one of them has taken what it is, an object or a list, the others are no help.
        inside = [found for found in tried if any(place != at for place, _ in found)]
        problems.extend(inside[0] if len(inside) == 1 else [(at, f"is none of {name}")])
        return None

    return read


def _listed(make: Callable[[list[Any]], Any], element: Reader) -> Reader:
    def read(value: Any, at: str, problems: Problems) -> Any:
        if not isinstance(value, list):
            return problems.append((at, _must("a list", value)))
        before = len(problems)
        found = [element(one, f"{at}[]", problems) for one in value]
        if len(problems) > before:
            return None
        try:
            return make(found)
        except TypeError:  # a set of what cannot be in one
            return problems.append((at, "must be a list of values that can be in a set"))

    return read


def _fixed(elements: list[Reader]) -> Reader:
    def read(value: Any, at: str, problems: Problems) -> Any:
        if not isinstance(value, list) or len(value) != len(elements):
            return problems.append((at, f"must be a list of {len(elements)}"))
        return tuple(one(each, f"{at}[]", problems) for one, each in zip(elements, value, strict=True))

    return read
