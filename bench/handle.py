"""Handle: each message updates one row of a domain table, atomically with the ledger.

Exact: the domain table has one effect for each message, however many copies came, and each is in exactly one run.
"""

from __future__ import annotations

from bench.drain import filled
from bench.figures import Figures, expect
from bench.ground import Ground, check_drained, check_effects, drain_by_pgbench, names, one, pgbench
from bench.inboxes import FAILING, SET_GROUP
from bench.messages import messages
from bench.race import ours, race
from bench.scale import Scale

GROUPED = ("update", "pipelined", "set", "hot")


def measure(ground: Ground, scale: Scale, figures: Figures) -> None:
    """One repetition of every contender."""
    for kind in GROUPED:
        _drained(ground, kind, scale.messages, scale, figures)
    _drained(ground, "alone", scale.slow, scale, figures)
    figures.add("handle: onceward, 2 % failing", _failing(ground, scale))
    for script in ("handle", "handle_statement"):
        _by_pgbench(ground, script, scale, figures)
    _ceiling(ground, scale, figures)
    ways = {(1, 1): "1 connection", (1, scale.connections): "8 threads", (scale.connections, 1): "8 processes"}
    for way, name in ways.items():
        _textbook(ground, scale, way, figures, f"handle: textbook, {name}")
    _inline(ground, scale, figures)


def _by_pgbench(ground: Ground, script: str, scale: Scale, figures: Figures) -> None:
    name, clients = f"handle: pgbench, {script}", scale.connections
    each = scale.slow // clients * clients
    with ground.copy(filled(ground, "update", scale.slow)) as url:
        with ground.costs(figures, name, each) as cost:
            rate = pgbench(url, script, clients=clients, transactions=each, variables={}, cost=cost)
        check_effects(name, url, each)
        figures.add(name, rate)


def _drained(ground: Ground, kind: str, count: int, scale: Scale, figures: Figures) -> None:
    name = f"handle: onceward, {kind}"
    with ground.copy(filled(ground, kind, count)) as url:
        with ground.costs(figures, name, count) as cost:
            finish = race([ours("contenders", "drain", url)] * scale.processes)
            cost.clients = finish.processor
        expect(f"{name}: finished", sum(finish.answers), count)
        check_effects(name, url, count)
        check_drained(name, url, count)
        figures.add(name, count / finish.seconds)


def _failing(ground: Ground, scale: Scale) -> float:
    with ground.copy(filled(ground, "failing", scale.messages)) as url:
        finish = race([ours("contenders", "drain", url)] * scale.processes)
        dead = -(-scale.messages // FAILING)
        check_effects("handle failing", url, scale.messages - dead)
        expect("handle failing: dead", one(url, "SELECT count(*) FROM onceward_queue WHERE state = 'dead'"), dead)
        expect("handle failing: queue", one(url, "SELECT count(*) FROM onceward_queue"), dead)
        return scale.messages / finish.seconds


def _ceiling(ground: Ground, scale: Scale, figures: Figures) -> None:
    name = "handle: pure SQL in batches"
    with ground.copy(filled(ground, "set", scale.messages)) as url:
        with ground.costs(figures, name, scale.messages) as cost:
            groups = -(-scale.messages // SET_GROUP)
            rate = drain_by_pgbench(url, "handle_batch", clients=scale.processes, groups=groups, cost=cost)
        check_effects(name, url, scale.messages)
        check_drained(name, url, scale.messages)
        figures.add(name, rate)


def _textbook(ground: Ground, scale: Scale, way: tuple[int, int], figures: Figures, name: str) -> None:
    processes, threads = way
    with ground.copy() as url:
        each = scale.slow // processes
        with ground.costs(figures, name, each * processes) as cost:
            finish = race([ours("contenders", "textbook", url, each, threads)] * processes)
            cost.clients = finish.processor
        check_effects(name, url, each * processes)
        figures.add(name, sum(finish.answers) / finish.seconds)


def _inline(ground: Ground, scale: Scale, figures: Figures) -> None:
    both = scale.processes, max(1, scale.connections // scale.processes)
    ways = {(1, scale.connections): "8 threads", both: "2 processes", (scale.connections, 1): "8 processes"}
    for way, name in ways.items():
        _one_by_one(ground, scale, way, figures, f"inline: onceward, {name}", "contenders")
    _one_by_one(ground, scale, (1, scale.connections), figures, "inline: by hand, 8 threads", "by_hand")
    with ground.copy() as url:
        each = scale.slow // scale.connections * scale.connections
        known = names(url) | {"n": 0}
        with ground.costs(figures, "inline: pgbench", each) as cost:
            rate = pgbench(url, "inline", clients=scale.connections, transactions=each, variables=known, cost=cost)
        check_effects("inline: pgbench", url, one(url, "SELECT count(*) FROM onceward_ledger"))
        figures.add("inline: pgbench", rate)


def _one_by_one(  # noqa: PLR0913, PLR0917 - who, where, how
    ground: Ground, scale: Scale, way: tuple[int, int], figures: Figures, name: str, module: str
) -> None:
    """A transaction for each message, of onceward or by hand; both tell new ones from copies."""
    processes, threads = way
    with ground.copy() as url:
        each = scale.slow // processes
        with ground.costs(figures, name, each * processes) as cost:
            finish = race([ours(module, "inline", url, each, threads)] * processes)
            cost.clients = finish.processor
        check_effects(name, url, each * processes)
        copies = (len(messages(each, "")) - each) * processes
        for status, wanted in (("accepted", each * processes), ("duplicate", copies)):
            expect(f"{name}: {status}", sum(answer.get(status, 0) for answer in finish.answers), wanted)
        figures.add(name, (each * processes + copies) / finish.seconds)
