"""What the moves of a Redis store yield, and how rows and answers travel: JSON with the bytes beside it.

A number of Lua is a double, so what is larger travels as text: tokens, hashes, and places as twenty digits, which sort
as numbers do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from onceward.domain.reference import split
from onceward.errors import ConfigurationError
from onceward.flow import Flow, StoreRequest
from onceward.stores.moves.ledger import Mismatch, NewRow

T = TypeVar("T")
Raw = Sequence[bytes | str]
HIGHEST = 10**20


@dataclass(slots=True)
class Ask(StoreRequest):
    """Call a function of the library, which is a whole transaction; the answer is its value and the bytes beside it."""

    function: str
    given: Mapping[str, Any] = field(default_factory=dict)
    raw: Raw = ()
    reads: bool = False
    """It changes nothing, and so a server that is out of memory answers it as well."""


class End(Ask):
    """The same, with what the handlers have recorded."""


class Received(NamedTuple):
    """What the transaction that is open receives, each under its number, and what is locked for it."""

    rows: Sequence[tuple[NewRow, int]] = ()
    locks: Sequence[str] = ()
    holder: str = ""


@dataclass(slots=True)
class Keep(StoreRequest):
    """Remember what the transaction receives."""

    received: Received


class Kept(StoreRequest):
    """The answer is what was kept."""


def asked(function: str, given: Mapping[str, Any] | None = None, raw: Raw = ()) -> Flow[Any]:
    """The answer of a function that changes nothing; with bytes beside it, both."""
    return _answer(Ask(function, given or {}, raw, reads=True))


def done(function: str, given: Mapping[str, Any] | None = None, raw: Raw = ()) -> Flow[Any]:
    """The answer of a function that changes something."""
    return _answer(Ask(function, given or {}, raw))


def _answer(ask: Ask) -> Flow[Any]:
    value, _ = yield ask
    return value


def both(ask: Ask) -> Flow[tuple[Any, list[bytes]]]:
    """The answer of a function with the bytes beside it."""
    value, bodies = yield ask
    return value, bodies


def constant(value: T) -> Flow[T]:
    """An answer that takes no question."""
    yield from ()
    return value


def big(number: int | None) -> str | None:
    """A number that a double may not hold."""
    return None if number is None else str(number)


def digits(number: int | None) -> str | None:
    """A place or a sequence."""
    if number is None:
        return None
    if not 0 <= number < HIGHEST:
        raise ConfigurationError(f"a Redis store orders by numbers from 0 to 10**20, and not by {number}")
    return f"{number:020}"


def whole(text: str | float | None) -> int | None:
    """A number that came as text."""
    return None if text is None else int(text)


def counter(consumer: int, aggregate: str | None, key: str | None) -> str:
    """Whose numbers are counted."""
    return f"{consumer}\x00{aggregate or ''}\x00{key or ''}"


def row_given(row: NewRow, *, outgoing: bool = False) -> dict[str, Any]:
    """What the library must know of a message."""
    reference = split(row["headers"])[1]
    sequence = row["sequence"]
    found = {
        "n": row["ordinal"],
        "c": row["consumer"],
        "s": row["source"],
        "th": str(row["type_hash"]),
        "u": row["subscription"],
        "h": big(row["key_hash"]),
        "p": digits(row["place"]),
        "d": row["destination"],
        "x": row["cause"],
        "y": row["unplaced"],
        "o": outgoing or None,
        "b": None if reference is None else reference.name,
        "due": big(row["due_at"]),
        "due_in": big(row["due_in"]),
    }
    if sequence is not None:
        found |= {"q": digits(sequence), "before": digits(max(0, sequence - 1)), "g": counter_of(row)}
    return {name: value for name, value in found.items() if value is not None}


def counter_of(row: NewRow) -> str:
    """Whose numbers a message counts in."""
    return counter(row["consumer"], row["aggregate"], row["key"])


def row_raw(row: NewRow) -> Raw:
    """What the library keeps of a message and does not look at, or nearly."""
    described = {
        "consumer": row["consumer"],
        "source": row["source"],
        "id": row["id"],
        "type": row["type"],
        "version": row["version"],
        "key": row["key"],
        "key_from": row["key_from"],
        "aggregate": row["aggregate"],
        "position": big(row["position"]),
        "headers": row["headers"],
        "destination": row["destination"],
        "cause": row["cause"],
    }
    return (row["stored_id"], row["hash"], json.dumps(described), row["body"])


def rows_raw(rows: Sequence[NewRow]) -> list[bytes | str]:
    """The same of several."""
    return [part for row in rows for part in row_raw(row)]


def _due_given(mismatch: Mismatch) -> dict[str, str | None]:
    return {"due": big(mismatch["due_at"]), "due_in": big(mismatch["due_in"])}


def mismatch_given(mismatch: Mismatch) -> dict[str, Any]:
    """What is kept of a mismatch, beside its hash and body."""
    given: dict[str, Any] = {name: mismatch[name] for name in ("seq", "type", "version", "key", "headers")}
    return {**given, "th": str(mismatch["type_hash"]), "position": big(mismatch["position"]), **_due_given(mismatch)}
