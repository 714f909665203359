"""What the demo looks like: lines of styled text, on a terminal, in a pipe, or recorded as a picture.

Invariant: it needs no package, so that `make demo` starts at once on a fresh machine.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TextIO

from onceward.demo.show import SHOWN_EVENTS, Beside, Plan, Result, Scene, Show, play

Line = Sequence[tuple[str, str]]
"""Pieces of text, each with a style: "", "good", "bad", "dim", "bold"."""
CODES = {"good": "\x1b[32m", "bad": "\x1b[1;31m", "dim": "\x1b[2m", "bold": "\x1b[1m"}
WIDTH = 39
BAR = 26
LINE_SECONDS = 1.0


def intro(plan: Plan) -> str:
    """What is about to happen."""
    return (
        f"{plan.messages:,} payments, three in ten delivered twice, to two consumers: {plan.processes} careless workers"
        f"\n(check, work, then remember) and {plan.processes} of onceward. kill -9 strikes {_times(plan.kills)} a side."
    )


def picture(plan: Plan, scene: Scene) -> list[Line]:
    """The demo at one moment."""
    now, careless = scene.verdict, scene.careless
    rows: list[tuple[Line, Line]] = [
        ([("careless", "bold"), ("  check, work, remember", "dim")], [("onceward", "bold"), ("  one commit", "dim")]),
        (_bar(careless.effects, plan.messages), _bar(now.effects, plan.messages)),
        ([(f"{careless.effects:>7,} payments booked", "")], [(f"{now.effects:>7,} payments booked", "")]),
        (_wrong(careless.doubled, "booked twice"), _wrong(now.doubled, "booked twice")),
        (
            [(f"{careless.too_much:>7,} charged too much", "bad" if careless.too_much else "good")],
            [("      0 charged too much", "good") if not now.doubled else ("        charged too much", "bad")],
        ),
        ([("", "")], [(f"{now.duplicates:>7,} duplicates recognised", "dim")]),
        ([("", "")], [(f"{now.dead:>7,} dead, kept for an operator", "dim")]),
    ]
    lines: list[Line] = [[(f"the same deliveries, {scene.seconds:.1f} s", "bold")], []]
    lines += [_beside(*row) for row in rows]
    lines.append([])
    left, right = _processes(scene.neighbours, scene.neighbours_killed), _processes(scene.workers, scene.killed)
    lines.append(_beside(left, right))
    lines.append([])
    events = list(scene.events) + [""] * (SHOWN_EVENTS - len(scene.events))
    lines += [[(event, "dim" if "moved" not in event else "good")] for event in events]
    return lines


def summary(plan: Plan, result: Result) -> list[Line]:
    """What came of it, in words."""
    careless, verdict = result.careless, result.verdict
    ours = (
        "none doubled, none lost"
        if not (verdict.doubled or verdict.lost)
        else (f"{verdict.doubled} doubled, {verdict.lost} lost")
    )
    style = "good" if verdict.holds else "bad"
    return [
        [(f"The same {plan.messages:,} payments, with kill -9 {_times(plan.kills)} on each side:", "")],
        [
            ("  careless  ", "bold"),
            (
                f"{careless.doubled:,} payments booked twice ({careless.too_much:,} too much), {careless.lost:,} lost",
                "bad",
            ),
        ],
        [("  onceward  ", "bold"), (f"{ours}; {verdict.dead} dead letters, kept with their history", style)],
    ]


def _bar(done: int, of: int) -> Line:
    full = min(BAR, BAR * done // of)
    return [
        ("█" * full, "good" if done <= of else "bad"),
        ("░" * (BAR - full), "dim"),
        (f" {100 * done // of} %", "dim"),
    ]


def _wrong(count: int, what: str) -> Line:
    return [(f"{count:>7,} {what}", "bad" if count else "good")]


def _processes(living: Mapping[int, int], killed: Iterable[int]) -> Line:
    """Worker processes with what they have in hand, and those that have just been killed."""
    found: list[tuple[str, str]] = [("workers", "dim")]
    found += [(f" {pid}" + (f"({held})" if held else ""), "") for pid, held in living.items()]
    found += [(f" ✗ {pid}", "bad") for pid in sorted(killed)]
    return found


def _beside(left: Line, right: Line) -> Line:
    width = sum(len(text) for text, _ in left)
    return [*left, (" " * max(1, WIDTH - width), ""), *right]


def plain(line: Line) -> str:
    """A line without styles."""
    return "".join(text for text, _ in line).rstrip()


def coloured(line: Line) -> str:
    """A line for a terminal."""
    return "".join(f"{CODES[style]}{text}\x1b[0m" if style else text for text, style in line)


def printed(lines: Sequence[Line], out: TextIO) -> None:
    """Print lines, in colour where that is a terminal that wants it."""
    styled = out.isatty() and not os.environ.get("NO_COLOR")
    out.writelines((coloured(line) if styled else plain(line)) + "\n" for line in lines)
    out.flush()


def performed(
    plan: Plan, folder: Path, beside: Beside = nullcontext, *, last: Callable[[], None] | None = None
) -> Result:
    """Play the demo on the screen, and say what came of it."""
    printed([[(intro(plan), "dim")], []], sys.stdout)
    with view(plan) as show:
        result = play(plan, folder, show, beside)
    printed([[], *summary(plan, result), []], sys.stdout)
    if last is not None:
        last()
    printed([[(result.verdict.line, "")]], sys.stdout)
    return result


@contextmanager
def view(plan: Plan, out: TextIO | None = None) -> Iterator[Show]:
    """Show the demo live on a terminal; elsewhere as lines."""
    target = sys.stdout if out is None else out
    if not target.isatty():
        yield _lines(plan, target)
        return
    target.write("\x1b[?25l")  # no cursor
    height = 0

    def show(scene: Scene) -> None:
        nonlocal height
        lines = picture(plan, scene)
        up = f"\x1b[{height}A\r" if height else ""
        target.write(up + "".join(f"{coloured(line)}\x1b[K\n" for line in lines))
        target.flush()
        height = len(lines)

    try:
        yield show
    finally:
        target.write("\x1b[?25h")
        target.flush()


def _lines(plan: Plan, out: TextIO) -> Callable[[Scene], None]:
    """A line about every second, and one for each event, for pipes and logs."""
    last = -LINE_SECONDS
    seen: list[str] = []

    def show(scene: Scene) -> None:
        nonlocal last
        for event in scene.events:
            if event not in seen:
                seen.append(event)
                printed([[(event, "")]], out)
        if scene.seconds - last < LINE_SECONDS:
            return
        last = scene.seconds
        now, careless = scene.verdict, scene.careless
        text = (
            f"{scene.seconds:5.1f} s  accepted {now.accepted}/{plan.messages}, duplicates {now.duplicates}, "
            f"effects {now.effects}, "
            f"doubled {now.doubled}; careless: effects {careless.effects}, doubled {careless.doubled}"
        )
        printed([[(text, "")]], out)

    return show


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
