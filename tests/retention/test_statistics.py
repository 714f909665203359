"""Plans that cannot go wrong (D53): what does the work finds its rows by index, whatever the statistics say.

What is planned is the very text that onceward sends, with its settings. The queue of a quiet service is analysed while
it is empty, so that its statistics say "no rows" when the burst comes; those of a busy one may say anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import psycopg
import pytest

from onceward.flow import Each
from onceward.message import Message
from onceward.stores.postgres.statement import Statement
from onceward.stores.postgres.wire import BY_RANGE, OWN_PLANS
from onceward.stores.statements import load
from tests.contract.behaviour import Sql, Steps
from tests.contract.harness import Kind, Shop, arguments
from tests.retention.plans import CLAIMED, GROWING, faults, fill, pretend
from tests.retention.test_plans import NEW, SHARED

SIZES = {"one_": 1, "some_": 1_000, "many_": 500_000}
BELIEFS = ((0, None), (1, "many_"), (1_000_000, None), (1_000_000, "some_"), (1_000_000, "many_"))
"""How many rows a table is believed to have, and like whose columns its own are: those of others, or unknown."""
MODES = ("force_generic_plan", "force_custom_plan")
CLAIM = {"worker": 1, "token": 1, "subscriptions": [1, 2, 3], "limit": 100, "cursor": 0, "destination": None} | {
    "retries": 50,
    "held": [7, 8],
}
MINE = {"worker": 1, "token": 1, "seq": 5, "delay": 1.0}
SEQS = list(range(1, CLAIMED + 1))
MESSAGE = {"consumer": 1, "source": 2, "stored_id": b"\0\0\0\1"}
WALK = {"after": 0, "keep": 1.0, "limit": 500}
WORK: dict[str, dict[str, Any]] = {
    "receive": {**SHARED, **{name: [value, value] for name, value in NEW.items()}},
    "receive_of_one": {**SHARED, **NEW},
    "receive_direct": {**{name: [value, value] for name, value in NEW.items()}, "catalog": 1},
    "receive_direct_of_one": {**NEW, "catalog": 1},
    "known": {"ordinal": [0, 1], **{name: [value, value] for name, value in MESSAGE.items()}},
    "known_of_one": {"ordinal": 0, **MESSAGE},
    "known_unplaced": {
        "ordinal": [0, 1],
        "source": [2, 2],
        "stored_id": [MESSAGE["stored_id"]] * 2,
        "type": ["strange1", "strange2"],
    },
    "ages": {"seqs": SEQS},
    "outcome": {"seq": 5},
    "forget_first_seen": {"source": 2, "window": 60.0},
    "requeue_own": {**NEW, **SHARED, **MESSAGE, "seq": 5, "after": None},
    "lock_free_keys": {"key_hash": [7, 8]},
    "lock_free_keys_of_one": {"key_hash": 7},
    "busy_keys": {"key_hash": [7, 8], "consumer": [1, 1]},
    "busy_keys_of_one": {"key_hash": 7, "consumer": 1},
    "progress_of": {"consumer": 1, "aggregate": "", "key": "k"},
    "claim": CLAIM,
    "claim_outgoing": {**CLAIM, "destination": "default"},
    "claim_isolated": {**CLAIM, "level": 1, "held": []},
    "first_due": CLAIM,
    "keys_in_front": CLAIM,
    "fair_share": CLAIM,
    "isolation_level": CLAIM,
    "awaiting": {"destinations": ["default", "other"]},
    "hasten": {"outgoing": False, "subscriptions": [1, 2], "destination": None, "limit": 100},
    "body_of": {"seq": 5},
    "park": MINE,
    "move": {**MINE, "key_hash": 7, "slot": 7, "sequence": None},
    "still_claimed": {"worker": 1, "tokens": [1, 2]},
    "finish": {**MINE, "seqs": SEQS, "code_version": "", "fence": "m", "expected": CLAIMED},
    "promote": {"key_hashes": [7, 8, 9]},
    "forget_bodies": {"seqs": SEQS},
    "settle": {**MINE, "state": "retry", "detach": False},
    "postpone": {**MINE, "longest": 60.0, "most": 5},
    "put_off": {**MINE, "seqs": SEQS},
    "unclaim_tokens": {"worker": 1, "tokens": [1, 2]},
    "unclaim": {**MINE, "seqs": SEQS},
    "dequeue": {"seqs": SEQS},
    "hold": MINE,
    "claimed_by": MINE,
    "tokens_of": {"worker": 1},
    "take_over": {"worker": 1, "charge": 0, "crash_limit": 3, "level": 4},
    "unclaim_all": MINE,
    "unhandled_types": {},
    "unhandled": {"types": ["strange1", "strange2"], "subscriptions": [1, 2], "passed": [1], "limit": 100},
    "adopt": {
        "seq": 6,
        "unplaced": None,
        "subscription": 1,
        "key_hash": 7,
        "slot": 7,
        "sequence": None,
        "place": None,
        "due_at": None,
    },
    "mark_refused": {"seq": 6, "key_hash": 7},
    "bring_forward": {"seq": 6, "place": 5, "since": 5},
    "remove_unhandled": {"seq": 6},
    "set_body_key": {"seq": 5, "key": "k", "aggregate": None, "key_from": None},
    "redrive": {"seq": 5, "key_hash": 7, "seen_key": 7},
    "key_of": {"seq": 5},
    "detach": {"seq": 5},
    "discard": {"seq": 5, "key_hash": 7, "scheduled": False},
    "make_due": {"seq": 5},
    "make_body_due": {"seq": 5},
    "advance": {"seqs": SEQS},
    "retreat": {"seq": 5, "key_hash": 7},
    "progress": {"seqs": SEQS},
    "effect": {"key": "5", "seq": 5},
    "effect_done": {"key": "5", "result": None},
    "effect_held": {"key": "5", "patience": 60.0},
    "keep_effects": {"seq": 5, "stored": 6},
    "unfinished_of": {"subscriptions": [1], "after": 0, "limit": 100},
    "old_partitions": {"keep": 1.0},
    "next_bodies": WALK,
    "lock_ledger": {"seqs": SEQS},
    "drop_bodies": {"seqs": SEQS},
    "next_ledger": WALK,
    "forget_messages": {"seqs": SEQS, "lowest": 1, "highest": CLAIMED, "keep": 1.0, "archive_first": False},
    "next_runs": WALK,
    "forget_runs": {"seqs": SEQS},
    "forget_effects": {"keep": 1.0},
    "bodies_after": WALK,
    "archivable": WALK,
    "lock_finished": {"seq": 5},
    "erase": {"seq": 5},
}
"""Every statement that does work on tables that grow, and what it may be asked."""
ADDING = """advance_inline add_attempt add_audit count_duplicates enqueue finish_direct first_seen import_ids intend
store_results"""
"""Statements that add a row or change it by its primary key: nothing is to be planned."""
OPERATING = """cases_after effect_undone hand_on keep_first_types lock_effect quarantine quarantined referred
retry_revised revise_body same_id"""
"""Statements about single messages, effects, cases in quarantine and large bodies, which are few."""
REPORTS = """ahead audit blocked_keys dead_groups effects failing find find_id illegal keyless list_finished
list_unfinished oldest refused running search show show_attempts show_audit show_cases show_run show_sent
sizes sources stats subscribed traffic unserved workers"""
"""Statements that tell people something: they may read much, and are planned as the server likes."""


@pytest.fixture
def tables(postgres_server: Any) -> Iterator[psycopg.Connection[Any]]:
    """Tables of three sizes, and a connection on which the statements are planned as onceward's own."""
    url = postgres_server.create_database("statistics")
    for prefix, rows in SIZES.items():
        fill(url, prefix, rows)
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
        connection.execute("SET allow_system_table_mods = on")
        connection.execute("ANALYZE")
        yield connection
    postgres_server.drop_database("statistics")


