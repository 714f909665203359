"""What a handler writes through `tx`, and what DynamoDB makes of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from onceward import ConfigurationError, Inbox, InvalidMessage, Message
from onceward.errors import SchemaMissing, StoreConflict, StoreUnavailable
from onceward.testing.memory import MemoryStore
from tests.dynamodb.place import DynamoPlace
from tests.waiting import wait_until

TYPE = "order.paid"


def effects(inbox: Inbox, place: DynamoPlace) -> list[int]:
    """The numbers of the items that are there."""
    store: Any = inbox.store
    items = store.client().scan(TableName=place.effects_table, ConsistentRead=True)["Items"]
    return sorted(int(item["id"]["N"]) for item in items)


def test_every_kind_of_write_is_committed_with_the_message(inbox: Inbox, place: DynamoPlace) -> None:
    """Put, update, delete and condition; a read sees what is committed, and not what is recorded."""
    seen = []

    @inbox.on(TYPE)
    def pay(message: Message, tx: Any) -> None:
        table = place.effects_table
        if message.id == "first":
            tx.put(table, {"id": 1, "n": 1})
            tx.put(table, {"id": 2})
            seen.append(tx.get(table, {"id": 1}))
        else:
            found = tx.get(table, {"id": 1})
            tx.update(table, {"id": 1}, "SET n = n + :one", "n = :seen", values={":one": 1, ":seen": found["n"]})
            tx.delete(table, {"id": 2})
            tx.condition(table, {"id": 3}, "attribute_not_exists(id)")
            seen.append(tx.query(table, "id = :id", {":id": 1}))

    for name in ("first", "second"):
        inbox.receive(source="shop", id=name, type=TYPE, data={})
        inbox.drain()
    store: Any = inbox.store
    item = store.client().get_item(TableName=place.effects_table, Key={"id": {"N": "1"}})["Item"]
    assert (seen[0], seen[1][0]["n"], item["n"]) == (None, 1, {"N": "2"})
    assert effects(inbox, place) == [1]


def test_a_condition_that_does_not_hold_undoes_it_all_and_it_runs_again(inbox: Inbox, place: DynamoPlace) -> None:
    """Nothing is written and nothing charged; when the handler reads again, it holds."""
    runs = []

    @inbox.on(TYPE)
    def pay(message: Message, tx: Any) -> None:
        runs.append(message.attempt)
        store: Any = inbox.store
        if len(runs) == 1:  # another program is faster
            store.client().put_item(TableName=place.effects_table, Item={"id": {"N": "1"}})
        known = tx.get(place.effects_table, {"id": 1}) if len(runs) > 1 else None
        tx.put(place.effects_table, {"id": 2})
        tx.condition(place.effects_table, {"id": 1}, f"attribute_{'exists' if known else 'not_exists'}(id)")

    inbox.receive(source="shop", id="m1", type=TYPE, data={})
    wait_until(lambda: inbox.drain() or len(runs) > 1, message="the second run")
    assert (runs, effects(inbox, place)) == ([1, 1], [1, 2])


def test_one_write_too_many_is_refused_at_its_line_with_both_numbers(inbox: Inbox, place: DynamoPlace) -> None:
    """A hundred less what finishing needs, and what the message sends."""
    recorded = []

    @inbox.on("fits")
    def fits(_message: Message, tx: Any) -> None:
        for number in range(96):
            tx.put(place.effects_table, {"id": number})

    @inbox.on("too.many")
    def too_many(message: Message, tx: Any) -> None:
        message.send("thanks", {})
        for number in range(100):
            tx.put(place.effects_table, {"id": 1000 + number})
            recorded.append(number)

    inbox.receive(source="shop", id="m1", type="fits", data={})
    receipt = inbox.receive(source="shop", id="m2", type="too.many", data={})
    inbox.drain()
    assert (len(effects(inbox, place)), len(recorded)) == (96, 94)
    detail = inbox.admin.message(receipt.seq or 0)
    assert detail is not None
    assert "recorded 95 writes, and at most 94 fit" in detail.history[-1].error


def test_of_fifty_copies_at_once_one_takes_effect(inbox: Inbox, place: DynamoPlace) -> None:
    """Received and handled at the same time, by several inboxes, keyed and not."""
    others = [Inbox(place.url) for _ in range(4)]
    for one in (inbox, *others):

        @one.on("plain")
        @one.on("keyed", key="k")
        def handle(message: Message, tx: Any) -> None:
            place.write(tx, (message.id, message.type))

    def copy(number: int) -> str:
        one = (inbox, *others)[number % 5]
        kind = ("plain", "keyed")[number % 2]
        call = one.process if number % 4 < 2 else one.receive
        while True:
            with suppress(StoreUnavailable, StoreConflict):  # a sender that hears of either delivers again
                status = call(source="shop", id=f"same {kind}", type=kind, data={"k": 1}).status
                one.drain()
                return status

    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(copy, range(50)))
    wait_until(lambda: inbox.drain() or inbox.admin.stats().done == 2, message="both to be done")
    assert sorted(place.effects(inbox)) == [("same keyed", "keyed"), ("same plain", "plain")]
    assert set(answers) <= {"accepted", "duplicate"}
    for one in others:
        one.close()


def test_what_it_cannot_do_is_refused_with_a_sentence(place: DynamoPlace, inbox: Inbox) -> None:
    """A caller's transaction, SQL, a body without a blob store, a table that is not there, an odd address."""
    with pytest.raises(ConfigurationError, match="no transactions of a caller's own"):
        inbox.receive(source="shop", id="m1", type=TYPE, data={}, tx=object())
    with pytest.raises(ConfigurationError, match="onceward migrate"):
        inbox.store.migration_sql()
    with pytest.raises(InvalidMessage, match="blob store"):
        inbox.receive(source="shop", id="m1", type=TYPE, body=b"x" * 300_001)
    with Inbox(place.url.replace(place.table, "nowhere")) as other, pytest.raises(SchemaMissing, match="migrate"):
        other.receive(source="shop", id="m1", type=TYPE, data={})
    for url in ("dynamodb://region", "dynamodb://region/table?sharks=1", "dynamodb://region/table?shards=0"):
        with pytest.raises(ConfigurationError, match=r"dynamodb://region/table|1 to 64"):
            Inbox(url)


def test_what_it_lacks_and_where_it_is_are_findings(inbox: Inbox) -> None:
    """Who asks sees that a stand-in proves no durability."""
    ((level, what, _),) = inbox.store.findings()
    assert (level, "DynamoDB Local and moto lose acknowledged writes" in what) == ("warning", True)
    lacks = {"interactive transactions", "callers' transactions", "large bodies"}
    assert not lacks & inbox.store.capabilities
    assert "large bodies" in MemoryStore().capabilities


def test_a_large_body_goes_to_the_blob_store(place: DynamoPlace, tmp_path: Any) -> None:
    """And comes back."""
    with Inbox(place.url, blobs=f"file://{tmp_path}") as inbox:
        inbox.migrate()
        seen = []

        @inbox.on(TYPE)
        def look(message: Message, _tx: Any) -> None:
            seen.append(len(message.data["k"]))

        inbox.receive(source="shop", id="m1", type=TYPE, data={"k": "x" * 400_000})
        inbox.drain()
    assert seen == [400_000]
