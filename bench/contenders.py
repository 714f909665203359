"""`python -m bench.contenders KIND ...`: one process of a race, for onceward and for the loop of the textbooks."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg

from bench.inboxes import GROUP, ONE, inbox_at, wide_inbox_at
from bench.messages import messages
from bench.race import ready, take_part, tell, wait_for_end
from onceward import Inbox

WARM = 3
"""How many messages a process has handled before its race."""


def drain(url: str) -> None:
    """A worker process that drains the backlog."""
    _drain(inbox_at(url))


def drain_wide(url: str) -> None:
    """The same, of many types."""
    _drain(wide_inbox_at(url))


def _drain(inbox: Inbox) -> None:
    inbox.store.check_schema()
    take_part(inbox.drain)
    inbox.close()


def receive_many(url: str, count: str) -> None:
    """A process that stores batches."""
    inbox = inbox_at(url)
    inbox.receive(source="bench", id=f"warm-{time.time_ns()}", type="nothing", data={"number": 0})
    deliveries = messages(int(count), "nothing")
    take_part(lambda: _statuses(inbox.receive_many(deliveries)))  # type: ignore[arg-type] # the shape of receive's arguments
    inbox.close()


def receive_tasks(url: str, count: str, callers: str) -> None:
    """A process whose tasks each store one message at a time."""
    asyncio.run(_receive_tasks(inbox_at(url), int(count), int(callers)))


async def _receive_tasks(inbox: Inbox, count: int, callers: int) -> None:
    warm = [
        {"source": "bench", "id": f"warm-{time.time_ns()}-{n}", "type": "nothing", "data": {"number": 0}}
        for n in range(3)
    ]
    for message in warm:
        await inbox.areceive(**message)  # type: ignore[arg-type] # the shape of receive's arguments
    waiting = iter(messages(count, "nothing"))

    async def call() -> list[Any]:
        return [await inbox.areceive(**message) for message in waiting]

    ready()
    found = await asyncio.gather(*(call() for _ in range(callers)))
    tell(_statuses([receipt for part in found for receipt in part]))
    await inbox.aclose()


def receive_threads(url: str, count: str, callers: str) -> None:
    """A process whose threads each store one message at a time."""
    inbox = inbox_at(url)
    inbox.receive(source="bench", id=f"warm-{time.time_ns()}", type="nothing", data={"number": 0})
    take_part(
        lambda: _statuses(in_threads(int(callers), messages(int(count), "nothing"), lambda m: inbox.receive(**m)))
    )
    inbox.close()


def inline(url: str, count: str, threads: str) -> None:
    """A process whose threads handle messages inline."""
    inbox = inbox_at(url)
    for number in range(int(threads)):
        inbox.process(source="bench", id=f"warm-{time.time_ns()}-{number}", type="nothing", data={"number": 0})
    deliveries = messages(int(count), "update")
    take_part(lambda: _statuses(in_threads(int(threads), deliveries, lambda m: inbox.process(**m))))
    inbox.close()


def direct(url: str, count: str) -> None:
    """A process that handles batches as they come, and what a busy machine made it queue."""
    inbox = inbox_at(url)
    inbox.process_many([_warm(number) for number in range(WARM)])
    batches = in_batches(messages(int(count), "update"))

    def work() -> dict[str, int]:
        receipts = [one for batch in batches for one in inbox.process_many(batch)]
        if any(one.outcome == "queued" for one in receipts):
            inbox.drain()
        return _statuses(receipts)

    take_part(work)
    inbox.close()


def stored_first(url: str, count: str) -> None:
    """A process that stores batches, and handles what it has stored."""
    inbox = inbox_at(url)
    inbox.receive_many([_warm(number) for number in range(WARM)])
    inbox.drain()
    batches = in_batches(messages(int(count), "update"))

    def work() -> dict[str, int]:
        found = _statuses([one for batch in batches for one in inbox.receive_many(batch)])
        inbox.drain()
        return found

    take_part(work)
    inbox.close()


def consume(url: str, address: str) -> None:
    """A process that reads a broker, and handles what it reads before it is acknowledged."""
    inbox = inbox_at(url)
    inbox.store.check_schema()
    inbox.add_source(address, source="bench", mode="direct", batch=GROUP)
    worker = threading.Thread(target=inbox.run)
    ready()
    worker.start()
    wait_for_end()
    while worker.is_alive():
        inbox.stop()
        worker.join(0.05)
    tell([])
    inbox.close()


def _warm(number: int) -> Any:
    return {"source": "bench", "id": f"warm-{time.time_ns()}-{number}", "type": "nothing", "data": {"number": 0}}


def in_batches(deliveries: list[dict[str, Any]]) -> list[Any]:
    """As a broker would give them."""
    return [deliveries[first : first + GROUP] for first in range(0, len(deliveries), GROUP)]


def textbook(url: str, count: str, threads: str) -> None:
    """The inbox of the articles: one transaction for each message; insert the id, apply, commit."""
    deliveries = messages(int(count), "update")
    connections = [psycopg.connect(url) for _ in range(int(threads))]
    take_part(lambda: Counter(in_threads(int(threads), deliveries, textbook_message, connections)))


def textbook_message(message: dict[str, Any], connection: psycopg.Connection[Any]) -> str:
    """What the textbooks do with a message; says whether it was new."""
    with connection.transaction():
        fresh = connection.execute(
            "INSERT INTO textbook (id, payload, processed_at) VALUES (%s, %s, now()) ON CONFLICT DO NOTHING RETURNING id",
            [message["id"], json.dumps(message["data"])],
        ).fetchone()
        if fresh and connection.execute(ONE["postgres"], [message["data"]["row"]]).rowcount != 1:
            raise LookupError(message["data"]["row"])
    return "accepted" if fresh else "duplicate"


def textbook_sqlite(path: str, count: str) -> None:
    """The textbook's loop on SQLite, with the journal and the durability that onceward has there."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    deliveries = messages(int(count), "update")
    take_part(lambda: Counter(_textbook_sqlite(connection, message) for message in deliveries))


def _textbook_sqlite(connection: sqlite3.Connection, message: dict[str, Any]) -> str:
    try:
        connection.execute("INSERT INTO textbook VALUES (?, ?)", [message["id"], json.dumps(message["data"])])
    except sqlite3.IntegrityError:
        connection.rollback()
        return "duplicate"
    connection.execute(ONE["sqlite"], [message["data"]["row"]])
    connection.commit()
    return "accepted"


def in_threads(
    count: int, deliveries: list[dict[str, Any]], call: Callable[..., Any], each: list[Any] | None = None
) -> list[Any]:
    """Call for every delivery, from so many threads; each has its own part and, if given, its own connection."""
    answers: list[list[Any]] = [[] for _ in range(count)]

    def work(number: int) -> None:
        extra = [] if each is None else [each[number]]
        for delivery in deliveries[number::count]:
            answers[number].append(call(delivery, *extra))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [answer for part in answers for answer in part]
    if len(found) != len(deliveries):
        raise RuntimeError(f"{len(deliveries) - len(found)} calls failed")
    return found


def _statuses(receipts: list[Any]) -> dict[str, int]:
    return Counter(receipt.status for receipt in receipts)


KINDS = (
    drain,
    drain_wide,
    receive_many,
    receive_tasks,
    receive_threads,
    inline,
    direct,
    stored_first,
    consume,
    textbook,
    textbook_sqlite,
)

if __name__ == "__main__":
    {kind.__name__: kind for kind in KINDS}[sys.argv[1]](*sys.argv[2:])
