"""Drain: a backlog whose handler decodes the body and does nothing, default settings, beside pure SQL and the peers.

Exact: each sequence number is in exactly one run and the queue is empty; a peer has run each number exactly once.
"""

from __future__ import annotations

from collections.abc import Callable

from bench import lineup
from bench.backlog import received
from bench.contest import Contender, compete
from bench.figures import Figures
from bench.ground import LEFT, Ground, check_claims, check_drained
from bench.inboxes import CLAIM, GROUP
from bench.pgbench import by_pgbench, connected, settings
from bench.race import Finish, ours
from bench.scale import Scale

Check = Callable[[str, str, int], None]
"""Fails where the effects of so many messages are not exact."""


def measure(ground: Ground, scale: Scale, figures: Figures) -> None:
    """One repetition of every contender."""
    onceward(ground, scale, figures, "drain: onceward", "nothing", guess=34_000)
    pure_sql(
        ground,
        scale,
        figures,
        "drain: pure SQL",
        "nothing",
        script="drain",
        guess=34_000,
        clients=scale.processes,
        claim=CLAIM,
    )
    for peer in lineup.PGMQ + lineup.POSTGRES:
        lineup.measure(peer, ground, scale, figures)


def filled(ground: Ground, kind: str, count: int) -> str:
    """A template with a backlog of a kind, as receiving it left it."""
    return ground.template(f"backlog_{kind}_{count}", lambda url: received(url, kind, count))


def onceward(  # noqa: PLR0913 - who, where, what
    ground: Ground,
    scale: Scale,
    figures: Figures,
    name: str,
    kind: str,
    *,
    guess: int,
    group: int = GROUP,
    claim: int = CLAIM,
    check: Check = check_drained,
    left: str = LEFT,
    command: str = "drain",
) -> None:
    """Worker processes that drain a copy of a backlog."""
    used = {"processes": scale.processes, "group": group, "handler": kind}
    contender = Contender(name, guess, "psycopg", "bench/contenders.py", used, "onceward")

    def run(count: int) -> tuple[int, Finish]:
        with ground.copy(filled(ground, kind, count)) as url:
            finish = ground.race(url, [ours("contenders", command, url)] * scale.processes, left)
            check(name, url, count)
            figures.notes[f"{name}: largest claim"] = check_claims(name, url, claim)
        return count, finish

    compete(contender, scale, figures, run)


def pure_sql(  # noqa: PLR0913 - who, where, what
    ground: Ground,
    scale: Scale,
    figures: Figures,
    name: str,
    kind: str,
    *,
    script: str,
    guess: int,
    clients: int,
    group: int = GROUP,
    claim: int | None = None,
    check: Check = check_drained,
) -> None:
    """The same writes by pgbench, in groups and claims of the same size; a claim is a group unless told otherwise.

    Where a group has several messages every client may have to do all of it, so each gets as many transactions as that
    takes; those that find nothing any more do not count.
    """
    claim = claim or group
    sizes = {"group": group, "groups": claim // group, "claim": claim}
    contender = Contender(name, guess, "pgbench", f"bench/limits/{script}.sql", settings(script, clients, group=group))

    def run(count: int) -> tuple[int, Finish]:
        count = -(-count // clients) * clients
        transactions = count if group == 1 else (-(-count // group) + claim // group + 1) * clients
        with ground.copy(filled(ground, kind, count)) as url:
            command = by_pgbench(url, script, clients=clients, transactions=transactions, token=0, part=-1, **sizes)
            finish = connected(ground.race(url, command, LEFT))
            check(name, url, count)
            figures.notes[f"{name}: largest claim"] = check_claims(name, url, claim)
        return count, finish

    compete(contender, scale, figures, run)
