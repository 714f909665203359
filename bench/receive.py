"""Receive: deliveries become durable; single calls of many callers, batches, and a webhook endpoint under load.

Exact: one row in ledger, body and queue for each message, one receipt for each delivery, copies counted.
"""

from __future__ import annotations

from bench import webhook
from bench.figures import Figures, expect
from bench.ground import Ground, names, one, pgbench
from bench.messages import messages
from bench.race import ours, race
from bench.scale import Scale


def measure(ground: Ground, scale: Scale, figures: Figures) -> None:
    """One repetition of every contender."""
    single = scale.slow
    processes = scale.processes
    for name, command, count, starters, extra in (
        ("onceward, receive_many", ("contenders", "receive_many"), scale.messages, processes, ()),
        ("onceward, 64 tasks", ("contenders", "receive_tasks"), single, 1, (scale.callers,)),
        ("onceward, 64 threads", ("contenders", "receive_threads"), single, 1, (scale.callers,)),
        ("by hand, 64 tasks", ("by_hand", "receive"), single, 1, (scale.callers,)),
    ):
        with ground.copy() as url:
            each = count // starters
            with ground.costs(figures, f"receive: {name}", each * starters) as cost:
                finish = race([ours(*command, url, each, *extra) for _ in range(starters)])
                cost.clients = finish.processor
            deliveries = len(messages(each, "")) * starters
            _check(name, url, each * starters)
            for status, wanted in (("accepted", each * starters), ("duplicate", deliveries - each * starters)):
                expect(f"receive {name}: {status}", sum(answer.get(status, 0) for answer in finish.answers), wanted)
            figures.add(f"receive: {name}", deliveries / finish.seconds)
    with ground.copy() as url:
        each = single // scale.connections * scale.connections
        known = names(url) | {"n": 0}
        with ground.costs(figures, "receive: pgbench, single inserts", each) as cost:
            rate = pgbench(url, "receive", clients=scale.connections, transactions=each, variables=known, cost=cost)
        _check_limit("pgbench", url)
        figures.add("receive: pgbench, single inserts", rate)
    with ground.copy() as url:
        batches = max(scale.messages * 11 // 10 // 500, 1)
        known = names(url) | {"n": 0}
        with ground.costs(figures, "receive: pure SQL, 500 at a time", batches * 500) as cost:
            rate = pgbench(url, "receive_many", clients=processes, transactions=batches, variables=known, cost=cost)
        _check_limit("pure SQL", url)
        figures.add("receive: pure SQL, 500 at a time", rate * 500)
    with ground.copy() as url:
        figures.add("receive: webhook endpoint", webhook.measure(url, single, scale.callers))
        expect("receive webhook", one(url, "SELECT count(*) FROM onceward_ledger"), single)


def _check(name: str, url: str, count: int) -> None:
    for table in ("ledger", "body", "queue"):
        expect(
            f"receive {name}: {table}", one(url, f"SELECT count(*) FROM onceward_{table} WHERE {_OWN[table]}"), count
        )


# Not the messages with which the contenders got warm.
_COLD = "SELECT seq FROM onceward_body WHERE id NOT LIKE 'warm-%'"
_OWN = {"ledger": f"seq IN ({_COLD})", "body": "id NOT LIKE 'warm-%'", "queue": f"seq IN ({_COLD})"}


def _check_limit(name: str, url: str) -> None:
    count = one(url, "SELECT count(*) FROM onceward_ledger")
    for table in ("body", "queue"):
        expect(f"receive {name}: {table}", one(url, f"SELECT count(*) FROM onceward_{table}"), count)
