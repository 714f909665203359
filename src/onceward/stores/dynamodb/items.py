"""Items as DynamoDB has them: their values, where each kind stands in the table, and numbers that are given once.

One table, of which the keys are two texts, `pk` and `sk`. docs/dynamodb.md shows the layout.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from threading import Lock
from typing import Any, NamedTuple

Item = dict[str, Any]
LOWEST = 2**63
"""Added to a place within a key, so that places below zero are in order as text."""
EPOCH = 1_767_225_600_000_000
"""Numbers of messages count microseconds from 2026 on,"""
NODES = 14
"""and end in so many bits that are the process's own."""


class Place(NamedTuple):
    """Where an item is."""

    pk: str
    sk: str


def encoded(value: Any) -> dict[str, Any]:  # noqa: PLR0911 - one for each type
    """A value as DynamoDB takes it."""
    if isinstance(value, str):
        return {"S": value}
    if isinstance(value, bool):
        return {"BOOL": value}
    if isinstance(value, int | float):
        return {"N": repr(value)}
    if isinstance(value, bytes):
        return {"B": value}
    if value is None:
        return {"NULL": True}
    if isinstance(value, Mapping):
        return {"M": encoded_item(value)}
    return {"L": [encoded(one) for one in value]}


def encoded_item(item: Mapping[str, Any]) -> dict[str, Any]:
    """An item; what is None is left out."""
    return {name: encoded(value) for name, value in item.items() if value is not None}


def decoded(value: Mapping[str, Any]) -> Any:
    """A value as it was."""
    ((kind, inner),) = value.items()
    if kind == "N":
        return int(inner) if inner.lstrip("-").isdigit() else float(inner)
    if kind == "M":
        return decoded_item(inner)
    if kind == "L":
        return [decoded(one) for one in inner]
    if kind == "B":
        return bytes(inner)
    return None if kind == "NULL" else inner


def decoded_item(item: Mapping[str, Any]) -> Item:
    """An item as it was."""
    return {name: decoded(value) for name, value in item.items()}


def place_of(item: Mapping[str, Any]) -> Place:
    """Where an item is that was read."""
    return Place(item["pk"], item["sk"])


def numbered(number: int) -> str:
    """A number as text that is in order."""
    return f"{number:019d}"


class Layout:
    """Where everything is: the partitions of one inbox in its table."""

    def __init__(self, table: str, prefix: str, shards: int) -> None:
        self.table, self.prefix, self.shards = table, prefix, shards

    def at(self, kind: str, *parts: object, sk: str = "-") -> Place:
        """An item of a kind."""
        return Place("#".join([self.prefix + kind, *map(str, parts)]), sk)

    # The ledger

    def ledger(self, consumer: int, source: int, stored_id: bytes) -> Place:
        """What was ever accepted, by its identity; destinations of one id are beside each other."""
        length = {b"u": 17, b"d": 33}.get(stored_id[:1]) or (stored_id.find(b"\0") % (len(stored_id) + 1))
        return self.at("L", consumer, source, stored_id[:length].hex(), sk=stored_id[length:].hex() or "-")

    def done(self, seq: int) -> Place:
        """What has become of a message; of one with a key, where it is in its key until then."""
        return self.at("H", seq % self.shards, sk=numbered(seq))

    def about(self, seq: int, kind: str, number: object) -> Place:
        """What else is kept about a message."""
        return self.at("M", seq, sk=f"{kind}#{number}")

    def copies(self, seq: int) -> Place:
        """The copies of a message."""
        return self.at("D", seq % self.shards, sk=numbered(seq))

    def case(self, slot: int) -> Place:
        """A mismatch."""
        return self.at("Z", sk=f"{slot:013d}")

    # The queue

    def ready(self, seq: int) -> Place:
        """A message without a key that may be claimed."""
        return self.at("Q", seq % self.shards, sk="r#" + numbered(seq))

    def timed(self, seq: int) -> Place:
        """One that may be claimed later."""
        return self.at("Q", seq % self.shards, sk="t#" + numbered(seq))

    def parked(self, seq: int) -> Place:
        """One that no worker claims."""
        return self.at("X", seq % self.shards, sk=numbered(seq))

    def in_key(self, key_hash: int, place: int, seq: int) -> Place:
        """A message with a key."""
        return self.at("K", key_hash, sk=f"{place + LOWEST:020d}#{numbered(seq)}")

    def head(self, key_hash: int) -> Place:
        """A key that has messages."""
        return self.at("Q", key_hash % self.shards, sk=f"k#{key_hash}")

    def unhandled(self, seq: int) -> Place:
        """A message that waits to be fanned out."""
        return self.at("U", sk=numbered(seq))

    # The rest

    @property
    def version(self) -> Place:
        """The version of the catalog."""
        return self.at("C", sk="version")

    def worker(self, number: int) -> Place:
        """A registered process."""
        return self.at("W", sk=str(number))


class Numbers:
    """Numbers of messages: in the order of their giving, as far as clocks agree, and never the same twice."""

    def __init__(self) -> None:
        self.node: int | None = None
        """The process's own: it is given by the table."""
        self._last = 0
        self._lock = Lock()

    def moment(self) -> int:
        """Microseconds since 1970, each given once in this process."""
        with self._lock:
            self._last = max(self._last + 1, time.time_ns() // 1000)
            return self._last

    def next(self) -> int:
        """A number for a message."""
        assert self.node is not None  # noqa: S101 - asked for before
        return (self.moment() - EPOCH) << NODES | self.node


def moment_of(seq: int) -> int:
    """When a number was given, in microseconds since 1970."""
    return (seq >> NODES) + EPOCH
