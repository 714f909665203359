"""Handle: each message updates one row of a domain table, atomically with the ledger.

Exact: the domain table has one effect for each message, however many copies came, and each is in exactly one run.
"""

from __future__ import annotations

from bench.drain import filled
from bench.figures import Figures, expect
from bench.ground import Ground, check_drained, check_effects, names, one, pgbench
from bench.inboxes import FAILING, SET_GROUP
from bench.messages import messages
from bench.race import ours, race
from bench.scale import Scale

GROUPED = ("update", "pipelined", "set", "hot")


def measure(ground: Ground, scale: Scale, figures: Figures) -> None:
    """One repetition of every contender."""
    for kind in GROUPED:
        figures.add(f"handle: onceward, {kind}", _drained(ground, kind, scale.messages, scale))
    figures.add("handle: onceward, alone", _drained(ground, "alone", scale.slow, scale))
    figures.add("handle: onceward, 2 % failing", _failing(ground, scale))
    backlog = filled(ground, "update", scale.slow)
    for script in ("handle", "handle_statement"):
        with ground.copy(backlog) as url:
            each = scale.slow // scale.connections * scale.connections
            figures.add(
                f"handle: pgbench, {script}", pgbench(url, script, clients=scale.connections, transactions=each)
            )
            check_effects(script, url, each)
    figures.add("handle: pure SQL in batches", _ceiling(ground, scale))
    ways = {(1, 1): "1 connection", (1, scale.connections): "8 threads", (scale.connections, 1): "8 processes"}
    for (processes, threads), name in ways.items():
        figures.add(f"handle: textbook, {name}", _textbook(ground, scale, processes, threads))
    _inline(ground, scale, figures)


def _drained(ground: Ground, kind: str, count: int, scale: Scale) -> float:
    with ground.copy(filled(ground, kind, count)) as url:
        finish = race([ours("contenders", "drain", url)] * scale.processes)
        expect(f"handle {kind}: finished", sum(finish.answers), count)
        check_effects(f"handle {kind}", url, count)
        check_drained(f"handle {kind}", url, count)
        return count / finish.seconds


def _failing(ground: Ground, scale: Scale) -> float:
    with ground.copy(filled(ground, "failing", scale.messages)) as url:
        finish = race([ours("contenders", "drain", url)] * scale.processes)
        dead = -(-scale.messages // FAILING)
        check_effects("handle failing", url, scale.messages - dead)
        expect("handle failing: dead", one(url, "SELECT count(*) FROM onceward_queue WHERE state = 'dead'"), dead)
        expect("handle failing: queue", one(url, "SELECT count(*) FROM onceward_queue"), dead)
        return scale.messages / finish.seconds


def _ceiling(ground: Ground, scale: Scale) -> float:
    with ground.copy(filled(ground, "set", scale.messages)) as url:
        clients = scale.processes
        claims = (-(-scale.messages // SET_GROUP) // clients + 3) * clients
        rate = pgbench(url, "handle_batch", clients=clients, transactions=claims, token=0)
        check_effects("handle: pure SQL", url, scale.messages)
        check_drained("handle: pure SQL", url, scale.messages)
        return rate * scale.messages / claims


def _textbook(ground: Ground, scale: Scale, processes: int, threads: int) -> float:
    with ground.copy() as url:
        each = scale.slow // processes
        finish = race([ours("contenders", "textbook", url, each, threads)] * processes)
        check_effects("handle: textbook", url, each * processes)
        return float(sum(finish.answers) / finish.seconds)


def _inline(ground: Ground, scale: Scale, figures: Figures) -> None:
    both = scale.processes, max(1, scale.connections // scale.processes)
    ways = {(1, scale.connections): "8 threads", both: "2 processes", (scale.connections, 1): "8 processes"}
    for (processes, threads), name in ways.items():
        with ground.copy() as url:
            each = scale.slow // processes
            finish = race([ours("contenders", "inline", url, each, threads)] * processes)
            check_effects("inline", url, each * processes)
            copies = (len(messages(each, "")) - each) * processes
            for status, wanted in (("accepted", each * processes), ("duplicate", copies)):
                expect(f"inline: {status}", sum(answer.get(status, 0) for answer in finish.answers), wanted)
            figures.add(f"inline: onceward, {name}", (each * processes + copies) / finish.seconds)
    with ground.copy() as url:
        each = scale.slow // scale.connections * scale.connections
        rate = pgbench(url, "inline", clients=scale.connections, transactions=each, n=0, **names(url))
        check_effects("inline: pgbench", url, one(url, "SELECT count(*) FROM onceward_ledger"))
        figures.add("inline: pgbench", rate)
