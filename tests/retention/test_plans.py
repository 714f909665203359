"""The plans of the hot statements, on tables full of finished messages (R33): each by its index, never by a scan.

What is asked of the database is the very text that onceward sends; the plan says which index answers it.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from onceward import Inbox
from onceward.flow import Each, Query
from onceward.stores.statements import load

FINISHED = 20_000
UNHANDLED = 5_000
PREFIX = "onceward_"
BIG = ("ledger", "body", "run", "result", "attempt", "audit", "duplicate", "history")
"""Tables that grow with what is finished."""

NEW: dict[str, Any] = {
    "ordinal": 0,
    "consumer": 1,
    "source": 1,
    "stored_id": b"x",
    "type_hash": 1,
    "hash": b"h" * 32,
    "subscription": 1,
    "key_hash": 7,
    "slot": 7,
    "id": "x",
    "type": "t",
    "version": 1,
    "key": "k",
    "key_from": None,
    "aggregate": None,
    "position": None,
    "headers": None,
    "body": b"{}",
    "place": None,
    "sequence": None,
    "destination": None,
    "cause": None,
    "unplaced": None,
    "due_at": None,
    "due_in": None,
}
SHARED = {
    "state": "ready",
    "delay": None,
    "attempts": 0,
    "worker": None,
    "token": None,
    "isolation": 0,
    "outgoing": False,
    "catalog": 1,
}
CLAIM = {
    "worker": 1,
    "token": 1,
    "subscriptions": [1],
    "limit": 100,
    "retries": 50,
    "cursor": 0,
    "held": [],
    "destination": None,
}
HOT: dict[str, Query | Each] = {
    "receive": Each("receive", [NEW], SHARED),
    "known": Each("known", [{name: NEW[name] for name in ("ordinal", "consumer", "source", "stored_id")}]),
    "claim": Query("claim", CLAIM),
    "claim_outgoing": Query("claim_outgoing", {**CLAIM, "destination": "default"}),
    "awaiting": Query("awaiting", {"destinations": ["default", "other"]}),
    "claim_isolated": Query("claim_isolated", {**CLAIM, "level": 3}),
    "isolation_level": Query("isolation_level", {"subscriptions": [1], "destination": None}),
    "park": Query("park", {"worker": 1, "token": 1}),
    "still_claimed": Query("still_claimed", {"worker": 1, "tokens": [1]}),
    "finish": Query(
        "finish",
        {"seqs": [5, 6], "worker": 1, "token": 1, "fence": "m", "code_version": "", "expected": 2},
    ),
    "promote": Query("promote", {"key_hashes": [7]}),
    "settle": Query("settle", {"seq": 5, "worker": 1, "token": 1, "state": "retry", "delay": 1.0, "detach": False}),
    "advance": Query("advance", {"seqs": [5, 6]}),
    "progress": Query("progress", {"seqs": [5, 6]}),
    "busy_keys": Each("busy_keys", [{"key_hash": 7, "consumer": 1}]),
    "lock_free_keys": Each("lock_free_keys", [{"key_hash": 7}]),
    "outcome": Query("outcome", {"seq": 5}),
    "count_duplicates": Each("count_duplicates", [{"seq": 5, "copies": 1}]),
    "forget_bodies": Query("forget_bodies", {"seqs": [5, 6]}),
    "next_ledger": Query("next_ledger", {"after": 0, "keep": 1.0, "limit": 500}),
    "next_bodies": Query("next_bodies", {"after": 0, "keep": 1.0, "limit": 500}),
    "next_runs": Query("next_runs", {"after": 0, "keep": 1.0, "limit": 500}),
    "drop_bodies": Query("drop_bodies", {"seqs": [5, 6]}),
    "forget_messages": Query(
        "forget_messages", {"seqs": [5, 6], "lowest": 5, "highest": 6, "keep": 1.0, "archive_first": False}
    ),
    "unhandled_types": Query("unhandled_types"),
    "unhandled": Query("unhandled", {"types": ["t", "u"], "subscriptions": [1], "passed": [7], "limit": 100}),
    "refused": Query("refused"),
    "history": Query("history", {"level": 1, "since": 10, "until": 70, "width": 60}),
    "referred": Query("referred", {"names": ["folder/2026/01/01/one", "folder/2026/01/01/two"]}),
}


NUMBERS = {
    "sqlite": f"WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {FINISHED}) SELECT n FROM s",
    "postgres": f"SELECT n FROM generate_series(1, {FINISHED}) AS s (n)",
}
WORDS = {
    "sqlite": {"raw": "CAST(n AS blob)", "hash": "zeroblob(32)", "now": "1", "yes": "1", "seqs": "json_array(n)"},
    "postgres": {
        "raw": "n::text::bytea",
        "hash": "decode(repeat('00', 32), 'hex')",
        "now": "1",
        "yes": "true",
        "seqs": "ARRAY[n]",
    },
}
FILL = f"""
INSERT INTO {PREFIX}name (name) VALUES ('default');
INSERT INTO {PREFIX}subscription (consumer, type) VALUES (1, 't');
INSERT INTO {PREFIX}worker (id, process, host, pid, code_version, inline, started_at, alive_until)
VALUES (1, 'p', 'h', 1, '', %yes, %now, %now);
INSERT INTO {PREFIX}ledger (seq, consumer, source, slot, type_hash, id, hash, received_at)
SELECT n, 1, 1, 0, 1, %raw, %hash, %now FROM g;
INSERT INTO {PREFIX}body (seq, source, id, type, version, body, received_at)
SELECT n, 1, 'x', 't', 1, %hash, %now FROM g;
INSERT INTO {PREFIX}run (worker, token, code_version, finished_at, first_seq, last_seq, seqs, messages)
SELECT 1, 1, '', %now, n, n, %seqs, 1 FROM g;
INSERT INTO {PREFIX}result (seq, result) SELECT n, '1' FROM g;
INSERT INTO {PREFIX}duplicate (seq, copies, first_at, last_at) SELECT n, 1, %now, %now FROM g;
INSERT INTO {PREFIX}attempt (seq, attempt, kind, charged, error, code_version, at)
SELECT n, 1, 'error', %yes, 'e', '', %now FROM g;
INSERT INTO {PREFIX}audit (at, actor, action, seq, reason) SELECT %now, 'a', 'redrive', n, '' FROM g;
INSERT INTO {PREFIX}history
    (level, starts_at, consumer, source, type, received, duplicates, mismatches, done, failed, dead)
