"""Direct: batches of 100 received and handled in one transaction, beside the same stored first and handled by a worker.

Exact: the domain table has one effect for each message, each is in exactly one run, and copies are told from new ones.
"""

from __future__ import annotations

from bench.contenders import WARM
from bench.contest import Contender, compete
from bench.figures import Figures, expect
from bench.ground import Ground, check_drained, check_effects
from bench.inboxes import GROUP
from bench.messages import messages
from bench.race import Finish, ours
from bench.scale import Scale

DIRECT, STORED, BY_HAND = "direct: onceward", "direct: onceward, stored first", "direct: by hand"


def measure(ground: Ground, scale: Scale, figures: Figures) -> None:
    """One repetition of every contender: as many processes, the same deliveries."""
    for name, command, guess in (
        (DIRECT, ("contenders", "direct"), 8_000),
        (STORED, ("contenders", "stored_first"), 4_000),
        (BY_HAND, ("by_hand", "direct"), 12_000),
    ):
        _measure(ground, scale, figures, Contender(name, guess, "psycopg", f"bench/{command[0]}.py"), command)


def _measure(ground: Ground, scale: Scale, figures: Figures, contender: Contender, command: tuple[str, str]) -> None:
    name, processes = contender.name, scale.processes

    def run(count: int) -> tuple[int, Finish]:
        each = -(-count // processes)
        with ground.copy() as url:
            finish = ground.race(url, [ours(*command, url, each)] * processes)
            check_effects(name, url, each * processes)
            check_drained(name, url, (each + WARM * ("onceward" in name)) * processes)
            copies = (len(messages(each, "")) - each) * processes
            for status, wanted in (("accepted", each * processes), ("duplicate", copies)):
                expect(f"{name}: {status}", sum(answer.get(status, 0) for answer in finish.answers), wanted)
        return each * processes + copies, finish

    used = {"processes": processes, "connections of each": 1, "group": GROUP}
    package = "onceward" if "onceward" in name else ""
    shown = Contender(name, contender.guess, contender.driver, contender.source, used, package)
    compete(shown, scale, figures, run)
