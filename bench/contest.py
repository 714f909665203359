"""A contender, and one repetition of it: as many messages as it takes to last, and what each of them cost.

Short runs flatter whoever starts fast and hide whoever slows down. So a run that was over too soon does not count: it is
run again with more messages, and later repetitions begin with as many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bench.figures import Figures, Run
from bench.race import Finish, Unusable
from bench.scale import Scale

SPARE = 1.2
"""How much longer than it must a run is planned."""
_ATTEMPTS = 6


@dataclass(frozen=True, slots=True)
class Contender:
    """Who it is, and how it is set up: the page shows it."""

    name: str
    guess: int
    """Messages a second, to begin with; what is measured corrects it."""
    driver: str
    """What it talks to the database with."""
    source: str
    """Where its code is, or where its settings are recommended."""
    settings: Mapping[str, object] = field(default_factory=dict)
    package: str = ""
    """Whose version is shown."""


def compete(contender: Contender, scale: Scale, figures: Figures, run: Callable[[int], tuple[int, Finish]]) -> None:
    """One repetition: `run` takes how many messages it gets, and answers how many deliveries that was."""
    figures.contenders[contender.name] = contender
    count = figures.counts.get(contender.name) or max(scale.least, _rounded(contender.guess * scale.seconds * SPARE))
    for _ in range(_ATTEMPTS):
        deliveries, finish = run(count)
        if finish.seconds >= scale.seconds:
            figures.record(contender.name, Run(deliveries, finish.seconds, finish.clients, finish.server))
            return
        longer = scale.seconds * SPARE / max(finish.seconds, scale.seconds / 20)
        figures.counts[contender.name] = count = _rounded(count * max(longer, 1.1))
    raise Unusable(f"{contender.name}: {_ATTEMPTS} runs, and none took {scale.seconds} s")


def _rounded(count: float) -> int:
    """To two digits, upwards: contenders with about as many share a backlog."""
    unit = int(10 ** max(len(str(int(count))) - 2, 0))
    return -(-int(count) // unit) * unit
