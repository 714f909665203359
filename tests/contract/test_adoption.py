"""Adoption: ids that were handled before onceward was there are duplicates, whatever comes under them (R73)."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from onceward import ConfigurationError, Settings
from onceward.admin import adoption
from onceward.admin.adoption import Table
from tests.contract.harness import SOURCE, Shop, arguments, in_threads

LONG = "x" * 300
UUID_TEXT = "0b5c7a3e-8f64-4a53-b5e7-0d3a1c7a9f10"
RETENTION = Settings(dedupe_retention=timedelta(days=30), body_retention=timedelta(days=7))
DIES = """
import os, signal, sys
from onceward import Inbox
from onceward.admin import adoption
adoption.BATCH = 10
def dying(imported):
    if imported.read >= 50:
        os.kill(os.getpid(), signal.SIGKILL)
Inbox(sys.argv[1]).admin.import_ids("stripe", (f"old{n}" for n in range(200)), progress=dying)
"""


def processed(shop: Shop, *rows: tuple[Any, ...], kind: str = "text") -> None:
    """A hand-written inbox in the same database."""
    shop.sql(f"CREATE TABLE processed (message_id {kind}, sender text, seen timestamp)")
    mark = "?" if shop.dialect == "sqlite" else "%s"
    for row in rows:
        shop.sql(f"INSERT INTO processed VALUES ({mark}, {mark}, {mark})", *row)


def test_copies_of_imported_messages_are_duplicates_and_never_mismatches(shop: Shop) -> None:
    """R73: nothing is known of the bytes or the type, so there is nothing that could be different."""
    shop.handle()
    found = shop.inbox.admin.import_ids(SOURCE, ["old", UUID_TEXT, LONG])
    assert (found.read, found.imported, found.known) == (3, 3, 0)
    for how in ("receive", "process"):
        for message_id in ("old", UUID_TEXT, LONG):
            receipt = getattr(shop, how)(message_id, data={"any": how})
            assert (receipt.status, receipt.finished, receipt.result) == ("duplicate", True, None)
    assert {one.status for one in shop.receive_many([arguments("old"), arguments("old", more={"data": 1})])} == {
        "duplicate"
    }
    assert shop.receive("old", "another.type").status == "duplicate"
    assert shop.receive("old", source="another source").status == "accepted"
    assert shop.receive(UUID_TEXT.upper()).status == "accepted"  # another id, as for receive
    assert shop.drain() == 2
    assert shop.inbox.admin.quarantine() == []
    assert sorted(shop.runs) == sorted(["old", UUID_TEXT.upper()])


def test_importing_again_changes_nothing(shop: Shop) -> None:
    """R73: what is known stays, whether it was imported or received; a preview writes nothing, not even names."""
    ids = ["old", "older", "live"]
    preview = shop.inbox.admin.import_ids("new source", ids, preview=True)
    assert (preview.imported, shop.count("ledger"), shop.count("name", "name = 'new source'")) == (3, 0, 0)
    shop.handle()
    shop.receive("live")
    shop.drain()
    for imported, known in ((2, 1), (0, 3)):
        again = shop.inbox.admin.import_ids(SOURCE, ids, preview=True)
        found = shop.inbox.admin.import_ids(SOURCE, ids)
        assert (found.imported, found.known) == (again.imported, again.known) == (imported, known)
    assert shop.receive("live", data="other bytes").status == "mismatch"  # its bytes are known


def test_ids_are_imported_for_every_consumer(shop: Shop) -> None:
    """R73: a consumer without the id would take a copy for a new message; or for one consumer, where that is meant."""
    shop.handle(consumer="mail")
    shop.handle(consumer="books")
    found = shop.inbox.admin.import_ids(SOURCE, ["old"])
    assert (found.consumers, found.imported) == (["books", "default", "mail"], 3)
    assert shop.receive("old").status == "duplicate"
    assert shop.inbox.admin.import_ids(SOURCE, ["mailed"], consumers=["mail"]).imported == 1
    assert shop.receive("mailed").status == "accepted"
    shop.drain()
    assert shop.notes() == [("mailed", "books")]
    with pytest.raises(ConfigurationError, match="relay"):
        shop.inbox.admin.import_ids(SOURCE, ["x"], consumers=["onceward.outbox"])


def test_what_waits_for_its_consumer_is_a_copy_where_that_has_handled_it(shop: Shop) -> None:
    """R73: a message that came before its handlers goes only to those that have not handled it elsewhere."""
    shop.receive("m1", data={"a": 1})
    shop.inbox.admin.import_ids(SOURCE, ["m1"], consumers=["mail"])
    shop.handle(consumer="mail")
    shop.handle(consumer="books")
    shop.drain()
    assert shop.notes() == [("m1", "books")]
    assert shop.inbox.admin.quarantine() == []


def test_a_repeated_receive_does_not_take_an_imported_id_for_its_own(shop: Shop) -> None:
    """R73: where the answer of a receive was lost, its repetition accepts its own row; an imported row is not one."""
    shop.handle()
    original, tries = shop.inbox.context.moves.ledger.receive, []

    def interrupted(rows: Any, catalog: int, marks: Any = ()) -> Generator[Any, Any, Any]:
        tries.append(len(rows))
        if len(tries) == 1:
            shop.inbox.admin.import_ids(SOURCE, ["m1"])
            from onceward.errors import StoreUnavailable  # noqa: PLC0415 - what a lost answer is

            raise StoreUnavailable("the answer was lost")
        return (yield from original(rows, catalog, marks))

    shop.inbox.context.moves.ledger.receive = interrupted  # type: ignore[method-assign]
    assert shop.receive("m1").status == "duplicate"
    assert len(tries) == 2
    assert shop.drain() == 0


def test_the_retention_counts_from_when_it_was_handled(store_url: str) -> None:
    """R73: what onceward would have forgotten is skipped and counted; the rest is forgotten when its time comes."""
    with Shop(store_url, "def", settings=RETENTION) as shop:
        now = datetime.now(UTC)
        ids = [
            ("new", now),
            ("naive", now.replace(tzinfo=None)),
            ("text", now.isoformat()),
            ("number", now.timestamp()),
        ]
        ids += [("unknown", None), ("tomorrow", now + timedelta(days=1)), ("old", now - timedelta(days=29))]
        found = shop.inbox.admin.import_ids(SOURCE, [*ids, ("too old", now - timedelta(days=31))])
        assert (found.imported, found.too_old) == (7, 1)
        assert shop.receive("too old").status == "accepted"
        with pytest.raises(ConfigurationError, match="not a time"):
            shop.inbox.admin.import_ids(SOURCE, [("x", "yesterday")])
    later = Settings(dedupe_retention=timedelta(days=20), body_retention=timedelta(days=7))
    with Shop(store_url, "def", settings=later, migrate=False) as shop:
        shop.inbox.retention.prune()
        assert shop.receive("old").status == "accepted"
        assert {shop.receive(name).status for name, _ in ids if name != "old"} == {"duplicate"}


def test_a_source_that_redelivers_longer_than_ids_are_kept_is_refused(shop: Shop) -> None:
    """R31, R73: such ids would be forgotten before their copies stop coming."""
    shop.inbox.retention.declare_source(SOURCE, redelivers_for=timedelta(days=20))
    shop.drain()  # which writes down what sources say
    short = Settings(dedupe_retention=timedelta(days=10), body_retention=timedelta(days=1))
    with shop.visitor(settings=short) as other, pytest.raises(ConfigurationError, match="dedupe_retention"):
        other.inbox.admin.import_ids(SOURCE, ["old"])


def test_ids_are_what_receive_would_make_of_them(shop: Shop) -> None:
    """R73: numbers and UUIDs in their usual form; what no message can have as its id is counted, with the first."""
    shop.handle()
    found = shop.inbox.admin.import_ids(SOURCE, [17, UUID(UUID_TEXT), b"bytes", "", "a\nb", 1.5, b"\xff", True])
    assert (found.imported, found.refused) == (3, 5)
    assert "id is empty" in found.first_refused
    assert {shop.receive(name).status for name in ("17", UUID_TEXT, "bytes")} == {"duplicate"}


def test_explain_says_that_it_was_imported(shop: Shop) -> None:
    shop.inbox.admin.import_ids(SOURCE, ["old"])
    (seq,) = shop.inbox.admin.find(SOURCE, "old")
    explanation = shop.inbox.admin.explain(seq)
    assert explanation is not None
    assert "its id was imported for stripe" in explanation.events[0].what
    assert explanation.message.status == "done"


def test_a_table_is_read_in_pages(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """R73: each id once with its latest time, whatever it holds; nothing else of the table."""
    monkeypatch.setattr(adoption, "PAGE", 3)
    monkeypatch.setattr(adoption, "BATCH", 2)
    old = (datetime.now(UTC) - timedelta(days=400)).replace(tzinfo=None, microsecond=0)
    rows: list[tuple[Any, ...]] = [(f"m{n}", "stripe", None) for n in range(10)]
    rows += [
        ("50%", "stripe", None),
        (None, "stripe", None),
        ("twice", "stripe", str(old)),
        ("twice", "stripe", str(old + timedelta(days=399))),
        ("other", "shopify", None),
    ]
    processed(shop, *rows)
    table = Table("processed", "message_id", "seen", "sender LIKE 'str%'")
    seen: list[int] = []
    found = shop.inbox.admin.import_ids(SOURCE, table, progress=lambda so_far: seen.append(so_far.read))
    assert (found.read, found.imported, found.too_old, found.last) == (12, 12, 0, "twice")
    assert seen == [2, 4, 6, 8, 10, 12]
    shop.handle()
    assert {shop.receive(name).status for name in ("m0", "m9", "50%", "twice")} == {"duplicate"}
    assert shop.receive("other").status == "accepted"
    assert shop.inbox.admin.import_ids(SOURCE, table, after="m8", preview=True).read == 2
    with pytest.raises(ConfigurationError, match="name of a table"):
        shop.inbox.admin.import_ids(SOURCE, Table("a..b", "id"))


@pytest.mark.parametrize("kind_of_id", ["bigint", "uuid"])
def test_a_table_of_numbers_or_uuids(postgres_shop: Shop, kind_of_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adoption, "PAGE", 2)
    ids = ["2", "10", "33"] if kind_of_id == "bigint" else [str(UUID(int=n)) for n in (2, 10, 33)]
    processed(postgres_shop, *((one, "stripe", None) for one in ids), kind=kind_of_id)
    table = Table("public.processed", "message_id")
    assert postgres_shop.inbox.admin.import_ids(SOURCE, table).imported == 3
    assert postgres_shop.inbox.admin.import_ids(SOURCE, table, after=ids[0]).read == 2
    assert {postgres_shop.receive(one).status for one in ids} == {"duplicate"}


def test_kill_9_half_way_and_run_again(store_url: str) -> None:
    """R73: what was committed stays, and the second run brings the rest."""
    with Shop(store_url, "def") as shop:
        shop.handle()
        killed = subprocess.run([sys.executable, "-c", DIES, store_url], check=False)
        assert killed.returncode == -9
        found = shop.inbox.admin.import_ids(SOURCE, (f"old{n}" for n in range(200)))
        assert (found.imported, found.known) == (150, 50)
        assert {one.status for one in shop.receive_many(arguments(f"old{n}") for n in range(200))} == {"duplicate"}


def test_imports_race_with_live_receives(store_url: str) -> None:
    """R73: of an id that is imported and received at once, one row stands; it ran if, and only if, it was accepted."""
    ids = [f"m{n}" for n in range(300)]
    with Shop(store_url, "def", settings=Settings(lock_wait=timedelta(seconds=30))) as shop:
        shop.handle()
        shop.receive("first")

        def imports(order: int) -> int:
            with shop.visitor() as other:
                return other.inbox.admin.import_ids(SOURCE, ids[::order], consumers=["default"]).imported

        def receives() -> list[str]:
            chunks = [ids[start : start + 20] for start in range(0, len(ids), 20)]
            return [one.status for chunk in chunks for one in shop.receive_many(arguments(name) for name in chunk)]

        forward, backward, statuses = in_threads(lambda: imports(1), lambda: imports(-1), receives)
        accepted = [name for name, status in zip(ids, statuses, strict=True) if status == "accepted"]
        assert set(statuses) <= {"accepted", "duplicate"}
        assert forward + backward + len(accepted) == len(ids)
        shop.drain()
        assert shop.effects() == sorted([*accepted, "first"])


def test_memory_is_bounded_by_a_batch(sqlite_url: str) -> None:
    """R73: 20,000 ids take no more memory than 2,000; docs/adopt.md has what a million took."""
    with Shop(sqlite_url, "def") as shop:

        def peak(count: int) -> int:
            tracemalloc.start()
            shop.inbox.admin.import_ids(SOURCE, (f"{count}/{n}" for n in range(count)))
            used = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            return used

        peak(2000)
        assert peak(20_000) < 2 * peak(2000)