def prepare(connection: psycopg.Connection[Any], prefix: str) -> dict[str, Statement]:
    """The statements of some tables, prepared as the wire does it, with the settings that they run under."""
    connection.execute("DEALLOCATE ALL")
    found = {}
    for name in WORK:
        statement = Statement.of(name, load("postgres", prefix)[name.removesuffix("_of_one")][0])
        found[name] = statement.single if name.endswith("_of_one") and statement.single else statement
        connection.execute(b"PREPARE " + name.encode() + b" AS " + found[name].sql)
    return found


def explain(
    connection: Any, statement: Statement, name: str, *, options: str = "FORMAT JSON", params: Any = None
) -> dict[str, Any]:
    """How the server would run a statement, or has run it."""
    own, values = OWN_PLANS
    psycopg.RawCursor(connection).execute(own.sql, own.values(values))
    if name in {"forget_messages", "requeue_own"}:
        connection.execute(BY_RANGE.sql)
    marks = ", ".join(["%s"] * len(statement.slots))
    call = f"EXECUTE {name} ({marks})" if marks else f"EXECUTE {name}"
    cursor = psycopg.ClientCursor(connection)
    cursor.execute(f"EXPLAIN ({options}) {call}".encode(), statement.values(params or WORK[name]))
    plan: dict[str, Any] = cursor.fetchall()[0][0][0]["Plan"]
    return plan