SELECT 1, n, 'default', 's', 't', 1, 0, 0, 1, 0, 0 FROM g;
INSERT INTO {PREFIX}queue (seq, subscription, key_hash, slot, place, state)
SELECT n, 1, n % 50, 0, n, 'ready' FROM g WHERE n > {FINISHED - 300};
INSERT INTO {PREFIX}queue (seq, slot, place, state, type)
SELECT n, 0, n, 'unhandled', 'strange' FROM g WHERE n <= {UNHANDLED}
"""


def fill(url: str) -> None:
    """Twenty thousand messages, of which all but a few hundred, and those of a strange type, are finished."""
    inbox = Inbox(url)
    inbox.migrate()
    dialect = inbox.store.dialect
    text = FILL
    for word, meaning in WORDS[dialect].items():
        text = text.replace(f"%{word}", meaning)
    with inbox.store.raw() as connection:
        connection.execute(f"CREATE TEMP TABLE g AS {NUMBERS[dialect]}")
        for statement in text.split(";"):
            connection.execute(statement)
    inbox.close()


@pytest.fixture(scope="module")
def postgres_tables(postgres_server: Any) -> Iterator[psycopg.Connection[Any]]:
    """Full tables on PostgreSQL, with two more partitions of bodies."""
    url = postgres_server.create_database("plans")
    fill(url)
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(4):
            connection.execute("SELECT onceward_rotate_partition(0)")
        connection.execute("VACUUM ANALYZE")
        connection.execute("SET plan_cache_mode = force_generic_plan")  # as prepared statements have it in the end
        yield connection
    postgres_server.drop_database("plans")


@pytest.fixture(scope="module")
def sqlite_tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    """Full tables on SQLite."""
    path = tmp_path_factory.mktemp("plans") / "full.db"
    fill(f"sqlite:///{path}")
    connection = sqlite3.connect(path)
    connection.execute("ANALYZE")
    yield connection
    connection.close()


def parameters(request: Query | Each, *, columns: bool) -> dict[str, Any]:
    if isinstance(request, Query):
        return dict(request.params)
    if columns:
        return {**request.shared, **{name: [row[name] for row in request.records] for name in request.records[0]}}
    return {**request.shared, **request.records[0]}


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", []):
        yield from nodes(inner)


@pytest.mark.parametrize("name", sorted(HOT))
def test_postgres_reads_no_big_table_from_end_to_end(postgres_tables: Any, name: str) -> None:
    """R33: no sequential scan of a table that grows, and of the queue none beyond its index on due work."""
    statement = load("postgres", PREFIX)[name][0]
    cursor = postgres_tables.execute(
        f"EXPLAIN (FORMAT JSON) {statement}", parameters(HOT[name], columns=True), binary=False
    )
    plan = cursor.fetchone()[0][0]["Plan"]
    scans = [node["Relation Name"] for node in nodes(plan) if node["Node Type"] == "Seq Scan"]
    big = [table for table in scans if re.fullmatch(rf"{PREFIX}({'|'.join(BIG)})(_\d+)?", table)]
    # A partition that is still empty has nothing to scan.
    assert [table for table in big if table not in {f"{PREFIX}body_1", f"{PREFIX}body_2", f"{PREFIX}body_3"}] == []


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("claim", "queue_ready"),
        ("claim", "body_0_pkey"),
        ("claim_outgoing", "queue_outgoing"),
        ("claim_isolated", "queue_isolated"),
        ("known", "ledger_identity"),
        ("unhandled_types", "queue_unhandled"),
        ("unhandled", "queue_unhandled"),
        ("referred", "body_0_substr_idx"),
        ("show_run", "run_seq"),
        ("history", "history_start"),
    ],
)
def test_postgres_uses_the_index_that_was_made_for_it(postgres_tables: Any, name: str, index: str) -> None:
    """With the planner's way out closed, so that small tables do not hide a condition that no index can answer."""
    request = HOT.get(name, Query(name, {"seq": 5}))
    statement = load("postgres", PREFIX)[name][0]
    postgres_tables.execute("SET enable_seqscan = off")
    try:
        cursor = postgres_tables.execute(f"EXPLAIN (FORMAT JSON) {statement}", parameters(request, columns=True))
        plan = cursor.fetchone()[0][0]["Plan"]
    finally:
        postgres_tables.execute("RESET enable_seqscan")
    assert f"{PREFIX}{index}" in {node.get("Index Name") for node in nodes(plan)}, json.dumps(plan, indent=1)


