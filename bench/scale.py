"""How much is measured: `make bench`, `make bench QUICK=1`, and what a test runs."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Crowd:
    """Sizes of the scenarios in which messages get in each other's way."""

    rounds: int
    lanes: int
    processes: int
    """Where the lanes are spread over several."""
    slow: int
    failing: int
    held: int
    """Messages of a key that is held."""
    healthy: int
    isolated: int
    bursts: int
    callers: int
    """Receives of a burst."""
    neighbours: int
    """Messages beside which some fail."""


CROWD = Crowd(
    rounds=2,
    lanes=8,
    processes=4,
    slow=80,
    failing=3_000,
    held=10_000,
    healthy=20,
    isolated=300,
    bursts=200,
    callers=64,
    neighbours=550,
)


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes; the same workloads, the same table at every scale."""

    name: str
    repetitions: int
    seconds: float
    """How long a run of a contender must last at least."""
    least: int
    """Messages of a run at least."""
    messages: int
    """Of a run whose rate does not count: one that is looked at (`profile`), or compared in turns (`before`)."""
    slow: int
    """The same, with a transaction for each message."""
    processes: int
    connections: int
    callers: int
    finished: tuple[int, ...]
    """How many finished rows the tables have, smallest first."""
    blocked: int
    dead: int
    pinned_seconds: float
    churn: int
    """Messages a second beside the transaction that stays open."""
    memory: tuple[int, int]
    """Where the memory is looked at: after so many messages."""
    latency_seconds: float
    starts: int
    """How often something is started to see how long that takes."""
    crowd: Crowd


FULL = Scale(
    name="full",
    repetitions=3,
    seconds=5,
    least=200,
    messages=20_000,
    slow=4_000,
    processes=2,
    connections=8,
    callers=64,
    finished=(0, 1_000_000, 5_000_000),
    blocked=1_000_000,
    dead=100_000,
    pinned_seconds=60,
    churn=5_000,
    memory=(100_000, 1_000_000),
    latency_seconds=8,
    starts=5,
    crowd=CROWD,
)
QUICK = Scale(
    name="quick",
    repetitions=1,
    seconds=5,
    least=200,
    messages=10_000,
    slow=2_000,
    processes=2,
    connections=8,
    callers=64,
    finished=(0, 50_000, 200_000),
    blocked=100_000,
    dead=20_000,
    pinned_seconds=8,
    churn=2_000,
    memory=(20_000, 100_000),
    latency_seconds=3,
    starts=5,
    crowd=replace(CROWD, rounds=1, bursts=60),
)
TINY = Scale(
    name="tiny",
    repetitions=1,
    seconds=0,
    least=60,
    messages=300,
    slow=60,
    processes=1,
    connections=2,
    callers=8,
    finished=(0, 100, 1_000),
    blocked=500,
    dead=100,
    pinned_seconds=1,
    churn=200,
    memory=(200, 400),
    latency_seconds=0.5,
    starts=1,
    crowd=Crowd(
        rounds=1,
        lanes=2,
        processes=2,
        slow=4,
        failing=50,
        held=50,
        healthy=2,
        isolated=10,
        bursts=2,
        callers=4,
        neighbours=60,
    ),
)
SCALES = {scale.name: scale for scale in (FULL, QUICK, TINY)}
