"""The `tx` of a handler: it records writes, which DynamoDB gets as one transaction together with "done".

Invariant: nothing that is recorded is visible before the move that finishes the message. Reads go past it, to what is
committed, strongly consistent; a write that depends on a read says so in a condition, and where that does not hold at
the end, nothing is written and the message runs again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from boto3.dynamodb.types import TypeDeserializer, TypeSerializer

from onceward.errors import ContractViolation
from onceward.stores import recording
from onceward.stores.dry_run import Statement
from onceward.stores.dynamodb.unit import MOST_WRITES

Row = Mapping[str, Any]
_SERIALIZER, _DESERIALIZER = TypeSerializer(), TypeDeserializer()


class Recorder(recording.Recorder):
    """Writes to items of any table of the account and region, in the types of boto3's tables."""

    def __init__(self) -> None:
        super().__init__()
        self.needed: Callable[[], int] = lambda: 0
        """How many writes finishing takes."""
        self.kept: Any = None
        """What a message that is processed inline is to be stored as,"""
        self.messages = 0
        """how many they are,"""
        self.calls: list[Any] = []
        """those that handlers were called with,"""
        self.release: Sequence[Any] = ()
        """and what gives its key back."""

    # Writes

    def put(self, table: str, item: Row, condition: str | None = None, **more: Any) -> None:
        """Write an item, whether there is one or not, or only where a condition holds."""
        self._record("Put", table, {"Item": _typed(item)}, condition, more)

    def update(self, table: str, key: Row, expression: str, condition: str | None = None, **more: Any) -> None:
        """Change an item by an update expression; `values` and `names` are what it refers to."""
        self._record("Update", table, {"Key": _typed(key), "UpdateExpression": expression}, condition, more)

    def delete(self, table: str, key: Row, condition: str | None = None, **more: Any) -> None:
        """Remove an item, if there is one."""
        self._record("Delete", table, {"Key": _typed(key)}, condition, more)

    def condition(self, table: str, key: Row, condition: str, **more: Any) -> None:
        """A condition on an item that is not written: where it does not hold at the end, nothing is committed."""
        self._record("ConditionCheck", table, {"Key": _typed(key)}, condition, more)

    def statements_shown(self) -> list[Statement]:
        """The writes, to be shown."""
        shown = []
        for write in self.writes:
            ((kind, arguments),) = write.items()
            about = {name: one for name, one in arguments.items() if name != "TableName"}
            shown.append(Statement(f"{kind} {arguments['TableName']}", repr(about)))
        return shown

    def room(self) -> int:
        """How many writes a handler may record."""
        return MOST_WRITES - self.needed()

    def refuse_too_many(self, more: int = 0) -> None:
        """Raise where there are more writes than one transaction of DynamoDB can have."""
        wanted, room = len(self.writes) + more, self.room()
        if wanted > room:
            raise ContractViolation(
                f"the handler recorded {wanted} writes, and at most {room} fit: DynamoDB writes at most {MOST_WRITES} "
                f"items in one transaction, of which finishing this message takes {MOST_WRITES - room} (with what it "
                "sends). Write less for each message, or send yourself messages that do the rest"
            )

    def _record(
        self, kind: str, table: str, write: dict[str, Any], condition: str | None, more: Mapping[str, Any]
    ) -> None:
        self.check()
        names, values = more.pop("names", None), more.pop("values", None)  # type: ignore[attr-defined] # ours alone
        if more:
            raise TypeError(f"unknown arguments {sorted(more)}; there are condition, names and values")
        self.refuse_too_many(1)
        made: dict[str, Any] = {"TableName": table, **write}
        if condition is not None:
            made["ConditionExpression"] = condition
        if names:
            made["ExpressionAttributeNames"] = dict(names)
        if values:
            made["ExpressionAttributeValues"] = _typed(values)
        self.record({kind: made})


class SyncRecorder(Recorder):
    """For `def` handlers: reads answer at once."""

    def __init__(self, ask: Callable[[str, Mapping[str, Any]], Any]) -> None:
        super().__init__()
        self._ask = ask

    def get(self, table: str, key: Row) -> dict[str, Any] | None:
        """An item as it is committed; None where there is none."""
        self.check()
        return _found(self._ask("get_item", _reading(table, key)))

    def query(self, table: str, expression: str, values: Row, names: Row | None = None) -> list[dict[str, Any]]:
        """The committed items of a key condition, all of them."""
        self.check()
        items: list[dict[str, Any]] = []
        asked = _querying(table, expression, values, names)
        while True:
            answer = self._ask("query", asked)
            items += _items(answer)
            if "LastEvaluatedKey" not in answer:
                return items
            asked["ExclusiveStartKey"] = answer["LastEvaluatedKey"]


class AsyncRecorder(Recorder):
    """For `async def` handlers: reads are awaited."""

    def __init__(self, ask: Callable[[str, Mapping[str, Any]], Awaitable[Any]]) -> None:
        super().__init__()
        self._ask = ask

    async def get(self, table: str, key: Row) -> dict[str, Any] | None:
        """An item as it is committed; None where there is none."""
        self.check()
        return _found(await self._ask("get_item", _reading(table, key)))

    async def query(self, table: str, expression: str, values: Row, names: Row | None = None) -> list[dict[str, Any]]:
        """The committed items of a key condition, all of them."""
        self.check()
        items: list[dict[str, Any]] = []
        asked = _querying(table, expression, values, names)
        while True:
            answer = await self._ask("query", asked)
            items += _items(answer)
            if "LastEvaluatedKey" not in answer:
                return items
            asked["ExclusiveStartKey"] = answer["LastEvaluatedKey"]


def _typed(item: Row) -> dict[str, Any]:
    return {name: _SERIALIZER.serialize(value) for name, value in item.items()}


def _reading(table: str, key: Row) -> dict[str, Any]:
    return {"TableName": table, "Key": _typed(key), "ConsistentRead": True}


def _querying(table: str, expression: str, values: Row, names: Row | None) -> dict[str, Any]:
    asked = {"TableName": table, "KeyConditionExpression": expression, "ConsistentRead": True}
    asked["ExpressionAttributeValues"] = _typed(values)
    return {**asked, "ExpressionAttributeNames": dict(names)} if names else asked


def _found(answer: Mapping[str, Any]) -> dict[str, Any] | None:
    found = answer.get("Item")
    return None if found is None else {name: _DESERIALIZER.deserialize(value) for name, value in found.items()}


def _items(answer: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
    return [
        {name: _DESERIALIZER.deserialize(value) for name, value in item.items()} for item in answer.get("Items", ())
    ]
