"""`python -m mutation --sample 400 --seed 1`: change the code at random places; a test must notice each change."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from mutants.player import Unready, run_tests
from mutation import python, sql
from mutation.change import Change
from mutation.covered import Covered, covered
from mutation.outcome import Outcome, play
from mutation.rooms import ROOMS, Room
from proof import report

ENOUGH = 0.9


def main(arguments: list[str] | None = None) -> int:
    """Play a sample, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m mutation", description=__doc__)
    parser.add_argument("--sample", type=int, default=400)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--room", choices=[room.name for room in ROOMS], action="append", help="only these")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", default="", help="write the figures to this file")
    options = parser.parse_args(arguments)
    rooms = [room for room in ROOMS if options.room is None or room.name in options.room]
    print(f"seed {options.seed}", flush=True)
    outcomes, possible = [], {}
    with ThreadPoolExecutor(options.processes) as pool:
        for room, share in zip(rooms, _shares(options.sample, len(rooms)), strict=True):
            known, found = covered(room), every_change(room)
            possible[room.name] = len(found)
            chosen = sample(found, share, f"{options.seed} {room.name}")
            for outcome in pool.map(lambda one: play(*one), _with(room, chosen, known)):
                print(f"{outcome.result:10} {outcome.file}:{outcome.line} {outcome.change} | {outcome.by}", flush=True)
                outcomes.append(outcome)
    _confirm(outcomes)
    if options.json:
        report.write(options.json, figures(outcomes, possible, options.seed), ["sqlite"])
    return _last_line(outcomes)


def every_change(room: Room) -> list[tuple[Change, bytes]]:
    """All that may be changed in a room, each with the file that it is in."""
    return [
        (change, source)
        for file, source in room.sources()
        for change in (sql if file.endswith(".sql") else python).changes(file, source)
    ]


def sample(found: list[tuple[Change, bytes]], count: int, seed: str) -> list[tuple[Change, bytes]]:
    """So many of them: the same ones for the same seed and the same code."""
    return random.Random(seed).sample(found, min(count, len(found)))


def _shares(count: int, rooms: int) -> list[int]:
    """Equal shares, however large the rooms are."""
    return [count // rooms + (number < count % rooms) for number in range(rooms)]


def _with(
    room: Room, chosen: list[tuple[Change, bytes]], known: Covered
) -> Iterator[tuple[str, Change, bytes, Covered]]:
    return ((room.name, change, source, known) for change, source in chosen)


def _confirm(outcomes: Sequence[Outcome]) -> None:
    """A test that also fails on the code as it is has killed nothing."""
    tests = sorted({one.by for one in outcomes if one.result == "killed" and "::" in one.by})
    if tests and (run := run_tests(None, tests)).code:
        raise Unready(f"tests that killed fail without a change as well:\n{run.output}")


def figures(outcomes: Sequence[Outcome], possible: dict[str, int], seed: int) -> dict[str, Any]:
    """What a run leaves behind: the counts of each room, and every change that survived."""
    rooms = {
        name: {"possible": count, **Counter(one.result for one in outcomes if one.room == name)}
        for name, count in possible.items()
    }
    survivors = [asdict(one) for one in outcomes if not one.killed]
    killed = sum(one.killed for one in outcomes)
    return {
        "run": "mutation",
        "seed": seed,
        "sample": len(outcomes),
        "killed": killed,
        "rooms": rooms,
        "survivors": survivors,
    }


def _last_line(outcomes: Sequence[Outcome]) -> int:
    counts = Counter(one.result for one in outcomes)
    killed, equivalent = sum(one.killed for one in outcomes), counts["equivalent"]
    rate = killed / max(len(outcomes) - equivalent, 1)
    print(
        f"mutation: {len(outcomes)} changes, {killed} killed ({rate:.0%}), {counts['timeout']} of them by time, "
        f"{counts['survived']} survived, {equivalent} equivalent"
    )
    return 0 if outcomes and rate >= ENOUGH else 1


if __name__ == "__main__":
    sys.exit(main())
