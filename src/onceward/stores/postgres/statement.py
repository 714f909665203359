"""A statement of ours in the words of libpq: numbered parameters, and each value as the bytes that travel.

Values go without their types: the statement says them (`%(seqs)b::bigint[]`), or the column they meet does. Columns of
many records become PostgreSQL's binary arrays, made in one go; psycopg would look at every element for its type, and
that was the larger part of what a message cost on its way in.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.pq import Format

# The number PostgreSQL has given to the type of an element, for good.
_OIDS = {"smallint": 21, "integer": 23, "bigint": 20, "text": 25, "bytea": 17}
_PARAMETER = re.compile(r"%\((\w+)\)(?:s|b::(\w+)\[\])|%%")
_COLUMN = re.compile(r"%\((\w+)\)b::(\w+)\[\]")
_RECORDS = re.compile(r"unnest\(((?:\s*%\(\w+\)b::\w+\[\],?)+\s*)\)(?=\s+AS \w+ \()")
_HEAD = struct.Struct("!iiIii")
_SIZE = struct.Struct("!i")
_NULL = _SIZE.pack(-1)
_BINARY, _TEXT = int(Format.BINARY), int(Format.TEXT)

Encoded = tuple[list[bytes | None], list[int]]
"""Values as they travel, and the format of each."""


@dataclass(frozen=True, slots=True)
class Statement:
    """What is sent, and what it wants to be told."""

    name: str
    sql: bytes
    slots: tuple[tuple[str, str], ...] = ()
    """Its parameters in their order: the name of each, and the type of its elements where it is a column."""
    single: Statement | None = None
    """The same for one record: a row of values is planned and read in half the time that arrays of one take."""

    @classmethod
    def of(cls, name: str, text: str) -> Statement:
        """A statement from our files."""
        slots: dict[tuple[str, str], int] = {}

        def numbered(found: re.Match[str]) -> str:
            if found[0] == "%%":
                return "%"
            kind = found[2] or ""
            number = slots.setdefault((found[1], kind), len(slots) + 1)
            return f"${number}::{kind}[]" if kind else f"${number}"

        one = _RECORDS.sub(lambda found: "(VALUES (" + _COLUMN.sub(r"%(\1)s::\2", found[1]) + "))", text)
        single = cls.of(f"{name}_of_one", one) if one != text else None
        return cls(name, _PARAMETER.sub(numbered, text).encode(), tuple(slots), single)

    def of_records(
        self, records: Sequence[Mapping[str, Any]], shared: Mapping[str, Any]
    ) -> tuple[Statement, Mapping[str, Any]]:
        """What runs it for many records at once, with its parameters."""
        if self.single is not None and len(records) == 1:
            return self.single, {**shared, **records[0]}
        return self, {**shared, **{name: [one[name] for one in records] for name, kind in self.slots if kind}}

    def values(self, params: Mapping[str, Any]) -> list[Any]:
        """The values in their order, for a driver that looks after the rest."""
        return [params[name] for name, _ in self.slots]

    def encoded(self, params: Mapping[str, Any]) -> Encoded:
        """The values as they travel, and in which format each."""
        given = [(params[name], kind) for name, kind in self.slots]
        values = [_array(kind, value) if kind else None if value is None else _scalar(value) for value, kind in given]
        formats = [_BINARY if kind or value.__class__ is bytes else _TEXT for value, kind in given]
        return values, formats


def _scalar(value: Any) -> bytes:
    if value.__class__ is bytes:
        return bytes(value)
    if isinstance(value, str):
        if "\0" in value:  # libpq would take it for the end
            raise psycopg.DataError("PostgreSQL text cannot contain NUL (0x00)")
        return value.encode()
    if value is True or value is False:
        return b"t" if value else b"f"
    if isinstance(value, int):
        return b"%d" % value
    if isinstance(value, float):
        return repr(value).encode()
    raise TypeError(f"a statement of ours cannot take {value!r}")


def _array(kind: str, values: Sequence[Any]) -> bytes:
    nulls = values.count(None)
    head = _HEAD.pack(1 if values else 0, nulls > 0, _OIDS[kind], len(values), 1)
    written = _NULL * nulls if nulls == len(values) else _WRITERS[kind](values)  # of many features none is used
    return (head if values else head[:12]) + written


def _integers(code: str) -> Callable[[Sequence[int | None]], bytes]:
    one = struct.Struct(f"!i{code}")
    size = struct.calcsize(f"!{code}")
    pair = f"i{code}"

    def write(values: Sequence[int | None]) -> bytes:
        if None in values:
            return b"".join([_NULL if value is None else one.pack(size, value) for value in values])
        return struct.pack("!" + pair * len(values), *[part for value in values for part in (size, value)])

    return write


def _bytes(values: Sequence[bytes | None]) -> bytes:
    size = _SIZE.pack
    return b"".join([_NULL if value is None else size(len(value)) + value for value in values])


def _texts(values: Sequence[str | None]) -> bytes:
    return _bytes([None if value is None else value.encode() for value in values])


_WRITERS: dict[str, Callable[[Sequence[Any]], bytes]] = {
    "smallint": _integers("h"),
    "integer": _integers("i"),
    "bigint": _integers("q"),
    "text": _texts,
    "bytea": _bytes,
}

Asked = tuple[Statement, Mapping[str, Any]]
"""A statement of ours and its parameters."""
