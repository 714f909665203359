"""The memory store: what a recorder does that a connection does not (R66)."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from onceward import Inbox, Message
from onceward.admin.doctor import examine
from onceward.testing import MemoryStore
from onceward.testing.memory import Recorder

PAID = {"source": "shop", "type": "order.paid"}


def receive(inbox: Inbox, message_id: str, **data: Any) -> None:
    inbox.receive(source="shop", id=message_id, type="order.paid", data=data)


def rows(inbox: Inbox, table: str) -> dict[Any, Any]:
    with inbox.transaction() as tx:
        found: dict[Any, Any] = tx.rows(table)
    return found


def count(_message: Message, tx: Recorder) -> None:
    before = tx.get("counters", "paid")
    tx.condition("counters", "paid", before)
    tx.put("counters", "paid", n=(before or {"n": 0})["n"] + 1)


def test_a_condition_that_no_longer_holds_commits_nothing_and_the_message_runs_again() -> None:
    """Read, and write what follows from it: in a group of many, and by several workers at once, none is lost."""
    with Inbox(MemoryStore()) as inbox:
        inbox.on("order.paid")(count)
        for number in range(30):
            receive(inbox, f"m{number}")
        while inbox.drain(concurrency=3) or inbox.admin.messages(status="retrying"):
            pass
        assert rows(inbox, "counters") == {"paid": {"n": 30}}
        assert inbox.admin.stats().failures == 0, "none of them is charged"


def test_what_is_recorded_is_not_seen_before_the_end() -> None:
    seen: list[Any] = []

    def handler(_message: Message, tx: Recorder) -> None:
        tx.put("orders", 7, paid=True)
        seen.append((tx.get("orders", 7), rows(inbox, "orders")))

    with Inbox(MemoryStore()) as inbox:
        inbox.on("order.paid")(handler)
        receive(inbox, "m1")
        inbox.drain()
        assert (seen, rows(inbox, "orders")) == ([(None, {})], {7: {"paid": True}})


def test_update_and_delete() -> None:
    def handler(message: Message, tx: Recorder) -> None:
        if message.id == "delete":
            tx.delete("orders", 7)
        else:
            tx.update("orders", 7, paid=True)

    with Inbox(MemoryStore()) as inbox:
        inbox.on("order.paid")(handler)
        with inbox.transaction() as tx:
            tx.put("orders", 7, amount=10)
        receive(inbox, "update")
        inbox.drain()
        assert rows(inbox, "orders") == {7: {"amount": 10, "paid": True}}
        receive(inbox, "delete")
        inbox.drain()
        assert rows(inbox, "orders") == {}


def test_a_dry_run_shows_what_would_be_written_and_keeps_nothing() -> None:
    with Inbox(MemoryStore()) as inbox:
        inbox.on("order.paid")(count)
        seq = inbox.receive(source="shop", id="m1", type="order.paid").seq
        report = inbox.admin.dry_run(seq)
        assert [(change.table, change.kind, change.after) for change in report.changes] == [
            ("counters", "insert", {"n": 1})
        ]
        assert len(report.statements) == 2
        assert (rows(inbox, "counters"), inbox.admin.stats().due) == ({}, 1)


def test_many_threads_and_an_event_loop_share_a_store() -> None:
    store = MemoryStore()
    with Inbox(store) as inbox, Inbox(store, service="default") as other:
        inbox.on("order.paid", key="k")(count)

        def produce(number: int) -> None:
            for i in range(10):
                receive(inbox, f"{number}-{i}", k=i % 3)

        threads = [threading.Thread(target=produce, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()

        async def beside() -> None:
            for i in range(10):
                await other.areceive(source="shop", id=f"async-{i}", type="order.paid", data={"k": i % 3})

        asyncio.run(beside())
        for thread in threads:
            thread.join()
        while inbox.drain(concurrency=3) or inbox.admin.messages(status="retrying"):
            pass
        assert rows(inbox, "counters") == {"paid": {"n": 50}}


def test_the_doctor_and_the_guarantees_say_what_it_lacks() -> None:
    with Inbox(MemoryStore()) as inbox:
        inbox.on("order.paid")(count)
        said = " ".join(f"{one.level}: {one.what}" for one in examine(inbox))
        assert "warning: the store is in memory and is gone with this process" in said
        assert "records what a handler writes" in said
        assert "count (order.paid for default): weaker" in said


def test_two_inboxes_on_one_store_see_one_inbox() -> None:
    store = MemoryStore()
    with Inbox(store) as inbox, Inbox(store) as other:
        receive(inbox, "m1")
        assert other.receive(source="shop", id="m1", type="order.paid", data={}).status == "duplicate"
