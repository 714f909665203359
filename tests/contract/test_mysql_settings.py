"""What the doctor reads from a server of MySQL's family, each setting on a real one; what it makes of the clusters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from onceward import ConfigurationError, Inbox, Message
from onceward.admin import guarantees
from onceward.admin.doctor import examine
from onceward.stores.mysql import findings
from onceward.stores.mysql.address import Address
from onceward.stores.mysql.store import refuse_tidb
from tests.servers import MariadbServer


@pytest.fixture(scope="module")
def server() -> Iterator[MariadbServer]:
    """One that keeps a binary log, whose settings these tests change."""
    with MariadbServer(settings={"log-bin": "bin", "server-id": "1", "sync-binlog": "1"}) as server:
        yield server


@pytest.fixture(scope="module")
def inbox(server: MariadbServer) -> Iterator[Inbox]:
    """An inbox on it, with a handler."""
    with Inbox(server.create_database("settings")) as inbox:
        inbox.migrate()

        @inbox.on("order.paid")
        def pay(message: Message, tx: Any) -> None:
            """Never run here."""

        yield inbox


def level(inbox: Inbox) -> str:
    """What is in force for its handler."""
    (found,) = guarantees.in_force(inbox.context, inbox.store)
    return found.level


def test_a_server_that_is_set_as_it_should_be_is_exactly_once(inbox: Inbox) -> None:
    assert level(inbox) == "exactly-once"
    assert [what for level, what, _ in inbox.store.findings() if level != "ok"] == []


class Set(NamedTuple):
    """A setting, and what is to be said of it."""

    name: str
    value: Any
    level: str
    said: str
    in_force: str = "exactly-once"


@pytest.mark.parametrize(
    "one",
    [
        Set("innodb_flush_log_at_trx_commit", 2, "error", "a crash can lose messages", "weaker"),
        Set("sync_binlog", 0, "warning", "replicas may lack messages"),
        Set("read_only", 1, "error", "read-only replica", "weaker"),
        Set("binlog_format", "STATEMENT", "error", "refuses to write under READ COMMITTED", "weaker"),
        Set("tx_isolation", "SERIALIZABLE", "ok", "default isolation is SERIALIZABLE"),
        Set("sql_mode", "", "warning", "strict mode is off"),
        Set("collation_server", "utf8mb4_general_ci", "ok", "may take two texts for one"),
        Set("max_allowed_packet", 1 << 20, "warning", "max_allowed_packet is 1048576"),
        Set("max_connections", 10, "warning", "under load connections will be refused"),
    ],
    ids=lambda one: one.name,
)
def test_each_setting_is_looked_at(server: MariadbServer, inbox: Inbox, one: Set) -> None:
    ((before,),) = server.administer(f"SELECT @@GLOBAL.{one.name}")
    server.administer(f"SET GLOBAL {one.name} = %s", one.value)
    try:
        assert [found.level for found in examine(inbox) if one.said in found.what] == [one.level]
        assert level(inbox) == one.in_force
    finally:
        server.administer(f"SET GLOBAL {one.name} = %s", before)


def test_tables_that_have_no_transactions_are_named(server: MariadbServer, inbox: Inbox) -> None:
    server.administer("CREATE TABLE settings.counted (n int) ENGINE = MyISAM")
    (found,) = [one for one in examine(inbox) if "without transactions" in one.what]
    assert (found.level, "counted. What a handler does" in found.what) == ("warning", True)
    server.administer("DROP TABLE settings.counted")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"wsrep_on": "ON", "wsrep_cluster_size": 3}, [("warning", "a Galera cluster of 3")]),
        ({"wsrep_on": "ON", "wsrep_cluster_size": 1}, [("ok", "a Galera cluster of 1")]),
        (
            {
                "group_replication_group_name": "a",
                "group_replication_single_primary_mode": "OFF",
                "group_replication_consistency": "EVENTUAL",
            },
            [("warning", "several primaries"), ("warning", "EVENTUAL")],
        ),
    ],
    ids=["galera", "galera of one", "group"],
)
def test_what_clusters_say(said: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    """`make engines` looks at real ones."""
    found = [
        (level, what) for level, what, _ in findings._kind({"version": "8", **{k: str(v) for k, v in said.items()}})
    ]
    assert [(level, text in what) for (level, what), (_, text) in zip(found, expected, strict=True)] == [
        (level, True) for level, _ in expected
    ]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("pessimistic", ["ok", "ok"]), ("optimistic", ["ok", "warning", "ok"]), ("", ["ok", "warning", "ok"])],
)
def test_what_tidb_says(mode: str, expected: list[str]) -> None:
    """`make engines ENGINE=tidb` looks at a real one (test_tidb.py)."""
    found = [*findings._tidb({"version": "8.0.11-TiDB-v8.5.4", "tidb_txn_mode": mode})]
    assert [level for level, _, _ in found] == expected
    assert "CHECK is not enforced" in found[-1][1]


@pytest.mark.parametrize("cache", [1, 1000])
def test_on_tidb_numbers_are_drawn_one_by_one(cache: int) -> None:
    """Drawn in blocks by each of several servers, they would not be in the order of arrival."""
    made_by = (
        f"CREATE TABLE `onceward_ledger` (...) COLLATE=utf8mb4_0900_bin /*T![auto_id_cache] AUTO_ID_CACHE={cache} */"
    )
    assert [level for level, _, _ in findings.numbering(made_by)] == ([] if cache == 1 else ["error"])


def test_tidb_is_refused_with_the_reason() -> None:
    """It speaks of itself as MySQL. Who knows what is not proven may try it."""
    address = "mysql://root@localhost/shop"
    refuse_tidb("8.0.33", Address.of(address))
    refuse_tidb("8.0.11-TiDB-v8.5.4", Address.of(f"{address}?tidb=unproven"))
    with pytest.raises(ConfigurationError, match="loses parts of transactions when it is killed"):
        refuse_tidb("8.0.11-TiDB-v8.5.4", Address.of(address))
