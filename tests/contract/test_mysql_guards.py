"""What only MySQL and MariaDB let a handler do, or do by themselves (R36): each ends in the rules of every store."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pymysql
import pytest

from onceward import ConfigurationError, Inbox, Message, StoreError
from onceward.stores.mysql.address import Address
from onceward.stores.mysql.aio import AsyncHandlerConnection
from onceward.stores.mysql.guard import HandlerConnection
from onceward.stores.mysql.store import MysqlStore
from onceward.stores.mysql.wire import COMMIT
from tests.contract.behaviour import Behaviour, Do, Sql, Steps, taking, wrote
from tests.contract.harness import Kind, Shop, arguments, in_threads
from tests.waiting import wait_until

CONFLICT = b"ROLLBACK;\nSIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'met another server'"
"""What a server does whose commit meets another's."""


@pytest.fixture
def shop(mariadb_url: str, kind: Kind) -> Iterator[Shop]:
    """A shop on MariaDB."""
    with Shop(mariadb_url, kind) as shop:
        shop.sql("CREATE TABLE counter (id int PRIMARY KEY, n int NOT NULL) ENGINE = InnoDB")
        shop.sql("INSERT INTO counter VALUES (1, 0), (2, 0)")
        yield shop


def swallowing(first: str, second: str) -> Behaviour:
    """A handler that writes, then passes over whatever the second statement raises, and goes on."""

    def behaviour(message: Message) -> Steps:
        yield Sql(first)
        yield Do(_tried(second))
        yield wrote(message)

    return behaviour


def _tried(statement: str) -> Any:
    def run(tx: Any) -> Any:
        done = None
        with suppress(Exception):  # whatever it is: another test may have loaded the driver, and its errors, anew
            done = tx.execute(statement)
        return _passed_over(done) if hasattr(done, "__await__") else None

    return run


async def _passed_over(waiting: Any) -> None:
    from asyncmy.errors import Error  # noqa: PLC0415 - of async handlers alone

    try:
        await waiting
    except Error:
        return


def other(shop: Shop) -> Any:
    """A connection of somebody else's, in a transaction."""
    return pymysql.connect(**Address.of(shop.url).arguments(), autocommit=False, ssl_disabled=True)


# The message that is lost where the number is named beside a duplicate


def test_no_id_is_lost_where_batches_of_the_same_ids_meet(mariadb_url: str) -> None:
    """Three feeders deliver the same ids in shuffled batches; each is stored once (MariaDB lost 2 to 4 of 3,000)."""
    with Inbox(mariadb_url) as inbox:
        inbox.migrate()
        inbox.on("order.paid")(_nothing)
        inbox.receive(**arguments("first", "order.paid", "shop", {}))

    def feed(feeder: int) -> int:
        chance = random.Random(feeder)
        numbers = list(range(600))
        chance.shuffle(numbers)
        accepted = 0
        with Inbox(mariadb_url) as inbox:
            inbox.on("order.paid")(_nothing)
            for start in range(0, len(numbers), 60):
                batch = [arguments(f"id-{one}", "order.paid", "shop", {}) for one in numbers[start : start + 60]]
                accepted += sum(receipt.status == "accepted" for receipt in _received(inbox, batch))
        return accepted

    counts = in_threads(*(lambda feeder=feeder: feed(feeder) for feeder in range(3)))
    with Inbox(mariadb_url) as inbox, inbox.transaction() as tx:
        rows = tx.execute("SELECT count(*), count(DISTINCT id) FROM onceward_ledger").fetchall()
    assert rows == ((601, 601),)
    assert sum(counts) == 600


def _nothing(_: Message) -> None:
    """Has no effect."""


def _received(inbox: Inbox, batch: list[Any]) -> list[Any]:
    while True:
        try:
            return inbox.receive_many(batch)
        except StoreError:  # a deadlock; the batch is sent again
            continue


# Errors that a handler cannot pass over


