"""What MySQL's text must say by itself, because a server of its family does not see to it (R36)."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pymysql
import pytest

from onceward import Inbox, Message, Settings
from onceward.flow import COMMIT, Begin, Each
from onceward.steps.membership import take_over_lapsed
from onceward.stores.mysql.address import Address
from onceward.stores.mysql.guard import HandlerConnection
from onceward.stores.statements import load, migrations
from tests.contract.behaviour import Sql, Steps, taking, wrote
from tests.contract.harness import Shop, arguments
from tests.servers import MariadbServer
from tests.waiting import wait_until

_TABLE = re.compile(r"CREATE TABLE IF NOT EXISTS (\w+) \((.*)\)", re.DOTALL)
_COUNTED = re.compile(r"^\s*`?(\w+)`?\s[^\n]*\bAUTO_INCREMENT\b", re.MULTILINE)
_UPDATED = re.compile(r"INSERT INTO (\w+).*?ON DUPLICATE KEY UPDATE(.*)", re.DOTALL)
LONG = timedelta(seconds=300)
"""Longer than any of these tests may take."""
_LOCKS = (b" FOR UPDATE SKIP LOCKED", b" LOCK IN SHARE MODE")


@pytest.fixture
def shop(mariadb_url: str) -> Iterator[Shop]:
    """A shop on MariaDB."""
    with Shop(mariadb_url, "def") as shop:
        yield shop


def meeting(monkeypatch: pytest.MonkeyPatch, change: Callable[[HandlerConnection, bytes], bytes]) -> None:
    """Change what is sent."""
    own = HandlerConnection.own_query
    monkeypatch.setattr(HandlerConnection, "own_query", lambda self, sql: own(self, change(self, sql)))


def test_no_update_clause_names_a_number_that_the_server_counts() -> None:
    """MariaDB lost 2 to 4 of 3,000 messages where one did: a wrong number is then taken for a duplicate."""
    made = [found for one in migrations("mysql", "o_") for text in one.statements if (found := _TABLE.search(text))]
    counted = {found[1]: column[1] for found in made if (column := _COUNTED.search(found[2]))}
    assert counted["o_ledger"] == "seq"
    updated = [
        (name, found[1], found[2])
        for name, parts in load("mysql", "o_").items()
        for part in parts
        if (found := _UPDATED.search(part))
    ]
    assert {"receive", "receive_direct", "import_ids"} <= {name for name, *_ in updated}
    named = [(name, table) for name, table, rest in updated if re.search(rf"\b{counted.get(table, '-')}\b\s*=", rest)]
    assert named == []


def test_a_message_that_meets_the_number_of_another_is_stored_all_the_same(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any unique key makes a duplicate, that of a wrong number too: what is neither new nor known is tried again."""
    shop.handle()
    known = shop.receive("m1").seq
    sent: list[bytes] = []

    def wrong(connection: HandlerConnection, sql: bytes) -> bytes:
        if b"_ledger (consumer" in sql:
            if not sent:
                pymysql.connections.Connection.query(connection, f"SET insert_id = {known}")
            sent.append(sql)
        return sql

    meeting(monkeypatch, wrong)
    batch = [arguments(one, "order.paid", "shop", {}) for one in ("m2", "m3", "m4")]
    assert [receipt.status for receipt in shop.receive_many(batch)] == ["accepted"] * 3
    assert len(sent) > 1
    assert shop.count("ledger") == 4
    shop.finish()
    assert shop.effects() == ["m1", "m2", "m3", "m4"]


