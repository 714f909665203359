"""Drain: a backlog whose handler decodes the body and does nothing, default settings, beside pure SQL and the peers.

Exact: each sequence number is in exactly one run and the queue is empty; a peer has run each number exactly once.
"""

from __future__ import annotations

from bench import lineup
from bench.backlog import received
from bench.figures import Figures, expect
from bench.ground import Ground, check_drained, drain_by_pgbench
from bench.race import ours, race
from bench.scale import Scale


def measure(ground: Ground, scale: Scale, figures: Figures) -> None:
    """One repetition of every contender."""
    backlog = filled(ground, "nothing", scale.messages)
    figures.add("drain: onceward", onceward(ground, backlog, scale, figures, "drain: onceward"))
    with ground.copy(backlog) as url:
        with ground.costs(figures, "drain: pure SQL", scale.messages) as cost:
            groups = -(-scale.messages // 100)
            rate = drain_by_pgbench(url, "drain", clients=scale.processes, groups=groups, cost=cost)
        check_drained("drain: pure SQL", url, scale.messages)
        figures.add("drain: pure SQL", rate)
    for peer in lineup.PGMQ + lineup.POSTGRES:
        lineup.measure(peer, ground, scale, figures)


def filled(ground: Ground, kind: str, count: int) -> str:
    """A template with a backlog of a kind, as receiving it left it."""
    return ground.template(f"backlog_{kind}_{count}", lambda url: received(url, kind, count))


def onceward(ground: Ground, backlog: str, scale: Scale, figures: Figures, name: str) -> float:
    """Messages a second of worker processes that drain a copy of a backlog."""
    with ground.copy(backlog) as url:
        with ground.costs(figures, name, scale.messages) as cost:
            finish = race([ours("contenders", "drain", url)] * scale.processes)
            cost.clients = finish.processor
        expect(f"{name}: finished", sum(finish.answers), scale.messages)
        check_drained(name, url, scale.messages)
        return scale.messages / finish.seconds