def test_a_handler_that_passes_over_a_lock_wait_time_out_does_not_finish(shop: Shop) -> None:
    """MySQL undoes only that statement: half of what the handler believes in would be committed."""
    shop.handle(
        behaviour=swallowing(
            "UPDATE counter SET n = n + 1 WHERE id = 1",
            "SELECT n FROM counter WHERE id = 2 FOR UPDATE NOWAIT",
        )
    )
    shop.receive("m1")
    holder = other(shop)
    with holder.cursor() as cursor:
        cursor.execute("UPDATE counter SET n = n + 1 WHERE id = 2")
        assert shop.drain() == 0
    holder.rollback()
    holder.close()
    assert shop.sql("SELECT n FROM counter WHERE id = 1") == [(0,)]
    assert "swallowed" in shop.detail(shop.seqs["m1"]).history[0].error
    shop.finish()
    assert shop.sql("SELECT n FROM counter WHERE id = 1") == [(1,)]
    assert shop.effects() == ["m1"]


def test_a_handler_may_go_back_to_its_own_savepoint_after_a_time_out(shop: Shop) -> None:
    def behaviour(message: Message) -> Steps:
        yield Sql("SAVEPOINT mine")
        yield Do(_tried("SELECT n FROM counter WHERE id = 2 FOR UPDATE NOWAIT"))
        yield Sql("ROLLBACK TO SAVEPOINT mine")
        yield wrote(message)

    shop.handle(behaviour=behaviour)
    shop.receive("m1")
    holder = other(shop)
    with holder.cursor() as cursor:
        cursor.execute("UPDATE counter SET n = n + 1 WHERE id = 2")
        assert shop.drain() == 1
    holder.rollback()
    holder.close()
    assert shop.effects() == ["m1"]


def test_a_handler_that_passes_over_a_deadlock_does_not_finish(shop: Shop) -> None:
    """MySQL undoes the whole transaction and silently begins another: it would commit what comes after."""
    holder = other(shop)
    with holder.cursor() as cursor:
        cursor.execute("UPDATE counter SET n = n + 1 WHERE id = 2")
        for _ in range(5):  # it has written more, so that the handler is the one that goes
            cursor.execute("INSERT INTO counter SELECT max(id) + 1, 0 FROM counter")
    crossed: list[threading.Thread] = []

    def cross(_: Any) -> None:
        def wait() -> None:
            with holder.cursor() as cursor:
                cursor.execute("UPDATE counter SET n = n + 1 WHERE id = 1")
            holder.rollback()

        if not crossed:
            crossed.append(threading.Thread(target=wait))
            crossed[0].start()
            wait_until(lambda: _one_waits(shop), message="the other transaction waiting")

    def behaviour(message: Message) -> Steps:
        yield Sql("UPDATE counter SET n = n + 10 WHERE id = 1")
        yield Do(cross)
        yield Do(_tried("UPDATE counter SET n = n + 10 WHERE id = 2"))
        yield wrote(message)

    shop.handle(behaviour=behaviour)
    shop.receive("m1")
    shop.drain()
    crossed[0].join()
    holder.close()
    shop.finish()
    assert shop.sql("SELECT id, n FROM counter WHERE id <= 2 ORDER BY id") == [(1, 10), (2, 10)]
    assert shop.effects() == ["m1"]


def _one_waits(shop: Shop) -> bool:
    """Whether a transaction waits for a lock. InnoDB renews this view only when nobody has read it for 0.1 seconds."""
    if os.environ.get("ONCEWARD_MYSQL") == "tidb":
        return bool(shop.sql("SELECT 1 FROM information_schema.tidb_trx WHERE state = 'LockWaiting'"))
    time.sleep(0.15)
    return bool(shop.sql("SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'") == [(1,)])


# What a transaction sees, and what it writes


def test_a_handler_sees_what_others_have_committed_meanwhile(shop: Shop) -> None:
    """READ COMMITTED, whatever the server's default is."""
    seen: list[Any] = []

    def behaviour(message: Message) -> Steps:
        yield Do(_reading(seen))
        shop.sql("UPDATE counter SET n = 7 WHERE id = 1")
        yield Do(_reading(seen))
        yield wrote(message)

    shop.handle(behaviour=behaviour)
    shop.receive("m1")
    assert shop.drain() == 1
    assert [row for rows in seen for row in rows] == [(0,), (7,)]


def _reading(seen: list[Any]) -> Any:
    def run(tx: Any) -> Any:
        done = tx.execute("SELECT n FROM counter WHERE id = 1")
        return _read(done, seen) if hasattr(done, "__await__") else seen.append(done.fetchall())

    return run


