"""Tables of any size, and statistics that say whatever one wants: for the tests of plans on PostgreSQL.

The rows of the queue are of every kind at once, so that whoever reads past what it came for reads a lot.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import psycopg

from onceward import Inbox

CLAIMED = 100
"""Rows of the queue that carry the claim (worker 1, token 1), which is the one that the statements are about."""
KEYS = 2_000

_FILL = """
INSERT INTO {p}name (name) VALUES ('service'), ('source'), ('default');
INSERT INTO {p}subscription (consumer, type) SELECT 1, 't' || n FROM generate_series(1, 20) AS s (n);
INSERT INTO {p}worker (id, process, host, pid, code_version, inline, started_at, alive_until)
SELECT n, 'p' || n, 'h', n, '', false, {now}, {now} + 86400000000 FROM generate_series(1, 4) AS s (n);
INSERT INTO {p}ledger (seq, consumer, source, slot, type_hash, id, hash, received_at)
SELECT n, 1, 2, n % 4096, 1, int4send(n), decode(repeat('00', 32), 'hex'), {now} - 777600000000
FROM generate_series(1, {rows}) AS s (n);
INSERT INTO {p}body (seq, source, id, type, version, body, received_at)
SELECT n, 2, 'm', 't1', 1, '\\x7b7d', {now} - 777600000000 FROM generate_series(1, {bodies}) AS s (n);
INSERT INTO {p}run (worker, token, code_version, finished_at, first_seq, last_seq, seqs, messages)
SELECT 1, 1, '', {now} - 777600000000, n, n, ARRAY[n], 1 FROM generate_series(1, {few}) AS s (n);
INSERT INTO {p}attempt (seq, attempt, kind, charged, error, code_version, at)
SELECT n, 1, 'error', true, 'e', '', {now} FROM generate_series(1, {few}) AS s (n);
INSERT INTO {p}audit (at, actor, action, seq, reason)
SELECT {now} - 777600000000, 'a', 'redrive', n, '' FROM generate_series(1, {few}) AS s (n);
INSERT INTO {p}duplicate (seq, copies, first_at, last_at)
SELECT n, 1, {now}, {now} FROM generate_series(1, {few}) AS s (n);
INSERT INTO {p}result (seq, result) SELECT n, '1' FROM generate_series(1, {few}) AS s (n);
INSERT INTO {p}effect (key, seq, name, done, worker, started_at)
SELECT n, n, 'e', true, 1, {now} FROM generate_series(1, {few}) AS s (n);
INSERT INTO {p}first_seen (source, hash, id, seen_at)
SELECT 2, int4send(n), 'm', {now} - 3600000000 FROM generate_series(1, {few}) AS s (n);
INSERT INTO {p}queue (seq, subscription, key_hash, slot, place, state, outgoing, destination, due_at, worker, token,
                      isolation, type)
SELECT n, CASE WHEN kind <> 6 THEN 1 + n % 20 END, n % {keys}, n % 4096, n,
       CASE WHEN kind IN (3, 4) THEN 'waiting' WHEN kind = 5 THEN 'dead' WHEN kind = 6 THEN 'unhandled'
            WHEN kind = 7 THEN 'retry' ELSE 'ready' END,
       kind = 8, CASE WHEN kind = 8 THEN 'default' END, CASE WHEN kind = 7 THEN {now} - 3600000000 END,
       CASE WHEN kind < 0 THEN -kind END, CASE WHEN kind < 0 THEN 1 END, (kind = 9)::integer,
       CASE WHEN kind = 6 THEN 'strange' || n % 3 END
FROM (SELECT n, CASE WHEN n > {rows} - {claimed} THEN -1 WHEN n > {rows} - 2 * {claimed} THEN -2 ELSE n % 10 END AS kind
      FROM generate_series(1, {rows}) AS s (n)) AS kinds;
