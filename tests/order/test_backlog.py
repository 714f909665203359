"""Twenty thousand messages behind one dead head: claiming costs what is due, not what waits (R18, R33)."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from tests.contract.harness import Shop
from tests.order.ledger import Clerk, handle_all, receive

MANY = 20_000


@pytest.fixture
def crowded(postgres_url: str, clerk: Clerk) -> Iterator[Shop]:
    """A shop on PostgreSQL with a dead head and a crowd that waits behind it."""
    with Shop(postgres_url, "def") as shop:
        shop.sql("CREATE TABLE journal (n bigserial, message_id text, account text, seen integer)")
        handle_all(shop, clerk)
        receive(shop, "head", data={"reject": True})
        receive(shop, "pattern")
        shop.drain()
        assert shop.status("pattern") == "waiting"
        _multiply(shop)
        yield shop


def _multiply(shop: Shop) -> None:
    """As many rows as it takes, each like the one that waits."""
    p, seq = shop.prefix, shop.seqs["pattern"]
    more = f"FROM {p}{{}} t, generate_series(1, {MANY - 1}) AS g WHERE t.seq = {seq}"
    shop.sql(
        f"INSERT INTO {p}ledger SELECT 100000 + g, consumer, source, type_hash, slot, id || int4send(g), hash,"
        " received_at " + more.format("ledger")
    )
    shop.sql(
        f"INSERT INTO {p}body SELECT 100000 + g, source, id || g, type, version, key, key_from, aggregate,"
        " position, headers, body, destination,"
        " cause, received_at " + more.format("body")
    )
    shop.sql(
        f"INSERT INTO {p}queue SELECT 100000 + g, subscription, slot, key_hash, 100000 + g, sequence, outgoing,"
        " destination, state, due_at, worker, token, attempts, crashes, isolation " + more.format("queue")
    )
    shop.sql(f"SELECT setval('{p}seq', 200000)")
    shop.sql(f"ANALYZE {p}queue")
    shop.sql(f"ANALYZE {p}body")


def scans(shop: Shop, name: str, *, generic: bool, **params: Any) -> dict[str, set[str]]:
    """How the planner reads the queue for a statement: the kinds of scans, and the indexes they use."""
    statement = shop.inbox.store._statements[name]  # type: ignore[attr-defined]
    with psycopg.connect(shop.url) as connection:
        connection.execute(f"SET plan_cache_mode = force_{'generic' if generic else 'custom'}_plan".encode())
        connection.execute(b"PREPARE statement AS " + statement.sql)
        marks = ", ".join(["%s"] * len(statement.slots))
        cursor = psycopg.ClientCursor(connection)
        cursor.execute(f"EXPLAIN (FORMAT JSON) EXECUTE statement ({marks})".encode(), statement.values(params))
        (plan,) = cursor.fetchall()[0]
        connection.rollback()
    found: dict[str, set[str]] = {"nodes": set(), "indexes": set()}
    _collect(plan[0]["Plan"], f"{shop.prefix}queue", found)
    return found


def _collect(node: dict[str, Any], table: str, found: dict[str, set[str]]) -> None:
    if node.get("Relation Name") == table and "Scan" in node["Node Type"]:
        found["nodes"].add(node["Node Type"])
    if "Index Name" in node:
        found["indexes"].add(node["Index Name"].removeprefix("onceward_"))
    for child in node.get("Plans", ()):
        _collect(child, table, found)


def test_claiming_reads_indexes_only(crowded: Shop) -> None:
    """Whichever plan the server keeps for a prepared statement, and although its statistics know the crowd alone.

    Claims read the small indexes of what is due. Looking for a predecessor, done for each keyed message of a claim, for
    an inline one and after each removal, reads its own key.
    """
    receive(crowded, "free", key="free")
    subscription = crowded.inbox.context.cache.catalog.by_type["opened"][0].id
    claim = {
        "worker": 1,
        "token": 1,
        "limit": 100,
        "cursor": 0,
        "subscriptions": [subscription],
        "retries": 50,
        "held": [],
    }
    there = {**claim, "destination": "default"}
    key = crowded.sql(f"SELECT key_hash FROM {crowded.prefix}queue WHERE seq = %s", crowded.seqs["free"])[0][0]
    reading: list[tuple[str, dict[str, Any]]] = [
        ("claim", claim),
        ("claim_outgoing", there),
        ("awaiting", {"destinations": ["default", "other"]}),
        ("first_due", claim),
        ("keys_in_front", claim),
        ("fair_share", claim),
        ("park", {"worker": 1, "token": 1}),
        ("promote", {"key_hashes": [key]}),
        ("busy_keys", {"key_hash": [key], "consumer": [1]}),
        ("lock_free_keys", {"key_hash": [key]}),
    ]
    slow = []
    for generic in (False, True):
        for statement, params in reading:
            found = scans(crowded, statement, generic=generic, **params)
            if "Seq Scan" in found["nodes"]:
                slow.append((statement, "generic" if generic else "custom"))
            if statement == "claim":
                assert {"queue_ready", "queue_due"} <= found["indexes"]
            if statement == "claim_outgoing":
                assert {"queue_outgoing", "queue_outgoing_due"} <= found["indexes"]
    assert slow == [], "these read the whole queue"


def test_what_is_in_hand_is_found_by_its_number(crowded: Shop) -> None:
    """C40: never through the index of claims, which an old transaction keeps from being cleaned.

    With sixty seconds of 5,000 messages each that made a finish six times as slow.
    """
    claim = {"worker": 1, "token": 1, "seq": 5, "seqs": [5], "delay": 1.0, "longest": 60.0, "most": 10}
    named = {"code_version": "", "fence": "", "expected": 1, "state": "retry", "detach": False}
    for generic in (False, True):
        for statement in ("finish", "settle", "postpone", "put_off", "unclaim", "hold"):
            found = scans(crowded, statement, generic=generic, **claim, **named)
            assert found["indexes"] == {"queue_pkey"}, statement


SMALL = ("queue_ready", "queue_outgoing", "queue_outgoing_due", "queue_due", "queue_isolated", "queue_claimed")
"""Indexes that hold only what is due, claimed or isolated, so that reading all of one is cheap."""
FIRST = ("queue_unhandled",)
"""Of which the first entry is read, or the first of each type: by min(type), EXISTS and LIMIT 1."""
ONE_KEY = ("queue_key (key_hash=?", "queue_waiting (key_hash=?", "INTEGER PRIMARY KEY (rowid=?")


@pytest.mark.parametrize(
    "name",
    [
        *("claim", "claim_outgoing", "claim_isolated", "awaiting", "isolation_level", "keys_in_front", "fair_share"),
        *("first_due", "park", "promote", "busy_keys"),
    ],
)
def test_claiming_reads_indexes_only_on_sqlite(sqlite_url: str, name: str) -> None:
    """C40: the same on SQLite, whose planner knows nothing about the rows: never the queue as a whole, by any index."""
    reading: list[str] = []
    with Shop(sqlite_url, "def") as shop:
        for statement in shop.inbox.store._statements[name]:  # type: ignore[attr-defined]
            params = dict.fromkeys(re.findall(r":(\w+)", statement), 1)
            params |= dict.fromkeys(params.keys() & {"subscriptions", "destinations", "seqs", "key_hashes"}, "[1]")
            with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as connection:
                plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", params)]
            reading += [line for line in plan if re.match(r"(SCAN|SEARCH) (onceward_queue|[qmen])\b", line)]
    assert reading
    for line in reading:
        assert (
            line.endswith((*SMALL, *FIRST))
            or any(f"{index} (" in line for index in (*SMALL, *FIRST))
            or any(one in line for one in ONE_KEY)
        ), line


def test_other_keys_go_on_and_one_command_resolves_the_chain(crowded: Shop) -> None:
    """R18: the crowd is counted, another key is handled, and unblocking lets the first of them go on."""
    receive(crowded, "free", key="free")
    assert crowded.drain() == 1
    assert crowded.inbox.admin.stats().waiting == MANY
    assert crowded.inbox.admin.unblock(crowded.seqs["head"]) == 1
    assert crowded.status("pattern") == "due"
    assert crowded.inbox.admin.stats().waiting == MANY - 1
