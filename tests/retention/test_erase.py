"""Erasure (R34): a person's data goes out of every place; copies are still recognised; it is written down."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from onceward import Message, Reject, Retry
from onceward.errors import ConfigurationError
from onceward.steps import erase
from tests.contract import behaviour as acts
from tests.contract.harness import SOURCE, TYPE, Shop
from tests.retention.conftest import NOW
from tests.stores import with_mariadb

PRIVATE = "ann-4711@example.com"
PERSON: dict[str, Any] = {"customer": {"email": PRIVATE}, "k": PRIVATE}


# Every column of text or bytes, by what becomes of it. A new one belongs into one of the two.
GOES = {
    "body.body",
    "body.headers",
    "body.key",
    "result.result",
    "attempt.error",
    "attempt.traceback",
    "effect.result",
    "quarantine.body",
    "quarantine.headers",
    "quarantine.key",
}
STAYS = {
    "the producer's own names, by which a copy is recognised": "ledger.id body.id first_seen.id",
    "hashes": "ledger.hash first_seen.hash quarantine.hash poll.hash attempt.fingerprint effect.key",
    "names that programs give": (
        "name.name subscription.type subscription.key_path subscription.sequence subscription.on_dead "
        "subscription.aggregate body.type body.key_from body.aggregate body.destination queue.destination queue.state "
        "queue.type quarantine.type quarantine.resolution effect.name attempt.kind progress.aggregate "
        "history.consumer history.source history.type pause.kind pause.name"
    ),
    "about programs, not about messages": (
        "migration.name migration.deploy maintenance.task catalog.folder worker.circuits "
        "worker.process worker.host worker.code_version worker.handles run.code_version attempt.code_version "
        "ended_session.session poll.cursor poll.token poll.error position.part position.position"
    ),
    "numbers of messages": "run.seqs",
    "durations": "history.lateness history.wait history.run",
    "what operators said": "audit.actor audit.action audit.reason pause.actor pause.reason",
    "a numbered key, without which it would begin anew (docs/retention.md)": "progress.key",
}
STAYING = {column for columns in STAYS.values() for column in columns.split()}
PLAIN = re.compile("int|bool|time|date|real|double|float|numeric", re.IGNORECASE)
"""Types that hold no text."""


def charges(message: Message) -> acts.Steps:
    message.once("charge", lambda: {"mail": message.data["customer"]["email"]})
    yield acts.wrote(message)


def columns(shop: Shop) -> set[str]:
    """`table.column` of every column that can hold text, without the partitions of bodies."""
    if shop.dialect == "sqlite":
        rows = shop.sql(
            "SELECT m.name, c.name, c.type FROM sqlite_schema m, pragma_table_info(m.name) c WHERE m.type = 'table'"
        )
    elif shop.dialect == "mysql":
        rows = shop.sql(
            "SELECT c.table_name, c.column_name, c.column_type FROM information_schema.columns c "
            "JOIN information_schema.tables t ON t.table_schema = c.table_schema AND t.table_name = c.table_name "
            "WHERE c.table_schema = database() AND t.table_type = 'BASE TABLE'"
        )
    else:
        rows = shop.sql(
            "SELECT r.relname, a.attname, format_type(a.atttypid, a.atttypmod) FROM pg_class r "
            "JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped "
            "WHERE r.relkind IN ('r', 'p') AND NOT r.relispartition AND r.relnamespace = current_schema()::regnamespace"
        )
    return {
        f"{table.removeprefix(shop.prefix)}.{column}"
        for table, column, kind in rows
        if table.startswith(shop.prefix) and not PLAIN.search(kind)
    }


def holding(shop: Shop, wanted: str = PRIVATE) -> set[str]:
    """Which of them hold a text."""
    found = set()
    for column in columns(shop):
        table, _, name = column.partition(".")
        quoted = f"`{name}`" if shop.dialect == "mysql" else name
        for (cell,) in shop.sql(f"SELECT {quoted} FROM {shop.prefix}{table}"):
            text = bytes(cell).decode(errors="replace") if isinstance(cell, bytes) else str(cell)
            if wanted in text:
                found.add(column)
    return found


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
        shop.handle("charged", charges)
        shop.handle("numbered", key="k", sequence="n")
        for name, kind in (("done", TYPE), ("dead", "bad"), ("retrying", "again"), ("keyed", "keyed")):
            shop.receive(name, kind, data=PERSON, headers={"who": PRIVATE})
        shop.receive("charged", "charged", data=PERSON)
        shop.receive("numbered", "numbered", data={**PERSON, "n": 1})
        shop.receive("other", data={"customer": {"email": "bob@example.com"}})
        shop.drain()
        shop.receive("unknown", "nobody.knows", data=PERSON)
        shop.receive("done", data={"customer": {"email": PRIVATE}, "more": 1})  # a case for quarantine
        shop.receive("clean", data=1)
        shop.drain()
        shop.receive("clean", data=PERSON)  # the person is only in the second body
        shop.receive("keyed", "keyed", data={"k": PRIVATE}, headers={"who": PRIVATE}, key=PRIVATE)
        yield shop
        for seq in [row.seq for row in shop.inbox.admin.messages(outgoing=True)]:
            shop.inbox.admin.discard(seq)


def test_every_column_is_known(full: Shop) -> None:
    """And the person is in each of those that can hold their data: else the others would prove nothing."""
    assert columns(full) <= GOES | STAYING
    assert holding(full) == GOES | {"progress.key"}


@with_mariadb
def test_every_trace_of_a_person_goes_and_copies_are_still_duplicates(full: Shop) -> None:
    """Live, finished, dead, waiting for somebody, outgoing, quarantine, results, errors, headers."""
    shop = full
    found = shop.inbox.retention.personal(field=("customer.email", PRIVATE))
    statuses = {match.status for match in found}
    assert statuses == {"finished", "dead", "retry", "unhandled", "ready"}
    assert sum(match.quarantined for match in found) == 1
    assert len(found) == 9  # seven, what was sent for one, and the one with a second body
    before = len(shop.effects())
    assert shop.inbox.retention.erase(*(match.seq for match in found), reason="request 7", actor="ann") == []
    assert holding(shop) == {"progress.key"}
    assert {"body.body", "body.key", "result.result"} <= holding(shop, "bob@example.com")
    assert shop.inbox.retention.personal(field=("customer.email", PRIVATE)) == []
    for name, kind in (
        ("done", TYPE),
        ("dead", "bad"),
        ("retrying", "again"),
        ("keyed", "keyed"),
        ("unknown", "nobody.knows"),
    ):
        assert shop.receive(name, kind, data=PERSON, headers={"who": PRIVATE}).status == "duplicate"
    assert shop.receive("done", data={"customer": {"email": PRIVATE}, "more": 1}).status == "duplicate"
    assert shop.receive("keyed", "keyed", data={"k": PRIVATE}, headers={"who": PRIVATE}).status == "duplicate"
    assert holding(shop) == {"progress.key"}, "a copy brings nothing back"
    shop.drain()
    assert len(shop.effects()) == before
    actions = [(action.action, action.actor, action.reason) for action in shop.detail("dead").actions]
    assert actions == [("discard", "ann", "request 7"), ("erase", "ann", "request 7")]
    assert shop.inbox.admin.quarantine() == []


def test_the_search_sees_everything(full: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunk after chunk, past bodies and second bodies that are no JSON."""
    full.receive("noise", "noise", body=b"{no json")
    full.receive("noise", "noise", body=b"{no json either")
    full.receive("late", data=2)
    full.receive("late", data=PERSON)
    expected = full.inbox.retention.personal(field=("customer.email", PRIVATE))
    monkeypatch.setattr(erase, "CHUNK", 2)
    assert full.inbox.retention.personal(field=("customer.email", PRIVATE)) == expected
    assert {match.status for match in expected} >= {"finished", "unhandled"}
    assert expected[-1].quarantined


