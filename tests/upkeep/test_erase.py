"""Erasure (R34): a person's data goes out of every place; copies are still recognised; it is written down."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from onceward import Message, Reject, Retry
from onceward.errors import ConfigurationError
from tests.contract import behaviour as acts
from tests.contract.harness import SOURCE, TYPE, Shop
from tests.upkeep.conftest import NOW

PRIVATE = "ann-4711@example.com"
PERSON: dict[str, Any] = {"customer": {"email": PRIVATE}, "k": PRIVATE}


@pytest.fixture
def full(store_url: str) -> Iterator[Shop]:
    """A shop with the person's data in every place it can be in."""
    with Shop(store_url, "def") as shop:

        def sends(message: Message) -> acts.Steps:
            yield acts.wrote(message)
            email = message.data["customer"]["email"] if message.data != 1 else "nobody"
            message.send("told", message.data, key=email)
            return {"mail": email}

        shop.handle(behaviour=sends)
        shop.handle("keyed", key="k")
        shop.handle("bad", acts.raising(lambda: Reject(f"no {PRIVATE}")))
        shop.handle("again", acts.raising(lambda: Retry(f"later {PRIVATE}")))
        for name, kind in (("done", TYPE), ("dead", "bad"), ("retrying", "again"), ("keyed", "keyed")):
            shop.receive(name, kind, data=PERSON, headers={"who": PRIVATE})
        shop.receive("other", data={"customer": {"email": "bob@example.com"}})
        shop.drain()
        shop.receive("unknown", "nobody.knows", data=PERSON)
        shop.receive("done", data={"customer": {"email": PRIVATE}, "more": 1})  # a case for quarantine
        shop.receive("clean", data=1)
        shop.drain()
        shop.receive("clean", data=PERSON)  # the person is only in the second body
        yield shop
        for seq in [row.seq for row in shop.inbox.messages(outgoing=True)]:
            shop.inbox.discard(seq)


def everything(shop: Shop) -> str:
    """Every text and every body in the tables."""
    tables = ("body", "result", "attempt", "quarantine", "effect", "queue", "ledger", "duplicate")
    rows = [row for table in tables for row in shop.sql(f"SELECT * FROM {shop.prefix}{table}")]
    cells = [cell for row in rows for cell in row]
    return " ".join(bytes(cell).decode(errors="replace") if isinstance(cell, bytes) else str(cell) for cell in cells)


def test_every_trace_of_a_person_goes_and_copies_are_still_duplicates(full: Shop) -> None:
    """Live, finished, dead, waiting for somebody, outgoing, quarantine, results, errors, headers."""
    shop = full
    assert everything(shop).count(PRIVATE) > 15
    found = shop.inbox.personal(field=("customer.email", PRIVATE))
    statuses = {match.status for match in found}
    assert statuses == {"finished", "dead", "retry", "unhandled", "ready"}
    assert sum(match.quarantined for match in found) == 1
    assert len(found) == 7  # five, what was sent for one, and the one with a second body
    before = len(shop.effects())
    assert shop.inbox.erase(*(match.seq for match in found), reason="request 7", actor="ann") == []
    assert PRIVATE not in everything(shop)
    assert "bob@example.com" in everything(shop)
    assert shop.inbox.personal(field=("customer.email", PRIVATE)) == []
    for name, kind in (
        ("done", TYPE),
        ("dead", "bad"),
        ("retrying", "again"),
        ("keyed", "keyed"),
        ("unknown", "nobody.knows"),
    ):
        assert shop.receive(name, kind, data=PERSON, headers={"who": PRIVATE}).status == "duplicate"
    assert shop.receive("done", data={"customer": {"email": PRIVATE}, "more": 1}).status == "duplicate"
    assert PRIVATE not in everything(shop), "a copy brings nothing back"
    shop.drain()
    assert len(shop.effects()) == before
    actions = [(action.action, action.actor, action.reason) for action in shop.story("dead").actions]
    assert actions == [("discard", "ann", "request 7"), ("erase", "ann", "request 7")]
    assert shop.inbox.quarantine() == []


def test_by_key(full: Shop) -> None:
    """The key is looked for, and it goes too."""
    found = full.inbox.personal(key=PRIVATE)
    assert sorted(match.type for match in found) == ["keyed", "told"]
    full.inbox.erase(*(match.seq for match in found), reason="x")
    assert full.inbox.personal(key=PRIVATE) == []
    assert full.story("keyed").key is None


def test_by_header(full: Shop) -> None:
    """A path as for keys."""
    assert len(full.inbox.personal(field=("header:who", PRIVATE))) == 4


def test_by_id_also_what_was_sent(full: Shop) -> None:
    """A message and what its handler made of it."""
    found = full.inbox.personal(source=SOURCE, id="done")
    assert [(match.type, match.status) for match in found] == [(TYPE, "finished"), ("told", "due")]
    assert full.inbox.erase(*(match.seq for match in found), reason="x") == []
    story = full.story("done")
    assert (story.body, story.result, story.id, dict(story.headers)) == (None, None, "done", {})


def test_what_runs_is_left_alone_and_said(store_url: str) -> None:
    """Erasing under a handler would be lost or would break it; the next try does it."""
    with Shop(store_url, "def") as shop:
        shop.handle()
        seq = shop.receive("a", data=PERSON).seq
        noted = "worker = 1, token = 1"
        shop.sql(f"UPDATE {shop.prefix}queue SET {noted}")
        assert shop.inbox.erase(seq, 999, reason="x") == [seq, 999]
        assert PRIVATE in everything(shop)
        shop.sql(f"UPDATE {shop.prefix}queue SET worker = NULL, token = NULL")
        assert shop.inbox.erase(seq, reason="x") == []
        assert shop.drain() == 0
        assert shop.status("a") == "discarded"


def test_an_erasure_is_remembered_when_the_message_is_not(store_url: str) -> None:
    """The line in the audit outlives everything else."""
    with Shop(store_url, "def", settings=NOW) as shop:
        shop.handle()
        seq = shop.receive("a", data=PERSON).seq
        shop.drain()
        shop.inbox.erase(seq, reason="request 7")
        shop.inbox.prune()
        assert shop.count("ledger") == 0
        assert shop.sql(f"SELECT action, reason FROM {shop.prefix}audit") == [("erase", "request 7")]


def test_one_way_to_say_which(store_url: str) -> None:
    """Nothing, or several, is refused."""
    with Shop(store_url, "def") as shop:
        cases: list[dict[str, Any]] = [{}, {"key": 1, "field": ("a", 1)}, {"source": "s"}]
        for wrong in cases:
            with pytest.raises(ConfigurationError, match="say one of"):
                shop.inbox.personal(**wrong)
