"""Versions of a type: handlers for each, upcasters between them, and what nobody knows is dead, unread (R20)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from onceward import ConfigurationError, Message, one_row
from onceward.runtime.heartbeat import Membership
from tests.contract.behaviour import Steps, wrote
from tests.contract.harness import LATER, TYPE, Shop
from tests.order.conftest import on_every_store
from tests.order.ledger import Clerk, journal, statuses


def telling(message: Message) -> Steps:
    """A behaviour whose effect says what the handler saw."""
    yield wrote(message, f"v{message.version} {json.dumps(message.data, sort_keys=True)}")


def handle(shop: Shop, *versions: int, **options: Any) -> None:
    """Register a handler for each of the versions; their effects say which one ran."""
    for version in versions:

        def behaviour(message: Message, version: int = version) -> Steps:
            yield wrote(message, f"handler {version}")

        shop.handle(behaviour=behaviour, version=version, **options)


def states(shop: Shop) -> dict[str, str]:
    """What each message waits for in the queue. A status would say "due" as soon as a short rest is over."""
    found = dict(shop.sql(f"SELECT seq, state FROM {shop.prefix}queue"))
    return {message_id: found[seq] for message_id, seq in shop.seqs.items() if seq in found}


@on_every_store
def test_each_version_has_its_own_handler(shop: Shop) -> None:
    """Also when they come in one group, and inline."""
    handle(shop, 1, 2, 5)
    for version in (1, 2, 5):
        shop.receive(f"stored {version}", version=version)
    shop.drain()
    for version in (1, 2, 5):
        assert shop.process(f"inline {version}", version=version).finished
    assert shop.notes() == [
        *((f"inline {version}", f"handler {version}") for version in (1, 2, 5)),
        *((f"stored {version}", f"handler {version}") for version in (1, 2, 5)),
    ]


@on_every_store
def test_upcasters_lead_to_the_next_handler(shop: Shop) -> None:
    """Version 1 becomes 2, then 3, where a handler is; what was stored stays as it came."""
    shop.handle(behaviour=telling, version=3)
    shop.inbox.upcast(TYPE, 1)(lambda data: {**data, "currency": "EUR"})
    shop.inbox.upcast(TYPE, 2)(lambda data: {"amount": data})
    shop.receive("old", data={"value": 7}, version=1)
    shop.receive("newer", data={"value": 8, "currency": "USD"}, version=2)
    shop.receive("newest", data={"amount": {}}, version=3)
    shop.drain()
    shop.process("inline", data={"value": 9}, version=1)
    assert shop.notes() == [
        ("inline", 'v3 {"amount": {"currency": "EUR", "value": 9}}'),
        ("newer", 'v3 {"amount": {"currency": "USD", "value": 8}}'),
        ("newest", 'v3 {"amount": {}}'),
        ("old", 'v3 {"amount": {"currency": "EUR", "value": 7}}'),
    ]
    detail = shop.detail("old")
    assert (detail.version, detail.body) == (1, b'{"value":7}')


def test_a_handler_of_the_very_version_comes_before_an_upcaster(shop: Shop) -> None:
    """Version 1 is handled as it is; version 2, which has no handler, becomes 3."""
    handle(shop, 1, 3)
    for version in (1, 2):
        shop.inbox.upcast(TYPE, version)(lambda data: data)
    for version in (1, 2, 3):
        shop.receive(f"m{version}", version=version)
    shop.drain()
    assert shop.notes() == [("m1", "handler 1"), ("m2", "handler 3"), ("m3", "handler 3")]


@pytest.mark.parametrize("version", [0, 3, 2**31 - 1])
def test_an_unknown_version_is_dead_and_says_what_is_known(shop: Shop, version: int) -> None:
    """Never half-read: no handler sees it; the reason names the versions that are handled and upcast.

    D28: one that is newer than all of them is first tried again, as any other failure is: the program that knows it
    may be about to start.
    """
    handle(shop, 2, 4)
    shop.inbox.upcast(TYPE, 1)(lambda data: data)
    shop.receive("stored", version=version)
    shop.drain()
    assert not shop.process("inline", version=version).finished
    for message_id in ("stored", "inline"):
        assert shop.status(message_id) == ("retrying" if version > 4 else "dead")
    shop.finish()
    for message_id in ("stored", "inline"):
        assert shop.status(message_id) == "dead"
        error = shop.error(message_id)
        assert f"no handler for version {version} of 'order.paid'" in error
        assert "handled versions: 2, 4; upcasters: 1" in error
    assert shop.effects() == []


def test_a_release_that_knows_the_version_takes_it_up(shop: Shop) -> None:
    """R18, D28: also without a person, where it comes before the budget of the message is used up."""
    handle(shop, 1, retry=replace(LATER, attempts=2))
    shop.receive("m1", version=2)
    shop.receive("m2", version=2)
    shop.drain()
    newer = shop.another()
    handle(newer, 1, 2)
    shop.sql(f"UPDATE {shop.prefix}queue SET due_at = 0 WHERE seq = {shop.seqs['m1']}")
    shop.drain()
    assert statuses(shop, ["m1", "m2"]) == {"m1": "dead", "m2": "retrying"}
    assert newer.inbox.admin.redrive(shop.seqs["m1"]) == 1
    shop.hurry()
    newer.drain()
    assert shop.notes() == [("m1", "handler 2"), ("m2", "handler 2")]


@pytest.mark.parametrize(("mine", "theirs"), [(1, 2), (2, 1)])
def test_a_version_that_another_worker_knows_is_left_to_it(shop: Shop, mine: int, theirs: int) -> None:
    """D28: while a release goes on, old and new workers leave each other's messages alone, uncharged, and in order."""
    handle(shop, mine, key="k", retry=replace(LATER, attempts=1))
    other = shop.another()
    handle(other, theirs, key="k", retry=replace(LATER, attempts=1))
    ids = [f"m{number}" for number in range(6)]
    for number, message_id in enumerate(ids):
        version = theirs if number % 2 == 0 else mine
        shop.receive(message_id, data={"k": number // 4}, version=version)
    living = [Membership(one.inbox.context, one.inbox.store) for one in (shop, other)]
    for membership in living:
        membership.start()
    try:
        shop.drain()
        assert states(shop) == {**dict.fromkeys(ids[::2], "retry"), **dict.fromkeys(ids[1::2], "waiting")}
        for one in (other, shop) * 2:
            shop.hurry()
            one.drain()
    finally:
        for membership in living:
            membership.stop()
    assert {note for _, note in shop.notes()} == {f"handler {mine}", f"handler {theirs}"}
    assert (statuses(shop, ids), shop.count("attempt")) == (dict.fromkeys(ids, "done"), 0)


@on_every_store
def test_an_upcaster_that_raises_is_an_attempt_of_its_message(shop: Shop) -> None:
    """Charged, told, retried; nobody else of its group is touched."""
    failures = ["not yet", "not yet"]

    def upcaster(data: Any) -> Any:
        if data["id"] == "bad" and failures:
            raise ValueError(failures.pop())
        return data

    shop.inbox.upcast(TYPE, 1)(upcaster)
    handle(shop, 2)
    for message_id in ("good", "bad", "better"):
        shop.receive(message_id)
    shop.drain()
    assert statuses(shop, ["good", "bad", "better"]) == {"good": "done", "bad": "retrying", "better": "done"}
    assert shop.error("bad") == "ValueError: not yet"
    shop.finish()
    assert [entry.attempt for entry in shop.detail("bad").history] == [1, 2]
    assert shop.status("bad") == "done"


def test_an_upcaster_that_always_raises_uses_up_the_budget(shop: Shop) -> None:
    """R13: three attempts, then dead; inline counts as the first."""

    def upcaster(data: Any) -> Any:
        raise KeyError(data["id"])

    shop.inbox.upcast(TYPE, 1)(upcaster)
    handle(shop, 2)
    shop.receive("stored")
    assert not shop.process("inline").finished
    shop.finish()
    for message_id in ("stored", "inline"):
        assert shop.status(message_id) == "dead"
        assert [entry.error.partition(" (")[0] for entry in shop.detail(message_id).history] == [
            f"KeyError: '{message_id}'"
        ] * 3


def test_an_upcaster_that_changes_its_argument_changes_nothing_else(shop: Shop) -> None:
    """A retry starts from the stored body again."""

    def upcaster(data: Any) -> Any:
        data["count"] += 1
        return data

    def behaviour(message: Message) -> Steps:
        yield wrote(message, f"count {message.data['count']}")
        if message.attempt == 1:
            raise RuntimeError("not yet")

    shop.inbox.upcast(TYPE, 1)(upcaster)
    shop.handle(behaviour=behaviour, version=2)
    shop.receive("m1", data={"count": 1})
    shop.finish()
    assert shop.notes() == [("m1", "count 2")]


def test_versions_of_a_type_share_their_keys(shop: Shop, clerk: Clerk) -> None:
    """R17: order is per key, not per version."""
    for version in (1, 2):
        shop.handle(behaviour=clerk, version=version, key="k", retry=LATER)
    for number, version in enumerate((1, 2, 1, 2)):
        shop.receive(f"m{number}", data={"k": "k", "fail": int(number == 1)}, version=version)
    shop.drain()
    assert journal(shop) == ["m0"]
    shop.finish()
    assert journal(shop) == ["m0", "m1", "m2", "m3"]


@on_every_store
def test_a_version_in_the_handler_s_own_row_decides_by_one_statement(shop: Shop) -> None:
    """R19: `one_row` starts a retry where nothing was changed, because the message it builds on is not there yet.

    Each in a transaction of its own: in a group, the second would be tried once more after the first, and not fail.
    """
    shop.sql("CREATE TABLE orders (version integer)")
    shop.sql("INSERT INTO orders VALUES (0)")

    def handler(message: Message, tx: Any) -> None:
        version = message.data["version"]
        one_row(tx.execute(f"UPDATE orders SET version = {version} WHERE version = {version - 1}"))

    async def async_handler(message: Message, tx: Any) -> None:
        version = message.data["version"]
        one_row(await tx.execute(f"UPDATE orders SET version = {version} WHERE version = {version - 1}"))

    shop.inbox.on(TYPE, retry=LATER, group=1)(handler if shop.kind == "def" else async_handler)
    for version in (2, 1):
        shop.receive(f"m{version}", data={"version": version})
    shop.drain()
    assert statuses(shop, ["m1", "m2"]) == {"m1": "done", "m2": "retrying"}
    assert "changed 0 rows instead of one" in shop.error("m2")
    shop.finish()
    assert shop.sql("SELECT version FROM orders") == [(2,)]


def test_contradictions_are_refused_when_they_are_registered(shop: Shop) -> None:
    """Before anything runs, with the names of both."""

    def first(message: Message, tx: Any) -> None: ...

    async def second(message: Message, tx: Any) -> None: ...

    def third(message: Message, tx: Any) -> None: ...

    shop.inbox.on(TYPE, key="k")(first)
    with pytest.raises(ConfigurationError, match=r"handles version 1 of .* already; register it"):
        shop.inbox.on(TYPE, key="k")(first)
    with pytest.raises(ConfigurationError, match="both handle version 1"):
        shop.inbox.on(TYPE, key="k")(third)
    with pytest.raises(ConfigurationError, match="the same key="):
        shop.inbox.on(TYPE, version=2, key="other")(first)
    with pytest.raises(ConfigurationError, match="the same sequence="):
        shop.inbox.on(TYPE, version=2, key="k", sequence="n")(first)
    with pytest.raises(ConfigurationError, match="the same on_dead="):
        shop.inbox.on(TYPE, version=2, key="k", on_dead="continue")(first)
    with pytest.raises(ConfigurationError, match="both be def or both be async def"):
        shop.inbox.on(TYPE, version=2, key="k")(second)
    shop.inbox.upcast(TYPE, 1)(lambda data: data)
    with pytest.raises(ConfigurationError, match=r"version 1 of 'order\.paid' has an upcaster already"):
        shop.inbox.upcast(TYPE, 1)(lambda data: data)