async def _read(waiting: Any, seen: list[Any]) -> None:
    seen.append(await (await waiting).fetchall())


def test_whoever_claims_a_message_writes_the_lock_of_its_key(shop: Shop) -> None:
    """A cluster of several writers compares what was written, and no lock: two claims of a key meet in this row."""
    uses = f"SELECT uses FROM {shop.prefix}key_lock"
    claimed: list[Any] = []

    def behaviour(message: Message) -> Steps:
        yield Do(lambda _: claimed.append(shop.sql(uses)[0][0]))
        if message.attempt == 1:
            raise RuntimeError("so that the row stays")
        yield wrote(message)

    shop.handle(behaviour=behaviour, key="key")
    shop.receive("m1", data={"key": "a"})
    shop.drain()
    ((before,),) = shop.sql(uses)
    shop.finish()
    assert len(claimed) == 2
    assert claimed[1] > before


# A commit that meets another


@pytest.mark.needs("SIGNAL")
@pytest.mark.parametrize("half", [b"_run (", b"_queue ("], ids=["finish", "receive"])
def test_a_commit_that_fails_with_a_conflict_is_free_and_repeated(
    shop: Shop, half: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a cluster of several writers: nothing of it is there, nobody is charged, and it is done again."""
    failed: list[bytes] = []
    inside: set[Any] = set()

    def refused(connection: Any, sql: bytes) -> bytes:
        """The half and its commit are one packet, or two where something is read in between."""
        if half in sql:
            inside.add(connection)
        if failed or connection not in inside or not sql.endswith(COMMIT):
            return sql
        failed.append(sql)
        return sql.removesuffix(COMMIT) + CONFLICT

    own, own_async = HandlerConnection.own_query, AsyncHandlerConnection.own_query
    monkeypatch.setattr(HandlerConnection, "own_query", lambda self, sql: own(self, refused(self, sql)))
    monkeypatch.setattr(AsyncHandlerConnection, "own_query", lambda self, sql: own_async(self, refused(self, sql)))
    shop.handle(behaviour=taking(Sql("UPDATE counter SET n = n + 1 WHERE id = 1")))
    assert shop.receive("m1").status == "accepted"
    shop.finish()
    assert len(failed) == 1
    assert (shop.sql("SELECT n FROM counter WHERE id = 1"), shop.effects()) == ([(1,)], ["m1"])
    assert [attempt for attempt in shop.detail("m1").history if attempt.charged] == []


# What ends a transaction


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE more (id int)",
        "/* now */ alter table counter ADD m int",
        "-- now\nDROP TABLE counter",
        "/*!40000 TRUNCATE counter */",
        "LOCK TABLES counter WRITE",
        "SET autocommit = 1",
        "SET @@session.autocommit = 1",
        "UPDATE counter SET n = 5; COMMIT",
        "UPDATE counter SET n = 5 /* ' */ ; commit",
        "XA START 'a'",
        "BEGIN",
        "START TRANSACTION",
        "COMMIT",
        "ROLLBACK",
    ],
)
def test_what_would_end_the_transaction_is_refused_where_it_stands(shop: Shop, statement: str) -> None:
    shop.handle(behaviour=taking(Sql("UPDATE counter SET n = 7 WHERE id = 1"), Sql(statement)))
    shop.receive("m1")
    assert shop.drain() == 0
    assert shop.sql("SELECT n FROM counter ORDER BY id LIMIT 2") == [(0,), (0,)]
    assert "ContractViolation" in shop.detail(shop.seqs["m1"]).history[0].error


@pytest.mark.parametrize("text", ["a;b", "it''s; COMMIT", "x\\';COMMIT", '"; COMMIT', "-- ; COMMIT"])
def test_a_semicolon_in_a_value_ends_nothing(shop: Shop, text: str) -> None:
    shop.handle(behaviour=taking(Sql("SELECT %s, n FROM counter", (text,))))
    shop.receive("m1")
    assert shop.drain() == 1
    assert shop.effects() == ["m1"]


@pytest.mark.needs("procedures")
def test_a_procedure_that_commits_is_noticed_and_its_message_does_not_finish(shop: Shop) -> None:
    """The text does not say it: the fence of the transaction does."""
    shop.sql("CREATE PROCEDURE ending () BEGIN UPDATE counter SET n = n + 1 WHERE id = 1; COMMIT; END")
    shop.handle(behaviour=taking(Sql("CALL ending()")))
    shop.receive("m1")
    assert shop.drain() == 0
    row = shop.detail(shop.seqs["m1"])
    assert row.status == "dead"
    assert "ended" in row.history[0].error
    assert shop.effects() == []


def test_what_a_handler_sets_does_not_reach_the_next_message(shop: Shop) -> None:
    """Another database, another charset, other rules of quoting: ours are still found and written."""
    shop.handle(
        behaviour=taking(
            Sql("SET NAMES latin1"),
            Sql("SET SESSION sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'"),
            Sql("SET SESSION innodb_lock_wait_timeout = 1"),
        ),
        key="key",
    )
    for one in ("m1", "m2"):
        shop.receive(one, data={"key": "schlüssel \\ '"})
    assert shop.drain() == 2
    assert shop.effects() == ["m1", "m2"]


# Text is compared byte by byte


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("order-a", "order-A"),
        ("order", "order "),
        ("caf\u00e9", "cafe\u0301"),
        ("stra\u00dfe", "strasse"),
        ("a", "\u00e4"),
    ],
)
def test_two_texts_are_one_only_where_their_bytes_are(shop: Shop, one: str, two: str) -> None:
    """Ids, keys, types and sources: whatever the server's collation takes for equal."""
    shop.handle(f"type.{one.strip()}", key="key")
    if two.strip() != one.strip():
        shop.handle(f"type.{two.strip()}", key="key")
    for text in (one, two):
        assert shop.receive(text, f"type.{text.strip()}", data={"key": text}).status == "accepted"
        assert shop.receive(text, f"type.{text.strip()}", data={"key": text}).status == "duplicate"
        if text == text.strip():
            source = f"source {text}"
            assert shop.receive(f"same {text}", f"type.{text}", source=source, data={"key": text}).status == "accepted"
    assert len({row[0] for row in shop.sql(f"SELECT key_hash FROM {shop.prefix}queue")}) == 2
    shop.finish()
    assert set(shop.effects()) >= {one, two}


def test_numbers_of_keys_that_differ_in_a_space_are_counted_apart(shop: Shop) -> None:
    shop.handle(key="key", sequence="n")
    for key in ("k", "k ", "K"):
        for number in (1, 2):
            shop.receive(f"{key}|{number}", data={"key": key, "n": number})
    assert shop.drain() == 6
    assert shop.sql(f"SELECT DISTINCT applied FROM {shop.prefix}progress") == [(2,)]
    assert shop.count("progress") == 3


# Sizes


def test_a_body_larger_than_the_server_takes_is_refused_with_what_to_do(shop: Shop) -> None:
    shop.handle()
    with pytest.raises(StoreError, match="max_allowed_packet"):
        shop.receive("large", body=b'"' + b"x" * (65 << 20) + b'"')
    assert shop.receive("m1").status == "accepted"
    shop.drain()


def test_many_large_bodies_go_in_several_packets(shop: Shop) -> None:
    shop.handle()
    batch = [arguments(f"m{one}", "order.paid", "shop", {"body": b'"' + b"x" * (3 << 20) + b'"'}) for one in range(8)]
    assert [receipt.status for receipt in shop.receive_many(batch)] == ["accepted"] * 8
    assert shop.drain() == 8


# Addresses


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("mysql://root@localhost", "names no database"),
        ("mysql://root@localhost:port/shop", "[Pp]ort"),
        ("mysql://root@localhost/shop?charset=latin1", "utf8mb4"),
        ("mysql://root@localhost/shop?sslmode=require", "sslmode"),
    ],
)
def test_an_address_that_cannot_be_meant_is_refused(url: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        MysqlStore(url, "onceward_")


def test_the_parts_of_an_address_are_read() -> None:
    address = Address.of("mariadb://me:p%40ss@db:3307/my%20shop?ssl=true")
    assert (address.host, address.port, address.user, address.password) == ("db", 3307, "me", "p@ss")
    assert address.schema == "`my shop`"
    assert address.secure() is not None
    assert Address.of("mysql://db/shop").secure() is None
