"""What is delivered: partitions of messages, each with a promise that the verifier holds the service to.

A partition is read in order and again from the last acknowledged message after a crash, as a broker's client would.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

How = Literal["receive", "many", "process"]
"""How a message is handed to the inbox."""

PARTITIONS = 2
KEYS = 20
KINDS = {"plain": 45, "ordered": 35, "flaky": 10, "sends": 8, "doomed": 2}
WITH_NOVEL = {**KINDS, "plain": 35, "novel": 10}
"""With a type that only newer code handles."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """One message of a partition."""

    id: str
    kind: str
    how: How
    key: str
    position: int

    @property
    def effects(self) -> int:
        """How often it must take effect in the end; what it sends is a message of its own."""
        return 0 if self.kind in ("doomed", "deadly") else 1


def make(count: int, rng: random.Random, kinds: Mapping[str, int] = KINDS) -> list[list[Parcel]]:
    """So many messages, in partitions; what kills its process is rare, as each kills three."""
    partitions: list[list[Parcel]] = []
    for partition in range(PARTITIONS):
        positions = [0] * KEYS
        parcels = []
        for number in range(count // PARTITIONS + (count % PARTITIONS > partition)):
            kind = rng.choices(list(kinds), list(kinds.values()))[0]
            if number % 1000 == 500:
                kind = "deadly"
            key = rng.randrange(KEYS)
            positions[key] += 1
            how: How = "receive" if kind == "deadly" else rng.choice(["receive", "many", "many", "process"])
            parcels.append(Parcel(f"p{partition}-{number}", kind, how, f"p{partition}-k{key}", positions[key]))
        partitions.append(parcels)
    return partitions


def write(path: Path, parcels: list[Parcel]) -> None:
    """Keep a partition in a file."""
    path.write_text("".join(json.dumps(asdict(parcel)) + "\n" for parcel in parcels), encoding="utf-8")


def read(path: Path) -> list[Parcel]:
    """Read it again."""
    return [Parcel(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
