"""Handle: each message updates one row of a domain table, atomically with the ledger.

Exact: the domain table has one effect for each message, however many copies came, and each is in exactly one run.
"""

from __future__ import annotations

from bench.contest import Contender, compete
from bench.drain import onceward, pure_sql
from bench.figures import Figures, expect
from bench.ground import LEFT_ALIVE, Ground, check_drained, check_effects, names, one
from bench.inboxes import CLAIM, FAILING, GROUP, SET_GROUP
from bench.messages import messages
from bench.pgbench import by_pgbench, connected, settings
from bench.race import Finish, ours
from bench.scale import Scale

# The handlers of onceward: what each manages in a second, about, and how many messages share a transaction and a claim.
HANDLERS = {
    "update": (11_000, GROUP, CLAIM),
    "pipelined": (13_000, GROUP, CLAIM),
    "set": (42_000, SET_GROUP, SET_GROUP),
    "hot": (3_000, GROUP, CLAIM),
    "alone": (1_500, 1, 1),
}


def measure(ground: Ground, scale: Scale, figures: Figures) -> None:
    """One repetition of every contender."""
    for kind, (guess, group, claim) in HANDLERS.items():
        name = f"handle: onceward, {kind}"
        onceward(ground, scale, figures, name, kind, guess=guess, group=group, claim=claim, check=_handled)
    name = "handle: onceward, 2 % failing"
    onceward(ground, scale, figures, name, "failing", guess=8_500, check=_handled_or_dead, left=LEFT_ALIVE)
    for name, kind, script, guess, clients, group in (
        ("pgbench, handle", "update", "handle", 4_500, scale.connections, 1),
        ("pgbench, handle_statement", "update", "handle_statement", 6_500, scale.connections, 1),
        ("pure SQL in batches", "set", "handle_batch", 42_000, scale.processes, SET_GROUP),
    ):
        pure_sql(
            ground,
            scale,
            figures,
            f"handle: {name}",
            kind,
            script=script,
            guess=guess,
            clients=clients,
            group=group,
            check=_handled,
        )
    for name, way, guess in (
        ("1 connection", (1, 1), 1_000),
        ("8 threads", (1, scale.connections), 3_000),
        ("8 processes", (scale.connections, 1), 3_000),
    ):
        _one_by_one(ground, scale, figures, (f"handle: textbook, {name}", ("contenders", "textbook"), guess), way)
    _inline(ground, scale, figures)


def _handled(what: str, url: str, count: int) -> None:
    """Each message has its effect, and is in exactly one run."""
    check_effects(what, url, count)
    check_drained(what, url, count)


def _handled_or_dead(what: str, url: str, count: int) -> None:
    """One in so many is dead; all others have their effect, and nothing else is queued."""
    dead = -(-count // FAILING)
    check_effects(what, url, count - dead)
    for which in ("WHERE state = 'dead'", ""):
        expect(f"{what}: queued {which}", one(url, f"SELECT count(*) FROM onceward_queue {which}"), dead)


def _inline(ground: Ground, scale: Scale, figures: Figures) -> None:
    for name, module, way, guess in (
        ("onceward, 8 threads", "contenders", (1, scale.connections), 1_600),
        ("onceward, 2 processes", "contenders", (scale.processes, -(-scale.connections // scale.processes)), 1_600),
        ("onceward, 8 processes", "contenders", (scale.connections, 1), 1_600),
        ("by hand, 8 threads", "by_hand", (1, scale.connections), 2_200),
    ):
        _one_by_one(ground, scale, figures, (f"inline: {name}", (module, "inline"), guess), way)
    name, clients = "inline: pgbench", scale.connections

    def run(count: int) -> tuple[int, Finish]:
        count = -(-count // clients) * clients
        with ground.copy() as url:
            command = by_pgbench(url, "inline", clients=clients, transactions=count, n=0, **names(url))
            finish = connected(ground.race(url, command))
            check_effects(name, url, one(url, "SELECT count(*) FROM onceward_ledger"))
        return count, finish

    compete(
        Contender(name, 3_500, "pgbench", "bench/limits/inline.sql", settings("inline", clients)), scale, figures, run
    )


def _one_by_one(
    ground: Ground,
    scale: Scale,
    figures: Figures,
    contender: tuple[str, tuple[str, str], int],
    way: tuple[int, int],
) -> None:
    """A transaction for each message, of onceward, by hand or as the textbooks have it; all tell new ones from copies."""
    name, command, guess = contender
    processes, threads = way

    def run(count: int) -> tuple[int, Finish]:
        with ground.copy() as url:
            each = -(-count // processes)
            finish = ground.race(url, [ours(*command, url, each, threads)] * processes)
            check_effects(name, url, each * processes)
            copies = (len(messages(each, "")) - each) * processes
            for status, wanted in (("accepted", each * processes), ("duplicate", copies)):
                expect(f"{name}: {status}", sum(answer.get(status, 0) for answer in finish.answers), wanted)
        return each * processes + copies, finish

    used = {"processes": processes, "connections of each": threads, "group": 1}
    package = "onceward" if "onceward" in name else ""
    compete(Contender(name, guess, "psycopg", f"bench/{command[0]}.py", used, package), scale, figures, run)