def test_whatever_the_statistics_say(tables: psycopg.Connection[Any]) -> None:
    """Every statement that works finds its rows by index, and a claim among many touches what it takes.

    One test, so that the tables are filled once.
    """
    assert {prefix: wrong_plans(tables, prefix) for prefix in SIZES} == {prefix: {} for prefix in SIZES}
    touched = blocks(tables, "many_")
    assert max(touched.values()) < 100 * CLAIMED, touched
    assert min(touched.values()) > CLAIMED, touched  # each of them has found its rows


def wrong_plans(tables: psycopg.Connection[Any], prefix: str) -> dict[tuple[Any, ...], list[str]]:
    """Generic and custom plans; with tables that are believed empty or full, by what they hold or by nothing."""
    statements = prepare(tables, prefix)
    wrong: dict[tuple[Any, ...], list[str]] = {}
    for believed, known in BELIEFS:
        with tables.transaction(force_rollback=True):
            pretend(tables, prefix, rows=believed, known=known)
            for mode in MODES:
                tables.execute(f"SET LOCAL plan_cache_mode = {mode}".encode())
                for name, statement in statements.items():
                    if found := faults(name, explain(tables, statement, name), prefix):
                        wrong[believed, known, mode, name] = found
    return wrong


def blocks(tables: psycopg.Connection[Any], prefix: str) -> dict[tuple[Any, ...], int]:
    """How many blocks are touched when a hundred messages among all these are claimed, parked and finished."""
    statements, last = prepare(tables, prefix), SIZES[prefix]
    finished = {**WORK["finish"], "seqs": list(range(last - CLAIMED + 1, last + 1))}
    touched = {}
    for believed, mode, name in product((0, 1_000_000), MODES, ("claim", "park", "finish")):
        with tables.transaction(force_rollback=True):
            pretend(tables, prefix, rows=believed)
            tables.execute("SELECT set_config('onceward.fence', 'm', true)")
            tables.execute(f"SET LOCAL plan_cache_mode = {mode}".encode())
            options = "ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON"
            params = finished if name == "finish" else WORK[name]
            plan = explain(tables, statements[name], name, options=options, params=params)
            touched[believed, mode, name] = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    return touched


