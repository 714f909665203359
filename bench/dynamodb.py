"""`python -m bench.dynamodb`: the write units of a message, beside the same by hand; writes docs/dynamodb.md.

DynamoDB Local counts as Amazon does. By hand means ledger, queue and a record of the end, in the fewest writes that do
it. Who works beside a message (leases, looking) is not of the message.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from onceward import Inbox, Message
from proof import report
from proof.__main__ import FIGURES
from tests.dynamodb.place import DynamoPlace
from tests.servers import DynamoServer

PAGE = Path(__file__).parents[1] / "docs" / "dynamodb.md"
RECORD = FIGURES / "dynamodb-units.json"
BEGIN, END = "<!-- made by `python -m bench.dynamodb` -->\n", "<!-- end -->\n"
MOST = 1.2
"""What onceward may write, over what is written by hand."""
KINDS = {"without a key": None, "with a key": "k"}
_OPERATIONS = ("put_item", "update_item", "delete_item", "transact_write_items")


def units(client: Any, act: Callable[[], Any]) -> float:
    """How many write units an act takes."""
    taken: list[float] = []

    def ask(params: dict[str, Any], **_: Any) -> None:
        params["ReturnConsumedCapacity"] = "TOTAL"

    def count(parsed: dict[str, Any], **_: Any) -> None:
        capacity = parsed.get("ConsumedCapacity") or []
        each = capacity if isinstance(capacity, list) else [capacity]
        taken.extend(float(one.get("WriteCapacityUnits") or one["CapacityUnits"]) for one in each)

    events = [("dynamodb", "".join(part.title() for part in name.split("_"))) for name in _OPERATIONS]
    for service, operation in events:
        client.meta.events.register(f"provide-client-params.{service}.{operation}", ask, f"ask {operation}")
        client.meta.events.register(f"after-call.{service}.{operation}", count, f"count {operation}")
    try:
        act()
    finally:
        for service, operation in events:
            client.meta.events.unregister(f"provide-client-params.{service}.{operation}", ask, f"ask {operation}")
            client.meta.events.unregister(f"after-call.{service}.{operation}", count, f"count {operation}")
    return sum(taken)


def by_hand(client: Any, table: str, effects: str, *, keyed: bool) -> None:
    """The least that does the same: ledger and queue, a claim, and an end with an effect and when that was."""
    text = {name: {"S": name} for name in ("ledger", "queue", "head", "done", "-", "worker")}

    def key(name: str) -> dict[str, Any]:
        return {"pk": text[name], "sk": text["-"]}

    def update(name: str) -> dict[str, Any]:
        expression = {"UpdateExpression": "SET claim = :w", "ExpressionAttributeValues": {":w": text["worker"]}}
        return {"TableName": table, "Key": key(name), **expression}

    put = {"TableName": table, "ConditionExpression": "attribute_not_exists(pk)"}
    if keyed:  # the next number of its key
        client.update_item(**update("head"))
    client.transact_write_items(
        TransactItems=[{"Put": {**put, "Item": key("ledger")}}, {"Put": {**put, "Item": key("queue")}}]
    )
    client.update_item(**update("head" if keyed else "queue"))
    end: list[dict[str, Any]] = [
        {"Delete": {"TableName": table, "Key": key("queue")}},
        {"Put": {**put, "Item": key("done")}},
        {"Put": {"TableName": effects, "Item": {"id": {"N": "1"}}}},
    ]
    client.transact_write_items(TransactItems=[*end, {"Update": update("head")}] if keyed else end)


def of_a_message(inbox: Inbox, place: DynamoPlace, key: str | None) -> tuple[float, float]:
    """From its receive to its effect: onceward's write units, and those of the same by hand."""

    @inbox.on("order.paid", key=key)
    def pay(message: Message, tx: Any) -> None:
        place.write(tx, (message.id, "paid"))

    def send(name: str) -> None:
        inbox.receive(source="shop", id=name, type="order.paid", data={"k": name})

    def both() -> None:
        send("m1")
        inbox.drain()

    store: Any = inbox.store
    client = store.client()
    send("warm")
    inbox.drain()  # the catalog is known, and the node has its number
    idle = units(client, inbox.drain)
    ours = units(client, both) - idle
    return ours, units(client, lambda: by_hand(client, place.table, place.effects_table, keyed=key is not None))


def measured() -> dict[str, Any]:
    """Of a message of each kind."""
    os.environ |= {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}
    found: dict[str, Any] = {}
    with DynamoServer(in_memory=True) as server:
        for kind, key in KINDS.items():
            place = DynamoPlace(server.address)
            with closing(Inbox(place.url)) as inbox:
                inbox.migrate()
                place.prepare(inbox)
                ours, hand = of_a_message(inbox, place, key)
            found[kind] = {"onceward": ours, "by_hand": hand}
        return {"dynamodb": server.version, "units": found}


def table(found: dict[str, Any]) -> str:
    """The figures as the page has them."""
    lines = [
        "| write units, for a body of less than 1 kB and a handler with one write | onceward | the same by hand |",
        "|---|---:|---:|",
        *(f"| {kind} | {one['onceward']:g} | {one['by_hand']:g} |" for kind, one in found["units"].items()),
    ]
    return "\n".join(lines) + "\n"


def with_table(page: str) -> str:
    """The page with the table as it should be."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table(json.loads(RECORD.read_text(encoding='utf-8')))}{END}{after}"


if __name__ == "__main__":
    report.write(str(RECORD), {"run": "dynamodb", **measured()})
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