def test_postgres_looks_into_one_partition_for_one_number(postgres_tables: Any) -> None:
    """The number says which partition: the others are not even opened."""
    rows = postgres_tables.execute(
        "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) SELECT b.type FROM onceward_queue q"
        " JOIN onceward_body b USING (seq) WHERE q.seq = 19999"
    ).fetchall()
    text = "\n".join(row[0] for row in rows)
    partitions = [line for line in text.split("\n") if re.search(r" on onceward_body_\d", line)]
    assert [line for line in partitions if "never executed" not in line] == [
        line for line in partitions if "body_0" in line
    ], text


@pytest.mark.parametrize("name", sorted(HOT))
def test_sqlite_reads_no_big_table_from_end_to_end(sqlite_tables: sqlite3.Connection, name: str) -> None:
    """R33: as on PostgreSQL; SQLite says SCAN where it reads a whole table, SEARCH where an index leads it."""
    bound = {
        key: json.dumps(value) if isinstance(value, list) else value
        for key, value in parameters(HOT[name], columns=False).items()
    } | {"now": 10**15}
    for statement in load("sqlite", PREFIX)[name]:
        steps = [row[3] for row in sqlite_tables.execute(f"EXPLAIN QUERY PLAN {statement}", bound)]
        for step in (step for step in steps if step.startswith("SCAN ")):
            table = step.split()[1].removeprefix(PREFIX)
            assert table not in {*BIG, "l", "b", "r", "a", "d"}, (name, steps)
            # The indexes of the queue are partial: one of them is all there is to read.
            assert table not in {"queue", "q", "e", "n", "m"} or " INDEX " in step, (name, steps)


@pytest.mark.parametrize("name", ["unhandled_types", "unhandled", "park", "busy_keys"])
def test_a_backlog_of_strangers_is_not_read(postgres_tables: Any, name: str) -> None:
    """D27: what waits for others is passed by, not read: a look costs the same with five thousand or five million."""
    statement = load("postgres", PREFIX)[name][0]
    cursor = postgres_tables.execute(
        f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters(HOT[name], columns=True), binary=False
    )
    plan = cursor.fetchone()[0][0]["Plan"]
    read = sum(node["Actual Rows"] * node["Actual Loops"] for node in nodes(plan) if "Scan" in node["Node Type"])
    assert read < UNHANDLED / 10, json.dumps(plan, indent=1)