def test_no_statement_is_left_out() -> None:
    """A new statement on a table that grows is planned here, or is one of those that need no plan of ours."""
    statements = load("postgres", "x_")
    about = {name for name, (text, *_) in statements.items() if any(f"x_{table}" in text for table in GROWING)}
    work = {name.removesuffix("_of_one") for name in WORK}
    assert about == work | {*ADDING.split(), *OPERATING.split(), *REPORTS.split()}


def test_a_burst_into_a_queue_that_was_analysed_empty(postgres_url: str) -> None:
    """D53: it drains as one that the server knows: each message costs some blocks of the queue, not all of them."""
    count, keys = 2_000, 200
    with Shop(postgres_url, "def") as shop:
        shop.handle(group=100, key="k")
        shop.sql(f"ALTER TABLE {shop.prefix}queue SET (autovacuum_enabled = off)")
        shop.sql("UPDATE pg_class SET relpages = 10, reltuples = 0 WHERE relname = %s", f"{shop.prefix}queue")
        shop.receive_many(arguments(f"m{n}", more={"data": {"k": n % keys}}) for n in range(count))
        assert shop.drain() == count
    with psycopg.connect(postgres_url) as connection:
        read = "heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read"
        ((found,),) = connection.execute(
            f"SELECT {read} FROM pg_statio_user_tables WHERE relname = 'onceward_queue'".encode()
        ).fetchall()
    assert found < 200 * count


SETTINGS = ("enable_seqscan", "enable_bitmapscan", "max_parallel_workers_per_gather", "jit")


@pytest.mark.parametrize("kind", ["def", "async"])
def test_a_handler_has_the_settings_of_the_server(postgres_url: str, kind: Kind) -> None:
    """Ours are for our own statements alone: of a worker, beside others in a group, and inline with a key."""
    asked = ", ".join(f"current_setting('{name}')" for name in SETTINGS)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {connection.info.dbname} SET jit = on".encode())
    with Shop(postgres_url, kind) as shop:
        (usual,) = shop.sql(f"SELECT {asked}")
        seen: dict[str, Any] = {}

        def looking(message: Message) -> Steps:
            ((*seen[message.id],),) = yield Sql(f"SELECT {asked}")
            if message.id == "m1":
                raise ValueError

        shop.handle(behaviour=looking, group=3, key="k")
        shop.sql(
            "CREATE TABLE recorded AS SELECT 'none' AS what, '' AS seqscan;"
            "CREATE FUNCTION record_it() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " INSERT INTO recorded VALUES (TG_OP, current_setting('enable_seqscan')); RETURN NULL; END $$;"
            f"CREATE TRIGGER record_it AFTER UPDATE OR DELETE ON {shop.prefix}queue EXECUTE FUNCTION record_it()"
        )
        shop.receive_many(arguments(f"m{n}", more={"data": {"k": n}}) for n in range(6))
        shop.drain()
        shop.process("inline", data={"k": "other"})
        assert set(seen) == {"inline", *(f"m{n}" for n in range(6))}
        assert {tuple(found) for found in seen.values()} == {tuple(usual)}
        recorded = {
            (what, setting) for what, setting in shop.sql("SELECT what, seqscan FROM recorded") if what != "none"
        }
        assert recorded == {("UPDATE", "off"), ("DELETE", "off")}


def test_what_is_asked_before_a_handler_is_planned_as_ours(postgres_url: str) -> None:
    """In the handler's transaction, and in the same round trip; the handler then meets the server's own settings."""
    with Shop(postgres_url, "def") as shop:
        session: Any = shop.inbox.store.connect()
        try:
            begin, key = shop.inbox.context.long(5, "fence"), Each("busy_keys", [{"key_hash": 7, "consumer": 1}])
            sent, _ = session._plan((begin, key))
            told = [(statement.name, params.get("plans", "")) for statement, params in sent]
            assert told == [
                ("begin", ""),
                ("begin_limits", None),
                ("plans", "0"),
                ("busy_keys_of_one", ""),
                ("plans", None),
            ]
        finally:
            session.close()