def test_a_claim_takes_nothing_that_another_server_has_claimed_meanwhile(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Galera shares no locks of rows, and TiDB reads past them: the condition of each write is what counts."""
    shop.handle()
    shop.receive("m1")
    claimed: list[bytes] = []

    def unlocked(_: HandlerConnection, sql: bytes) -> bytes:
        for lock in _LOCKS:
            sql = sql.replace(lock, b"")
        if b"SET worker = " in sql and b"token IS NULL" in sql and not claimed:
            claimed.append(sql)
            elsewhere(shop, f"UPDATE {shop.prefix}queue SET worker = 999, token = 5 WHERE token IS NULL")
        return sql

    meeting(monkeypatch, unlocked)
    assert shop.drain() == 0
    assert len(claimed) == 1
    assert not shop.runs
    assert shop.sql(f"SELECT worker, token FROM {shop.prefix}queue") == [(999, 5)]
    shop.sql(f"UPDATE {shop.prefix}queue SET worker = NULL, token = NULL")
    shop.finish()
    assert shop.effects() == ["m1"]


def test_what_was_claimed_for_a_worker_that_is_gone_comes_free(shop: Shop) -> None:
    """Where locks are not shared, a claim on one server may pass by the take-over on another."""
    shop.handle()
    shop.receive("m1")
    shop.sql(f"UPDATE {shop.prefix}queue SET worker = 999, token = 5")
    with shop.visitor() as witness:
        witness.step(take_over_lapsed(witness.inbox.context, 0))
    assert shop.sql(f"SELECT worker, token FROM {shop.prefix}queue") == [(None, None)]
    shop.finish()
    assert shop.effects() == ["m1"]


def test_what_meets_an_outdated_catalog_leaves_nothing(shop: Shop) -> None:
    """It would be a message in the ledger that nobody runs, and whose copies are all duplicates."""
    shop.handle()
    known = shop.receive("m1")
    row = shop.sql(f"SELECT consumer, source, slot, type_hash, id, hash FROM {shop.prefix}ledger")[0]
    named = dict(zip(("consumer", "source", "slot", "type_hash", "stored_id", "hash"), row, strict=True))
    records = [
        {**named, "stored_id": one, "ordinal": number, "body": b""} for number, one in enumerate((row[4], b"m2", b"m3"))
    ]
    with shop.inbox.store.session() as session:
        for name in ("receive", "receive_direct"):
            shared = {"catalog": -1, "worker": None}
            answers = session.perform((Begin(10.0, 2.0, 20.0), Each(name, records, shared), COMMIT))
            assert answers[1] == []
    assert shop.sql(f"SELECT seq, id FROM {shop.prefix}ledger") == [(known.seq, row[4])]
    shop.finish()
    assert shop.effects() == ["m1"]


def test_a_copy_that_waits_holds_up_no_other_message(mariadb_url: str, mariadb_server: MariadbServer) -> None:
    """With the counter of the ledger locked while it waits, no message could come at all (MariaDB's default mode)."""
    assert mariadb_server.administer("SELECT @@innodb_autoinc_lock_mode") == [(1,)]
    inside, ended = threading.Event(), threading.Event()
    with ExitStack() as stack:
        inline, copying, other = (stack.enter_context(patient(mariadb_url, inside, ended)) for _ in range(3))
        threads = [
            threading.Thread(target=inline.process, kwargs=arguments("m1", "slow", "shop", {})),
            threading.Thread(target=copying.receive, kwargs=arguments("m1", "slow", "shop", {})),
        ]
        threads.append(threading.Thread(target=other.receive, kwargs=arguments("m2", "slow", "shop", {})))
        try:
            threads[0].start()
            wait_until(inside.is_set, message="the handler running")
            threads[1].start()
            wait_until(lambda: waiting(mariadb_server) > 0, message="the copy waiting")
            threads[2].start()
            wait_until(lambda: not threads[2].is_alive(), message="the other message stored")
            assert threads[1].is_alive()
        finally:
            ended.set()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()


def patient(url: str, inside: threading.Event, ended: threading.Event) -> Inbox:
    """An inbox whose handler waits, and whose receives do."""
    inbox = Inbox(url, settings=Settings(lock_wait=LONG, statement_limit=LONG))
    inbox.migrate()

    @inbox.on("slow")
    def slow(_: Message, tx: Any) -> None:
        tx.execute("SELECT 1")
        inside.set()
        ended.wait(LONG.total_seconds())

    inbox.receive(**arguments(f"first {id(inbox)}", "slow", "shop", {}))
    return inbox


def waiting(server: MariadbServer) -> int:
    """How many transactions wait for a lock; beside that, their statements are shown as they came."""
    connection = pymysql.connect(host="127.0.0.1", port=server.port, user="root", use_unicode=False, ssl_disabled=True)
    with connection, connection.cursor() as cursor:
        cursor.execute("SHOW ENGINE INNODB STATUS")
        return int(cursor.fetchall()[0][2].count(b"LOCK WAIT"))


def test_inline_work_whose_transaction_has_ended_does_not_finish(shop: Shop) -> None:
    """The procedure commits and begins anew, so that nothing is seen from outside: the savepoint is gone."""
    shop.sql("CREATE TABLE counter (n int) ENGINE = InnoDB")
    shop.sql("INSERT INTO counter VALUES (0)")
    shop.sql("CREATE PROCEDURE ending () BEGIN COMMIT; UPDATE counter SET n = n + 1; END")
    shop.handle(behaviour=taking(Sql("CALL ending()")))
    assert not shop.process("m1").finished
    assert shop.effects() == []
    assert shop.sql("SELECT n FROM counter") == [(0,)]
    assert shop.count("run") == 0


def test_what_a_handler_has_set_does_not_change_what_it_sends(shop: Shop) -> None:
    """That is written behind it, over the same connection, where text would be read as another charset's."""

    def behaviour(message: Message) -> Steps:
        yield Sql("SET NAMES latin1")
        yield wrote(message)
        message.send("sized", {}, key="gr\u00f6\u00dfe")

    sent: list[str | None] = []
    shop.inbox.add_sink("default", Collecting(sent))
    shop.handle(behaviour=behaviour)
    shop.receive("m1")
    shop.finish()
    assert sent == ["gr\u00f6\u00dfe"]


@dataclass
class Collecting:
    """A destination that remembers keys."""

    keys: list[str | None]

    def publish(self, message: Message) -> None:
        """Remember it."""
        self.keys.append(message.key)


def elsewhere(shop: Shop, statement: str) -> None:
    """Run a statement as another server does."""
    connection = pymysql.connect(**Address.of(shop.url).arguments(), autocommit=True, ssl_disabled=True)
    try:
        connection.query(statement)
    finally:
        connection.close()
