"""A unit of work: what a move reads and writes, committed at once, or not at all where something has changed meanwhile.

Invariant: every item that is changed after it was read carries a stamp; the change has the stamp that was read as its
condition and writes a fresh one. So of two units that read the same item, one commits and the other begins again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from onceward.domain import identity
from onceward.errors import StoreConflict
from onceward.flow import Flow, StoreRequest
from onceward.stores.dynamodb.items import Item, Layout, Numbers, Place, decoded_item, encoded, encoded_item, place_of

T = TypeVar("T")
STAMP = "stamp"
MOST_READ = 100
MOST_WRITES = 100
"""Items in one transaction, of DynamoDB's making."""
TRIES = 40


@dataclass(slots=True)
class Ask(StoreRequest):
    """An operation of DynamoDB; the answer is its answer."""

    operation: str
    arguments: Mapping[str, Any]


@dataclass(slots=True)
class Transact(StoreRequest):
    """Write all of these, or raise `Cancelled` and nothing is written."""

    writes: Sequence[Mapping[str, Any]]
    ends_tx: bool = False
    """Together with what the handler's transaction has recorded, which is over then."""


@dataclass(slots=True)
class Pause(StoreRequest):
    """Others are at the same items: wait so many seconds."""

    seconds: float


class Cancelled(StoreConflict):
    """A condition of a write did not hold, or another transaction was at the same items."""

    def __init__(self, reasons: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__("other processes were at the same items each time; try again")
        self.reasons = reasons
        """What DynamoDB says about each write."""


@dataclass(slots=True)
class Shared:
    """What all moves of a store share."""

    layout: Layout
    clock: Callable[[], int]
    numbers: Numbers = field(default_factory=Numbers)
    places: dict[int, Place] = field(default_factory=dict)
    """Where the messages are that this process has claimed: a hint."""

    def remember(self, seq: int, place: Place) -> None:
        """A message is here, as far as is known."""
        while len(self.places) > 10_000:  # noqa: PLR2004 - a megabyte
            self.places.pop(next(iter(self.places)), None)
        self.places[seq] = place

    def number(self) -> Flow[int]:
        """A new number of a message."""
        if self.numbers.node is None:
            self.numbers.node = (yield from self._new_node()) % 2**14
        return self.numbers.next()

    def _new_node(self) -> Flow[int]:
        pk, sk = self.layout.at("C", sk="nodes")
        answer = yield Ask(
            "update_item",
            {
                "TableName": self.layout.table,
                "Key": encoded_item({"pk": pk, "sk": sk}),
                "UpdateExpression": "ADD n :one",
                "ExpressionAttributeValues": {":one": {"N": "1"}},
                "ReturnValues": "UPDATED_NEW",
            },
        )
        return int(answer["Attributes"]["n"]["N"])


class Unit:
    """Items as they were read, and as they are to be."""

    def __init__(self, base: Shared) -> None:
        self.base, self.layout, self.now = base, base.layout, base.clock()
        self.seen: dict[Place, Item | None] = {}
        self.wanted: dict[Place, Item | None] = {}
        self.guarded: set[Place] = set()
        self.counted: set[Place] = set()
        """Places whose `n` must be as it was read."""

    # Reading: strongly consistent, always

    def get(self, *places: Place) -> Flow[list[Item | None]]:
        """Items by their places; None where there is none."""
        missing = [place for place in dict.fromkeys(places) if place not in self.seen]
        for first in range(0, len(missing), MOST_READ):
            part = missing[first : first + MOST_READ]
            found = yield from self._fetched(part)
            self.seen.update({place: found.get(place) for place in part})
        return [self.item(place) for place in places]

    def _fetched(self, places: Sequence[Place]) -> Flow[dict[Place, Item]]:
        table = self.layout.table
        if len(places) == 1:
            key = encoded_item(places[0]._asdict())
            answer = yield Ask("get_item", {"TableName": table, "Key": key, "ConsistentRead": True})
            return {places[0]: decoded_item(answer["Item"])} if "Item" in answer else {}
        found: dict[Place, Item] = {}
        wanted: Mapping[str, Any] = {
            table: {"Keys": [encoded_item(place._asdict()) for place in places], "ConsistentRead": True}
        }
        while wanted:
            answer = yield Ask("batch_get_item", {"RequestItems": wanted})
            items = [decoded_item(item) for item in answer["Responses"].get(table, ())]
            found.update({place_of(item): item for item in items})
            wanted = answer.get("UnprocessedKeys") or {}
        return found

    def query(  # noqa: PLR0913 - as DynamoDB's
        self,
        pk: str,
        *,
        first: str = "",
        below: str = "\U0010ffff",
        limit: int | None = None,
        backwards: bool = False,
        only: Callable[[Item], bool] | None = None,
        pages: int = 1_000_000,
    ) -> Flow[list[Item]]:
        """Items of a partition in order: those that match, so many at most, from so many pages at most."""
        asked: dict[str, Any] = {
            "TableName": self.layout.table,
            "KeyConditionExpression": "pk = :pk AND sk BETWEEN :first AND :below",
            "ExpressionAttributeValues": encoded_item({":pk": pk, ":first": first or " ", ":below": below}),
            "ConsistentRead": True,
            "ScanIndexForward": not backwards,
        }
        if limit is not None:
            asked["Limit"] = limit if only is None else max(2 * limit, 50)
        found: list[Item] = []
        for _ in range(pages):
            answer = yield Ask("query", asked)
            for raw in answer["Items"]:
                item = decoded_item(raw)
                place = place_of(item)
                self.seen.setdefault(place, item)
                current = self.item(place)
                if current is not None and (only is None or only(current)):
                    found.append(current)
            if "LastEvaluatedKey" not in answer or (limit is not None and len(found) >= limit):
                break
            asked["ExclusiveStartKey"] = answer["LastEvaluatedKey"]
        return found if limit is None else found[:limit]

    def item(self, place: Place) -> Item | None:
        """An item as it is to be."""
        found = self.wanted.get(place, self.seen.get(place)) if place in self.wanted else self.seen.get(place)
        return None if found is None else dict(found)

    # Writing

    def set(self, place: Place, item: Mapping[str, Any]) -> None:
        """Write an item."""
        self.wanted[place] = {name: one for name, one in item.items() if one is not None and name not in ("pk", "sk")}

    def remove(self, place: Place) -> None:
        """Remove an item."""
        self.wanted[place] = None

    def guard(self, place: Place) -> None:
        """Nothing is written unless an item is as it was read."""
        self.guarded.add(place)

    def writes(self) -> list[dict[str, Any]]:
        """What DynamoDB is asked for."""
        made = [one for place, item in self.wanted.items() if (one := self._write(place, item)) is not None]
        checks = [place for place in self.guarded if place not in self.wanted]
        return made + [{"ConditionCheck": self._conditioned(place, {})} for place in checks]

    def _write(self, place: Place, item: Item | None) -> dict[str, Any] | None:
        before = self.seen.get(place)
        if item is None:
            return None if place in self.seen and before is None else {"Delete": self._conditioned(place, {})}
        if before is None:
            put = self._conditioned(place, {})
            del put["Key"]
            return {"Put": {**put, "Item": encoded_item({**place._asdict(), **item, STAMP: identity.new_number()})}}
        changed = {name: one for name, one in item.items() if before.get(name) != one and name != STAMP}
        gone = [name for name in before if name not in item and name not in ("pk", "sk", STAMP)]
        if not changed and not gone:
            return {"ConditionCheck": self._conditioned(place, {})} if place in self.guarded else None
        return {"Update": self._conditioned(place, {**changed, STAMP: identity.new_number()}, gone)}

    def _conditioned(self, place: Place, changed: Mapping[str, Any], gone: Sequence[str] = ()) -> dict[str, Any]:
        """A write on the condition that the item is as it was read."""
        names: dict[str, str] = {}
        values: dict[str, Any] = {}
        write: dict[str, Any] = {"TableName": self.layout.table, "Key": encoded_item(place._asdict())}
        if place in self.seen:
            before = self.seen[place]
            if before is None:
                condition = "attribute_not_exists(pk)"
            elif STAMP in before:
                names["#stamp"], values[":stamp"] = STAMP, encoded(before[STAMP])
                condition = "#stamp = :stamp"
            else:
                names["#stamp"] = STAMP
                condition = "attribute_exists(pk) AND attribute_not_exists(#stamp)"
            if before is not None and place in self.counted:
                values[":n"] = encoded(before["n"])
                condition += " AND n = :n"
            write["ConditionExpression"] = condition
        parts = []
        if changed:
            sets = []
            for index, (name, value) in enumerate(changed.items()):
                names[f"#s{index}"], values[f":s{index}"] = name, encoded(value)
                sets.append(f"#s{index} = :s{index}")
            parts.append("SET " + ", ".join(sets))
        if gone:
            names.update({f"#r{index}": name for index, name in enumerate(gone)})
            parts.append("REMOVE " + ", ".join(f"#r{index}" for index in range(len(gone))))
        if parts:
            write["UpdateExpression"] = " ".join(parts)
        return {
            **write,
            **({"ExpressionAttributeNames": names} if names else {}),
            **({"ExpressionAttributeValues": values} if values else {}),
        }

    def commit(self, *, ends_tx: bool = False) -> Flow[None]:
        """Write it all, or raise `Cancelled` and nothing is written."""
        writes = self.writes()
        if writes or ends_tx:
            yield Transact(writes, ends_tx)


def alone(write: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """A single write as an operation of its own, which costs half of a transaction; None where there is none such."""
    ((kind, arguments),) = write.items()
    operation = {"Put": "put_item", "Update": "update_item", "Delete": "delete_item"}.get(kind)
    return None if operation is None else (operation, dict(arguments))


def pauses() -> Iterator[float]:
    """How long to wait before each further try: others are at the same items."""
    for attempt in range(TRIES):
        yield random.uniform(0.2, 1.0) * min(0.002 * 2**attempt, 0.25)  # noqa: S311 - not a secret


def repeated(work: Callable[[], Flow[T]]) -> Flow[T]:
    """Do it, and do it again where others were faster."""
    for pause in pauses():
        try:
            return (yield from work())
        except Cancelled:
            yield Pause(pause)
    return (yield from work())