@with_mariadb
def test_by_key(full: Shop) -> None:
    """The key is looked for, and it goes too."""
    found = full.inbox.retention.personal(key=PRIVATE)
    assert sorted(match.type for match in found) == ["keyed", "numbered", "told"]
    full.inbox.retention.erase(*(match.seq for match in found), reason="x")
    assert full.inbox.retention.personal(key=PRIVATE) == []
    assert full.detail("keyed").key is None


@with_mariadb
def test_by_number_also_the_copy_that_it_was_accepted_from(store_url: str) -> None:
    """A second body that was accepted is a message of its own, and still in its decided case."""
    with Shop(store_url, "def") as shop:
        shop.handle()
        shop.receive("a", data=1)
        shop.receive("a", data=PERSON, headers={"who": PRIVATE})
        (case,) = shop.inbox.admin.quarantine()
        seq = shop.inbox.admin.resolve(case.case, "accept-as-new", reason="x")
        shop.drain()
        assert seq is not None
        assert "quarantine.body" in holding(shop)
        assert shop.inbox.retention.erase(seq, reason="x") == []
        assert holding(shop) == set()
        assert shop.receive("a", data=PERSON, headers={"who": PRIVATE}).status == "duplicate"


def test_by_header(full: Shop) -> None:
    """A path as for keys."""
    assert len(full.inbox.retention.personal(field=("header:who", PRIVATE))) == 4


def test_by_id_also_what_was_sent(full: Shop) -> None:
    """A message and what its handler made of it."""
    found = full.inbox.retention.personal(source=SOURCE, id="done")
    assert [(match.type, match.status) for match in found] == [(TYPE, "finished"), ("told", "due")]
    assert full.inbox.retention.erase(*(match.seq for match in found), reason="x") == []
    detail = full.detail("done")
    assert (detail.body, detail.result, detail.id, dict(detail.headers)) == (None, None, "done", {})


def test_what_runs_is_left_alone_and_said(store_url: str) -> None:
    """Erasing under a handler would be lost or would break it; the next try does it."""
    with Shop(store_url, "def") as shop:
        shop.handle()
        seq = shop.receive("a", data=PERSON).seq
        claimed = "worker = 1, token = 1"
        shop.sql(f"UPDATE {shop.prefix}queue SET {claimed}")
        assert shop.inbox.retention.erase(seq, 999, reason="x") == [seq, 999]
        assert "body.body" in holding(shop)
        shop.sql(f"UPDATE {shop.prefix}queue SET worker = NULL, token = NULL")
        assert shop.inbox.retention.erase(seq, reason="x") == []
        assert shop.drain() == 0
        assert shop.status("a") == "discarded"


def test_an_erasure_is_remembered_when_the_message_is_not(store_url: str) -> None:
    """The line in the audit outlives everything else."""
    with Shop(store_url, "def", settings=NOW) as shop:
        shop.handle()
        seq = shop.receive("a", data=PERSON).seq
        shop.drain()
        shop.inbox.retention.erase(seq, reason="request 7")
        shop.inbox.retention.prune()
        assert shop.count("ledger") == 0
        assert shop.sql(f"SELECT action, reason FROM {shop.prefix}audit") == [("erase", "request 7")]


def test_one_way_to_say_which(store_url: str) -> None:
    """Nothing, or several, is refused."""
    with Shop(store_url, "def") as shop:
        cases: list[dict[str, Any]] = [{}, {"key": 1, "field": ("a", 1)}, {"source": "s"}]
        for wrong in cases:
            with pytest.raises(ConfigurationError, match="give one of"):
                shop.inbox.retention.personal(**wrong)
