"""A service on a store that records: messages with and without a key, one that fails first, and one that sends.

Its effects are one list in the store, in the order of their writing: what is lost, doubled or out of order shows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from onceward import Inbox, Message, Settings
from onceward.retry import RetryPolicy
from onceward.runtime.runner import perform
from onceward.steps.membership import take_over_process
from tests.waiting import wait_until

KEYED, SENDS, FAILS = "order.placed", "order.paid", "order.refused"
ORDERS = [(f"{kind} {number}", kind) for number in range(2) for kind in (KEYED, SENDS, FAILS, KEYED)]
IN_ORDER = [f"{number} {name}" for number, (name, kind) in enumerate(ORDERS) if kind == KEYED]
SETTINGS = Settings(
    lease=timedelta(hours=1),  # no heartbeat comes between the requests that are counted
    poll=timedelta(milliseconds=50),
    retry=RetryPolicy(attempts=5, first=timedelta(milliseconds=1), jitter=0),
)


class Place(NamedTuple):
    """Where the inbox is, and the effects."""

    url: str
    prefix: str
    effects_table: str = ""
    """Of DynamoDB, where they are one item; on Redis they are a list under the prefix."""

    @property
    def number(self) -> int:
        """The item's own, of the prefix."""
        return int("".join(filter(str.isdigit, self.prefix)))


def write(place: Place, tx: Any, entry: str) -> None:
    """Record an effect."""
    if not place.effects_table:
        tx.rpush(f"{place.prefix}effects", entry)
        return
    append = "SET entries = list_append(if_not_exists(entries, :none), :one)"
    tx.update(place.effects_table, {"id": place.number}, append, values={":none": [], ":one": [entry]})


def effects(place: Place, inbox: Inbox) -> list[str]:
    """The effects that are there."""
    with inbox.transaction() as tx:
        if place.effects_table:
            item = tx.get(place.effects_table, {"id": place.number})
            return [str(entry) for entry in (item or {"entries": ()})["entries"]]
        return [entry.decode() for entry in tx.read("LRANGE", f"{place.prefix}effects", 0, -1)]


def built(place: Place, kind: str) -> Inbox:
    """The service, with `def` or `async def` handlers."""
    inbox = Inbox(place.url, prefix=place.prefix, settings=SETTINGS)

    def handle(message: Message, tx: Any) -> None:
        write(place, tx, message.id)
        if message.type == SENDS:
            message.send("receipt.wanted", {"of": message.id})
        if message.type == FAILS and message.attempt == 1:
            raise RuntimeError("as the test asks")

    async def handle_awaited(message: Message, tx: Any) -> None:
        handle(message, tx)

    handler: Any = handle if kind == "sync" else handle_awaited
    inbox.on(KEYED, key="key")(handler)
    inbox.on(SENDS)(handler)
    inbox.on(FAILS)(handler)
    return inbox


def deliveries() -> list[dict[str, Any]]:
    """What the producer sends, the first delivery of each."""
    return [
        {"source": "shop", "id": f"{number} {name}", "type": kind, "data": {"key": "k"}}
        for number, (name, kind) in enumerate(ORDERS)
    ]


# What a victim does


def work(inbox: Inbox, kind: str) -> None:
    """Receive, together and alone, and handle what is there."""
    first, *rest = deliveries()
    inbox.receive(**first)
    inbox.receive_many(rest)  # type: ignore[arg-type] # as above
    inbox.receive(**first)
    if kind == "sync":
        inbox.drain()
    else:
        asyncio.run(_drained(inbox))


async def _drained(inbox: Inbox) -> None:
    await inbox.adrain()
    await inbox.aclose()


def inline(inbox: Inbox, kind: str) -> None:
    """Handle each as it comes."""
    if kind == "sync":
        for one in deliveries():
            inbox.process(**one)
    else:
        asyncio.run(_processed(inbox))


async def _processed(inbox: Inbox) -> None:
    for one in deliveries():
        await inbox.aprocess(**one)
    await inbox.aclose()


SCENARIOS: Mapping[str, Callable[[Inbox, str], None]] = {"work": work, "inline": inline}


# What its successor does, and what must be true then


def drain_until(inbox: Inbox, condition: Callable[[], bool], message: str) -> None:
    """Work, again and again, until it is so."""

    def worked() -> bool:
        inbox.drain()
        return condition()

    wait_until(worked, message=message)


def recover(place: Place, pid: int) -> None:
    """Take over what the dead process held, take all deliveries again, and work until nothing is left; then look."""
    with built(place, "sync") as inbox:
        for name in {one.process for one in inbox.admin.workers() if one.pid == pid}:
            perform(inbox.store, partial(take_over_process, inbox.context, name, f"process {pid} is dead"))
        inbox.receive_many(deliveries())  # type: ignore[arg-type] # its arguments
        drain_until(inbox, lambda: inbox.admin.stats().done == len(ORDERS), "the end of all that was sent")
        check(place, inbox)


def check(place: Place, inbox: Inbox) -> None:
    """Nothing is lost, doubled or out of order, and nothing is left behind."""
    found = effects(place, inbox)
    assert sorted(found) == sorted(one["id"] for one in deliveries()), found
    assert [entry for entry in found if entry in IN_ORDER] == IN_ORDER, found
    sent = [row for row in inbox.admin.messages(outgoing=True) if row.type == "receipt.wanted"]
    assert len(sent) == sum(kind == SENDS for _, kind in ORDERS)
    stats = inbox.admin.stats()
    assert (stats.dead, stats.quarantined, inbox.admin.running(), inbox.admin.workers()) == (0, 0, [], [])
