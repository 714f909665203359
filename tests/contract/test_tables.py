"""What the tables themselves refuse, and what it costs to remember (C17, C42, C50; HZ-02, HZ-34, HZ-61)."""

from __future__ import annotations

import sqlite3
import uuid
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from onceward import Message, Reject, StoreUnavailable
from tests.contract.behaviour import Sql, Steps, raising, wrote
from tests.contract.harness import Shop, arguments
from tests.waiting import wait_until

# Each is a row that no step would ever move again, or that two workers would both believe to own.
ILLEGAL = {
    "a state that is none": "state = 'Processing'",
    "a state in another case": "state = 'DEAD'",
    "a worker without its token": "worker = 1",
    "a token without its worker": "token = 1",
    "a claim on a dead row": "state = 'dead', worker = 1, token = 1",
    "a retry that is never due": "state = 'retry', due_at = NULL",
    "waiting in no key": "state = 'waiting', key_hash = NULL",
    "ready for nobody": "subscription = NULL",
    "unhandled by somebody": "state = 'unhandled'",
}


@pytest.mark.parametrize("change", ILLEGAL.values(), ids=ILLEGAL.keys())
def test_the_database_refuses_a_state_that_no_move_leaves(shop: Shop, change: str) -> None:
    """HZ-34, I9: not only onceward's own steps keep a row within reach; the table has no other states."""
    shop.handle()
    shop.receive("m1")
    with pytest.raises((sqlite3.IntegrityError, psycopg.IntegrityError)):
        shop.sql(f"UPDATE {shop.prefix}queue SET {change}")
    shop.drain()
    assert shop.effects() == ["m1"]


def test_the_database_refuses_a_second_row_of_one_message(shop: Shop) -> None:
    """C17, C50: the unique key is the mechanism, whoever writes; a truncated digest is refused as well."""
    shop.handle()
    shop.receive("m1")
    columns = "consumer, source, slot, type_hash, id, {}, received_at"
    copy = f"INSERT INTO {shop.prefix}ledger (seq, {columns.format('hash')}) SELECT 999, {{}} FROM {shop.prefix}ledger"
    with pytest.raises((sqlite3.IntegrityError, psycopg.IntegrityError), match=r"(?i)unique"):
        shop.sql(copy.format(columns.format("hash")))
    with pytest.raises((sqlite3.IntegrityError, psycopg.IntegrityError), match=r"(?i)check"):
        shop.sql(f"UPDATE {shop.prefix}ledger SET hash = substr(hash, 1, 8)")
    shop.drain()
    assert shop.effects() == ["m1"]


def test_dead_is_a_state_and_not_a_copy(shop: Shop) -> None:
    """C41, HZ-54, HZ-06: one row before and after, still known as the same message, and never called done."""
    shop.handle(behaviour=raising(lambda: Reject("no such order")))
    shop.receive("m1")
    shop.drain()
    shop.drain()
    assert (shop.count("ledger"), shop.count("queue"), shop.count("body")) == (1, 1, 1)
    assert (shop.status("m1"), shop.inbox.admin.stats().dead, shop.inbox.admin.stats().done) == ("dead", 1, 0)
    copy = shop.receive("m1")
    assert (copy.status, copy.finished) == ("duplicate", False)
    assert shop.detail("m1").hash
    assert "no such order" in shop.error("m1")


MANY = 3_000
SMALL = 260
"""Bytes that a message costs in the ledger for as long as it is remembered, indexes included: 60 million are 16 GB."""


def test_a_remembered_message_is_small(shop: Shop) -> None:
    """C42, C46: what dedupe needs is one narrow row, whatever the body was; it is all that has to stay for long."""
    shop.handle()
    shop.receive_many(arguments(str(uuid.uuid4()), more={"data": "x" * 500}) for _ in range(MANY))
    shop.drain()
    assert shop.count("ledger") == MANY
    if shop.dialect == "postgres":
        ((size,),) = shop.sql(f"SELECT pg_total_relation_size('{shop.prefix}ledger')")
    else:
        of_ledger = f"SELECT name FROM sqlite_schema WHERE tbl_name = '{shop.prefix}ledger'"
        ((size,),) = shop.sql(f"SELECT sum(pgsize) FROM dbstat WHERE name IN ({of_ledger})")
    assert size / MANY < SMALL


def test_sqlite_is_set_up_to_keep_what_it_commits(sqlite_shop: Shop) -> None:
    """HZ-61: a handler works in WAL mode, with every commit synced, in a transaction that writes from its beginning."""
    seen: list[Any] = []

    def look(message: Message) -> Steps:
        for pragma in ("journal_mode", "synchronous"):
            ((value,),) = yield Sql(f"PRAGMA {pragma}")
            seen.append(value)
        yield wrote(message)

    sqlite_shop.handle(behaviour=look)
    sqlite_shop.receive("m1")
    sqlite_shop.drain()
    assert seen == ["wal", 2]


def test_times_are_exact_and_those_of_the_moment(shop: Shop) -> None:
    """HZ-28: microseconds, read when a row is written; not the second, and not when its transaction began."""
    shop.handle()
    before = datetime.now(UTC)
    shop.receive_many(arguments(f"m{number}") for number in range(20))
    shop.drain()
    after = datetime.now(UTC)
    times = [row.received_at for row in shop.inbox.admin.messages()]
    assert before <= min(times) <= max(times) <= after
    assert any(time.microsecond % 1000 for time in times)


def test_a_server_that_only_reads_is_said(postgres_shop: Shop) -> None:
    """C17, C16: what cannot write cannot decide; nothing is accepted, and nothing is run."""
    postgres_shop.handle()
    postgres_shop.receive("before")
    ((database,),) = postgres_shop.sql("SELECT current_database()")
    postgres_shop.sql(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
    try:
        with postgres_shop.visitor() as reader:
            reader.handle()
            for call in (reader.receive, reader.process, reader.process):
                with pytest.raises(StoreUnavailable):
                    call("meanwhile")
            connected = "datname = current_database() AND pid <> pg_backend_pid() AND state LIKE 'idle in transaction%'"
            wait_until(lambda: not postgres_shop.sql(f"SELECT pid FROM pg_stat_activity WHERE {connected}"))
    finally:
        postgres_shop.sql(f"ALTER DATABASE {database} RESET default_transaction_read_only")
    assert postgres_shop.count("ledger") == 1
    postgres_shop.drain()
    assert postgres_shop.effects() == ["before"]
