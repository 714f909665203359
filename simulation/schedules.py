"""A schedule is what a history was about and every choice that was made in it, so that it can be had again.

A seed gives the same history only as long as the generator and the code draw the same numbers in the same order. A
schedule that is kept in a file has the scenario itself, and for each turn whose turn it was and the numbers that were
drawn in it. Where the code has changed since, a turn that cannot be had is left out, and numbers that are missing are
drawn: what is left is as near to the old history as the new code comes.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

from onceward.domain.breaker import Circuit
from onceward.domain.schedule import Due
from onceward.message import Delivery
from onceward.retry import RetryPolicy
from onceward.settings import Settings
from simulation.tasks import Task
from simulation.themes import Faults
from simulation.workload import Kind, Plan, Scenario

FINDINGS = Path(__file__).with_name("findings")
KEPT = 10_000
"""Of a number between 0 and 1, four digits are enough for most histories."""
_TYPES = {one.__name__: one for one in (Circuit, Delivery, Due, Faults, Kind, Plan, RetryPolicy, Scenario, Settings)}


class Chance(random.Random):
    """What a history draws from."""

    def turn(self, ready: Sequence[Task]) -> Task:
        """Return which of those that could take the next step takes it."""
        return ready[int(self.random() * len(ready))]


class Recorder(Chance):
    """Draws what `Chance` would, and remembers it."""

    def __init__(self, seed: str) -> None:
        super().__init__(seed)
        self.turns: list[list[Any]] = [[""]]
        """For each turn the name of the task, and what was drawn; first what was drawn before the first turn."""

    def turn(self, ready: Sequence[Task]) -> Task:
        """As it would be, remembered by the task's name instead of the number drawn."""
        task = ready[int(super().random() * len(ready))]
        self.turns.append([task.name])
        return task

    def random(self) -> float:
        """Between 0 and 1."""
        drawn = super().random()
        self.turns[-1].append(drawn)
        return drawn

    def getrandbits(self, k: int, /) -> int:
        """Here, so that the methods below draw as they do in the class above."""
        return super().getrandbits(k)

    def choice(self, seq: Any) -> Any:
        """One of them."""
        return seq[self.randrange(len(seq))]

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        """A whole number below the first one."""
        drawn = super().randrange(start, stop, step)
        self.turns[-1].append(drawn)
        return drawn


class Replay(Chance):
    """Gives the numbers of a schedule again, each in its turn."""

    def __init__(self, turns: Sequence[Sequence[Any]]) -> None:
        super().__init__("what is missing")
        self._left = [list(turn) for turn in reversed(turns)]
        self._drawn: list[Any] = self._left.pop()[:0:-1] if self._left else []

    def turn(self, ready: Sequence[Task]) -> Task:
        """The next turn of a task that can have it."""
        while self._left:
            name, *drawn = self._left.pop()
            for task in ready:
                if task.name == name:
                    self._drawn = drawn[::-1]
                    return task
        return super().turn(ready)

    def random(self) -> float:
        """Between 0 and 1."""
        drawn = self._drawn.pop() if self._drawn else super().random()
        return float(drawn) if drawn < 1 else 0.0

    def choice(self, seq: Any) -> Any:
        """One of them."""
        return seq[self.randrange(len(seq))]

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        """A whole number below the first one."""
        if not self._drawn:
            return super().randrange(start, stop, step)
        return int(self._drawn.pop()) % start


@dataclass(frozen=True, slots=True)
class Schedule:
    """A history that is kept, and why."""

    finding: str
    """What was wrong, in a sentence."""
    store: str
    scenario: Scenario
    turns: list[list[Any]]

    def write(self, name: str) -> Path:
        """Keep it among the findings."""
        FINDINGS.mkdir(exist_ok=True)
        path = FINDINGS / f"{name}.json"
        names = sorted({turn[0] for turn in self.turns})
        known = {
            "finding": self.finding,
            "store": self.store,
            "scenario": _encoded(self.scenario),
            "names": names,
            "turns": [[names.index(name), *drawn] for name, *drawn in self.turns],
        }
        path.write_text(json.dumps(known, separators=(",", ":")) + "\n", encoding="utf-8")
        return path

    @classmethod
    def read(cls, name: str) -> Self:
        """One of the findings."""
        known = json.loads((FINDINGS / f"{name}.json").read_text(encoding="utf-8"))
        turns = [[known["names"][number], *drawn] for number, *drawn in known["turns"]]
        return cls(known["finding"], known["store"], _decoded(known["scenario"]), turns)


def shortened(turns: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """The same turns with shorter numbers."""
    return [[int(one * KEPT) / KEPT if isinstance(one, float) else one for one in turn] for turn in turns]


def names() -> list[str]:
    """The schedules that are kept."""
    return sorted(path.stem for path in FINDINGS.glob("*.json"))


def seeds(name: str = "seeds") -> dict[int, str]:
    """The seeds that once failed, and the test of each, if it has got one; or the open ones, and what is wrong."""
    lines = (FINDINGS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    rows = (line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))
    return {int(seed): "".join(test) for seed, *test in rows}


def _encoded(value: Any) -> Any:
    """As JSON has it; what JSON does not know is a list that begins with the name of its type."""
    kind = type(value).__name__
    if kind in _TYPES:
        fields = value._asdict() if hasattr(value, "_asdict") else _fields(value)
        return [kind, {name: _encoded(one) for name, one in fields.items()}]
    if isinstance(value, timedelta):
        return ["timedelta", value.total_seconds()]
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    if isinstance(value, Mapping):
        return ["dict", [[_encoded(key), _encoded(one)] for key, one in value.items()]]
    if isinstance(value, list | tuple):
        return ["list" if isinstance(value, list) else "tuple", [_encoded(one) for one in value]]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{kind} is not known in a schedule: add it to simulation/schedules.py")


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _decoded(value: Any) -> Any:
    """What was encoded; a field that its type has no more is left out."""
    if not isinstance(value, list):
        return value
    kind, content = value
    plain: dict[str, Callable[[Any], Any]] = {
        "timedelta": lambda seconds: timedelta(seconds=seconds),
        "bytes": bytes.fromhex,
        "dict": lambda items: {_decoded(key): _decoded(one) for key, one in items},
        "list": lambda items: [_decoded(one) for one in items],
        "tuple": lambda items: tuple(_decoded(one) for one in items),
    }
    if kind in plain:
        return plain[kind](content)
    there = _TYPES[kind]
    known = there._fields if hasattr(there, "_fields") else [field.name for field in dataclasses.fields(there)]
    return there(**{name: _decoded(one) for name, one in content.items() if name in known})
