"""What people do with an inbox on MySQL and MariaDB: adopt a table, try a message, prove a handler, measure a store."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from onceward import ConfigurationError, Inbox, Settings
from onceward.admin import adoption
from onceward.admin.adoption import Table
from onceward.admin.measurement import measure
from onceward.testing import prove_exactly_once
from tests.contract.behaviour import Sql, taking
from tests.contract.harness import SOURCE, Kind, Shop
from tests.testing import shop as careless

RETENTION = Settings(dedupe_retention=timedelta(days=30), body_retention=timedelta(days=7))


@pytest.fixture
def shop(mariadb_url: str, kind: Kind) -> Iterator[Shop]:
    """A shop on MariaDB, with two counters."""
    with Shop(mariadb_url, kind, settings=RETENTION) as shop:
        shop.sql("CREATE TABLE counter (id int PRIMARY KEY, n int NOT NULL) ENGINE = InnoDB")
        shop.sql("INSERT INTO counter VALUES (1, 0), (2, 7)")
        yield shop


@pytest.fixture
def def_shop(mariadb_url: str) -> Iterator[Shop]:
    """The same for what is no handler's matter."""
    with Shop(mariadb_url, "def", settings=RETENTION) as shop:
        yield shop


# Adoption


def test_a_table_is_read_in_pages(def_shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """R73: each id once with its latest time; a TIMESTAMP is the moment that it is, wherever the server is."""
    shop = def_shop
    monkeypatch.setattr(adoption, "PAGE", 3)
    monkeypatch.setattr(adoption, "BATCH", 2)
    old = datetime.now(UTC) - timedelta(days=400)
    shop.sql(
        "CREATE TABLE `my processed` (`message id` varchar(64), sender text, seen timestamp NULL, KEY (`message id`))"
    )
    rows: list[tuple[Any, ...]] = [(f"m{n}", "stripe", None) for n in range(10)]
    rows += [("50%", "stripe", None), (None, "stripe", None), ("other", "shopify", None), ("old", "stripe", old)]
    rows += [("twice", "stripe", old), ("twice", "stripe", datetime.now(UTC) - timedelta(days=1))]
    for row in rows:
        shop.sql("INSERT INTO `my processed` VALUES (%s, %s, %s)", *row)
    table = Table("my processed", "message id", "seen", "sender LIKE 'str%'")
    found = shop.inbox.admin.import_ids(SOURCE, table)
    assert (found.read, found.imported, found.too_old, found.last) == (13, 12, 1, "twice")
    shop.handle()
    assert {shop.receive(name).status for name in ("m0", "m9", "50%", "twice")} == {"duplicate"}
    assert shop.receive("other").status == "accepted"
    assert shop.inbox.admin.import_ids(SOURCE, table, after="m8", preview=True).read == 3
    with pytest.raises(ConfigurationError, match="name of a table"):
        shop.inbox.admin.import_ids(SOURCE, Table("a..b", "id"))


def test_ids_that_the_servers_collation_takes_for_one_are_all_imported(def_shop: Shop) -> None:
    """R73: a group of equal ids would have been one of them, and a copy of another would run again."""
    shop = def_shop
    shop.sql("CREATE TABLE processed (id varchar(64) COLLATE utf8mb4_general_ci, number bigint)")
    ids = ["evt_a", "evt_A", "evt_b", "caf\u00e9", "cafe", "last"]
    for number, one in enumerate(ids):
        shop.sql("INSERT INTO processed VALUES (%s, %s)", one, number + (1 << 53))
    found = shop.inbox.admin.import_ids(SOURCE, Table("processed", "id"))
    assert (found.read, found.imported) == (6, 6)
    assert (
        shop.inbox.admin.import_ids(
            "numbers", Table(f"{shop.place.url.rpartition('/')[2]}.processed", "number")
        ).imported
        == 6
    )
    shop.handle()
    assert {shop.receive(one).status for one in ids} == {"duplicate"}
    assert shop.receive("evt_B").status == "accepted"


# A message is tried


def test_a_dry_run_shows_what_would_be_changed(shop: Shop) -> None:
    """HZ-40: with the rows before and after, and nothing of it stays."""
    statements = (
        "UPDATE counter SET n = n + 1 WHERE id = 1",
        "DELETE FROM counter WHERE id = 2",
        "INSERT INTO counter VALUES (3, 5)",
    )
    shop.handle(behaviour=taking(*map(Sql, statements)))
    seq = shop.receive("m1").seq
    before = shop.sql("SELECT * FROM counter ORDER BY id")
    report = shop.inbox.admin.dry_run(seq)
    assert report.ended == "returned", report.error
    changes = {(one.kind, str(one.before), str(one.after)) for one in report.changes if one.table == "counter"}
    assert changes == {
        ("update", "{'id': 1, 'n': 0}", "{'id': 1, 'n': 1}"),
        ("delete", "{'id': 2, 'n': 7}", "None"),
        ("insert", "None", "{'id': 3, 'n': 5}"),
    }
    assert [one.sql for one in report.statements][:3] == list(statements)
    assert shop.sql("SELECT * FROM counter ORDER BY id") == before
    assert shop.effects() == []


# A handler is proven


def test_handlers_are_proven_and_careless_ones_caught(mariadb_url: str) -> None:
    """R61: rows and numbers are put back between two cases."""
    with Inbox(mariadb_url) as inbox:
        shop = careless.Shop(inbox).open()
        with inbox.transaction() as tx:
            tx.execute("CREATE TABLE numbered (id bigint AUTO_INCREMENT PRIMARY KEY, at timestamp(6) NOT NULL)")
            tx.execute("INSERT INTO numbered (at) VALUES (now(6)), (now(6))")
            tx.execute("DELETE FROM numbered WHERE id = 2")
            kept = tx.execute("SELECT * FROM numbered").fetchall()
        report = shop.prove(careless.careful(shop), modes=["store-first"])
        assert report.ok, report
        with inbox.transaction() as tx:
            assert tx.execute("SELECT * FROM numbered").fetchall() == kept
            tx.execute("INSERT INTO numbered (at) VALUES (now(6))")
            assert tx.execute("SELECT max(id) FROM numbered").fetchall() == ((3,),)
            assert tx.execute("SELECT paid FROM orders").fetchall() == ((0,),)


def test_a_connection_of_its_own_is_caught(mariadb_url: str) -> None:
    with Inbox(mariadb_url) as inbox:
        shop = careless.Shop(inbox).open()
        report = shop.prove(careless.own_connection_at_the_end(shop), modes=["store-first"])
        assert not report.ok


def test_a_trigger_cannot_be_turned_off(mariadb_url: str) -> None:
    with Inbox(mariadb_url) as inbox:
        shop = careless.Shop(inbox).open()
        inbox.on("order.paid")(careless.careful(shop))
        with inbox.transaction() as tx:
            tx.execute(
                "CREATE TRIGGER noted AFTER UPDATE ON orders FOR EACH ROW INSERT INTO journal VALUES ('changed')"
            )
        with pytest.raises(ConfigurationError, match="MySQL cannot turn off the trigger noted; pass reset="):
            prove_exactly_once(inbox, careless.ORDER, check=shop.effect)


# A store is measured


def test_a_measurement_is_exact_and_leaves_nothing(mariadb_url: str) -> None:
    figures = measure(mariadb_url, 100)
    assert [figure.name for figure in figures][-1] == "process, inline"
    assert all(figure.per_second > 0 for figure in figures)
    with Inbox(mariadb_url) as inbox, inbox.transaction() as tx:
        assert tx.execute("SHOW TABLES").fetchall() == ()
