"""Receive: deliveries become durable; single calls of many callers, batches, and a webhook endpoint under load.

Exact: one row in ledger, body and queue for each message, one receipt for each delivery, copies counted.
"""

from __future__ import annotations

from bench.contest import Contender, compete
from bench.figures import Figures, expect
from bench.ground import Ground, names, one
from bench.messages import messages
from bench.pgbench import by_pgbench, connected, settings
from bench.race import Finish, ours
from bench.scale import Scale

BATCH = 500
"""How many messages `receive_many.sql` stores in a transaction: as many as `receive_many` does."""


def measure(ground: Ground, scale: Scale, figures: Figures) -> None:
    """One repetition of every contender."""
    for name, command, guess, processes, callers in (
        ("onceward, receive_many", ("contenders", "receive_many"), 34_000, scale.processes, ()),
        ("onceward, 64 tasks", ("contenders", "receive_tasks"), 13_000, 1, (scale.callers,)),
        ("onceward, 64 threads", ("contenders", "receive_threads"), 6_000, 1, (scale.callers,)),
        ("by hand, 64 tasks", ("by_hand", "receive"), 22_000, 1, (scale.callers,)),
        ("webhook endpoint", ("webhook",), 1_800, 1, (scale.callers,)),
    ):
        used: dict[str, object] = {"processes": processes, **({"callers": callers[0]} if callers else {})}
        package = "" if command[0] == "by_hand" else "onceward"
        contender = Contender(f"receive: {name}", guess, "psycopg", f"bench/{command[0]}.py", used, package)
        _received(ground, scale, figures, contender, (command, processes, callers))
    for name, script, guess, clients, batch in (
        ("pgbench, single inserts", "receive", 6_000, scale.connections, 1),
        (f"pure SQL, {BATCH} at a time", "receive_many", 44_000, scale.processes, BATCH),
    ):
        used = {**settings(script, clients, group=batch)}
        contender = Contender(f"receive: {name}", guess, "pgbench", f"bench/limits/{script}.sql", used)
        _by_pgbench(ground, scale, figures, contender, (script, clients, batch))


def _received(
    ground: Ground,
    scale: Scale,
    figures: Figures,
    contender: Contender,
    way: tuple[tuple[str, ...], int, tuple[int, ...]],
) -> None:
    command, processes, callers = way

    def run(count: int) -> tuple[int, Finish]:
        with ground.copy() as url:
            each = -(-count // processes)
            finish = ground.race(url, [ours(*command, url, each, *callers)] * processes)
            deliveries = len(messages(each, "")) * processes
            _check(contender.name, url, each * processes)
            for status, wanted in (("accepted", each * processes), ("duplicate", deliveries - each * processes)):
                found = sum(answer.get(status, 0) for answer in finish.answers)
                expect(f"{contender.name}: {status}", found, wanted)
        return deliveries, finish

    compete(contender, scale, figures, run)


def _by_pgbench(
    ground: Ground, scale: Scale, figures: Figures, contender: Contender, way: tuple[str, int, int]
) -> None:
    script, clients, batch = way

    def run(count: int) -> tuple[int, Finish]:
        transactions = -(-count // (batch * clients)) * clients
        with ground.copy() as url:
            command = by_pgbench(url, script, clients=clients, transactions=transactions, n=0, **names(url))
            finish = connected(ground.race(url, command))
            _check_limit(contender.name, url)
        return transactions * batch, finish

    compete(contender, scale, figures, run)


def _check(name: str, url: str, count: int) -> None:
    for table in ("ledger", "body", "queue"):
        expect(f"{name}: {table}", one(url, f"SELECT count(*) FROM onceward_{table} WHERE {_OWN[table]}"), count)


# Not the messages with which the contenders got warm.
_COLD = "SELECT seq FROM onceward_body WHERE id NOT LIKE 'warm-%'"
_OWN = {"ledger": f"seq IN ({_COLD})", "body": "id NOT LIKE 'warm-%'", "queue": f"seq IN ({_COLD})"}


def _check_limit(name: str, url: str) -> None:
    count = one(url, "SELECT count(*) FROM onceward_ledger")
    for table in ("body", "queue"):
        expect(f"{name}: {table}", one(url, f"SELECT count(*) FROM onceward_{table}"), count)