SELECT setval('{p}seq', {rows})
"""


def fill(url: str, prefix: str, rows: int) -> None:
    """Tables with so many rows in the ledger and in the queue; of what is about them, enough to be looked for."""
    with Inbox(url, prefix=prefix) as inbox:
        inbox.migrate()
    values = {
        "p": prefix,
        "now": "(date_part('epoch', now()) * 1000000)::bigint",
        "rows": rows,
        "bodies": min(rows, 100_000),
        "few": min(rows, 5_000),
        "claimed": CLAIMED,
        "keys": KEYS,
    }
    large = [f"'{prefix}{table}'::regclass" for table in ("ledger", "body_0", "queue")]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET allow_system_table_mods = on")
        connection.execute("SET synchronous_commit = off")
        indexes = f"UPDATE pg_index SET indisready = {{0}}, indisvalid = {{0}} WHERE indrelid IN ({', '.join(large)})"
        connection.execute(indexes.format("false").encode())  # made at the end, they are made faster
        for statement in _FILL.split(";\n"):
            connection.execute(statement.format(**values).encode())
        connection.execute(indexes.format("true").encode())
        for table in ("ledger", "body_0", "queue"):
            connection.execute(f"REINDEX TABLE {prefix}{table}".encode())


def pretend(connection: psycopg.Connection[Any], prefix: str, *, rows: int, known: str | None = None) -> None:
    """Make the planner believe that each table has so many rows, and columns like those of the tables `known`."""
    ours = "oid IN (SELECT oid FROM pg_class WHERE starts_with(relname, %(p)s) AND relkind IN ('r', 'i'))"
    connection.execute(
        f"UPDATE pg_class SET reltuples = %(rows)s, relpages = greatest(%(rows)s / 50, 10) WHERE {ours}",
        {"p": prefix, "rows": rows},
    )
    connection.execute(
        "DELETE FROM pg_statistic WHERE starelid IN (SELECT oid FROM pg_class WHERE starts_with(relname, %s))", [prefix]
    )
    if known:
        columns = [f"sta{kind}{n}" for kind in ("kind", "op", "coll", "numbers", "values") for n in range(1, 6)]
        rest = ", ".join(["staattnum", "stainherit", "stanullfrac", "stawidth", "stadistinct", *columns])
        connection.execute(
            f"INSERT INTO pg_statistic (starelid, {rest}) SELECT mine.oid, {rest} FROM pg_statistic s"
            " JOIN pg_class theirs ON theirs.oid = s.starelid AND starts_with(theirs.relname, %(known)s)"
            " JOIN pg_class mine ON mine.relname = %(p)s || substr(theirs.relname, length(%(known)s) + 1)".encode(),
            {"p": prefix, "known": known},
        )


def nodes(plan: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
    """Every node of a plan, with the kinds of those above it."""
    yield plan, above
    for inner in plan.get("Plans", ()):
        yield from nodes(inner, (*above, plan["Node Type"]))


GROWING = (
    "ledger",
    "body",
    "queue",
    "run",
    "attempt",
    "audit",
    "duplicate",
    "result",
    "effect",
    "first_seen",
    "progress",
)
_GROWING = re.compile(rf"({'|'.join(GROWING)})(_\d+)?")
_BY_ITS_OWN = {
    **{f"{table}_pkey": "seq" for table in ("ledger", "queue", "result", "duplicate")},
    **{f"{table}_seq": "seq" for table in ("attempt", "audit", "effect")},
    "body_pkey": "seq",
    "run_pkey": "id",
    "effect_pkey": "key",
    "progress_pkey": "consumer",
    "first_seen_pkey": "source",
    "ledger_identity": "consumer",
    "queue_key": "key_hash",
    "queue_waiting": "(key_hash + 0)",
    "queue_dead": "seq",
    "queue_claimed": "worker",
    "queue_unhandled": "type",
}
"""What is equal to something where an index finds rows by what they are, by the index."""
_IN_ORDER = {
    "queue_ready",
    "queue_outgoing",
    "queue_due",
    "queue_outgoing_due",
    "queue_isolated",
    "queue_unhandled",
    "first_seen_at",
}
"""Indexes that are read in their order, as far as is wanted: all that they hold is asked for."""
_WALKS = {
    **dict.fromkeys(["next_ledger", "forget_runs", "forget_effects"], "ledger_pkey"),
    **dict.fromkeys(["next_bodies", "archivable", "bodies_after"], "body_pkey"),
    **dict.fromkeys(["unfinished_of", "old_partitions"], "queue_pkey"),
    "next_runs": "run_pkey",
}
"""Statements that walk a primary key from where they were, or look for the first one."""
_WHOLE = {
    ("park", "queue_claimed"),  # what the workers have in hand
    ("forget_runs", "duplicate_pkey"),  # what is deleted
    ("forget_effects", "effect_seq"),  # what is deleted
    ("forget_messages", "run_seq"),
    ("requeue_own", "run_seq"),
}
"""Where all that an index holds, or a range of it, is meant."""


def faults(name: str, plan: dict[str, Any], prefix: str) -> list[str]:
    """What in the plan of a statement may cost as much as there are rows."""
    found = ["something that is switched off"] if plan["Total Cost"] > 1e9 else []
    for node, above in nodes(plan):
        kind, table = node["Node Type"], node.get("Relation Name", "").removeprefix(prefix)
        index = re.sub(r"^body_\d+_", "body_", node.get("Index Name", "").removeprefix(prefix))
        if kind == "Bitmap Heap Scan" or not (_GROWING.fullmatch(table) or kind == "Bitmap Index Scan"):
            continue  # a bitmap says below it what it is made of
        if not index:
            found += [f"{kind} of {table}"] if kind not in {"ModifyTable", "Tid Scan"} else []
        elif not _leads(name, index, node, above):
            found.append(f"{index} where {node.get('Index Cond')} and then {node.get('Filter')}, under {above}")
    return found


def _leads(name: str, index: str, node: dict[str, Any], above: tuple[str, ...]) -> bool:
    """Whether an index leads to what is wanted, and to nothing else."""
    if f"({_BY_ITS_OWN.get(index)} = " in node.get("Index Cond", "") or (name, index) in _WHOLE:
        return True
    # It stops where a limit says so and nothing between the two must have read everything first, or under EXISTS.
    limited = "Limit" in above and not {"Sort", "Incremental Sort", "Aggregate"} & set(above[_last(above, "Limit") :])
    stops = limited or node.get("Parent Relationship") in {"SubPlan", "InitPlan"}
    return stops and node["Node Type"] != "Bitmap Index Scan" and (index in _IN_ORDER or _WALKS.get(name) == index)


def _last(kinds: tuple[str, ...], kind: str) -> int:
    return len(kinds) - 1 - kinds[::-1].index(kind)
