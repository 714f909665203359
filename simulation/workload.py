"""What a history is about, drawn from its seed: kinds of messages, processes, faults.

Invariant: everything random about a history is drawn from `random.Random(seed)`, here or in the scheduler.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from onceward.domain.breaker import Circuit
from onceward.domain.schedule import Due
from onceward.message import Delivery
from onceward.retry import RetryPolicy
from onceward.settings import Settings
from simulation.themes import HANGING, OTHER, OUT, PLAIN, SERVICE, THEMES, THIRD, Faults, Theme

LEASE = 15.0


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of message and how it is handled."""

    type: str
    consumers: tuple[str, ...] = (SERVICE,)
    key: str | None = None
    sequence: str | None = None
    group: int = 3
    batch: bool = False
    on_dead: str = "block"
    circuit: Circuit | None = None
    sends: int = 0
    once: bool = False
    idempotent: bool = False
    late: bool = False
    """Nobody handles it at first."""
    keep_body: bool = True
    gap: float = 25.0
    versions: int = 1
    """Its messages are of the versions from 1 to this; old programs know the first one only."""


KINDS = (
    Kind("plain"),
    Kind("keyed", key="key"),
    Kind("single", key="key", group=1),
    Kind("counted", key="key", sequence="n"),
    Kind("tally", key="key", sequence="n", on_dead="continue", gap=12.0),
    Kind("shared", consumers=(SERVICE, OTHER), key="key"),
    Kind("batch", batch=True),
    Kind("sheaf", batch=True, key="key", keep_body=False),
    Kind("sender", key="key", sends=2),
    Kind("teller", sends=1),
    Kind("caller", once=True, sends=1),
    Kind("payer", once=True, idempotent=True, key="key"),
    Kind("late", late=True, key="key"),
    Kind("later", consumers=(OTHER,), late=True),
    Kind("latest", consumers=(SERVICE, OTHER), late=True, key="key"),
    Kind("handed", consumers=(OTHER,), late=True, key="key"),
    Kind("versioned", key="key", versions=2),
    Kind("revised", versions=2),
    Kind("growing", consumers=(SERVICE, OTHER, THIRD), key="key"),
    Kind("flaky", circuit=Circuit(failures=2, pause=timedelta(seconds=8))),
    Kind("moving", key="key", on_dead="continue"),
)


@dataclass(slots=True)
class Plan:
    """One message: what it is and how its handler behaves."""

    delivery: Delivery
    kind: Kind
    number: int | None = None
    fails: int = 0
    """How many attempts fail before one succeeds."""
    failure: str = "raise"
    kills: int = 0
    """How many calls kill the process."""
    pause: float = 0.0
    late_failure: bool = True
    """It fails after its effects were written rather than before."""
    twin: Delivery | None = None
    """The same id with other bytes."""
    inline: bool = False


@dataclass(slots=True)
class Scenario:
    """One history before it begins."""

    seed: int
    mode: str
    kinds: list[Kind]
    plans: dict[tuple[str, str], Plan]
    queue: list[Delivery]
    """What the broker has to deliver, copies included, in its order."""
    settings: Settings
    retry: RetryPolicy
    faults: Faults
    processes: int
    lanes: int
    receivers: int
    deploying: bool
    """Several processes are replaced by newer ones at a time."""
    since: dict[tuple[str, str], int]
    """(type, consumer): the number of process starts from which on it is handled."""
    services: tuple[str, ...]
    """Processes are of one after the other."""
    destinations: dict[str, int]
    """Where outgoing messages go, and the number of process starts from which on programs have a sink for it."""
    spool: bool
    """The host has one."""
    callers: int
    """Programs that receive inside transactions of their own."""
    modern_since: int
    """The number of process starts from which on programs know the newest version of every type."""
    steps: int
    jitter: float
    pace: float
    """Seconds that a receiver rests between deliveries."""

    def hangs(self, destination: str) -> bool:
        """Whether a destination takes for ever while there are faults."""
        return destination == HANGING

    def sinks(self, start: int) -> list[str]:
        """The destinations that the process started as number so and so publishes to."""
        return [one for one, since in self.destinations.items() if start >= since]

    @property
    def newest(self) -> int:
        """The number of process starts from which on everything is handled."""
        return max(*self.since.values(), *self.destinations.values(), self.modern_since)


def scenario(seed: int, mode: str, theme: Theme | None = None) -> Scenario:
    """Draw a history; every other seed has a theme, unless one is given."""
    chance = random.Random(f"{mode}:{seed}")
    theme = theme or (THEMES[seed // 2 % len(THEMES)] if seed % 2 else PLAIN)
    drawn = [kind for kind in KINDS if kind.type in theme.kinds or not (theme.kinds or kind.versions > 1)]
    kinds = chance.sample(drawn, min(len(drawn), chance.choice((1, 2, 2, 3, 4))))
    plans = _plans(chance, kinds, theme)
    return Scenario(
        seed=seed,
        mode=mode,
        kinds=kinds,
        plans=plans,
        queue=_deliveries(chance, list(plans.values()), theme),
        settings=Settings(
            lease=timedelta(seconds=LEASE),
            group=chance.choice((1, 2, 3, 5)),
            group_time=timedelta(milliseconds=chance.choice((1, 20, 2000))),
            claim_time=timedelta(seconds=random.Random(f"claim:{mode}:{seed}").choice((0.2, 60, 3600))),
            crash_limit=chance.choice((2, 3)),
            store_first_for=timedelta(seconds=chance.choice((0, 20, 60))),
            **(_retention(chance) if theme.forgetful else {"maintenance": None}),
        ),
        retry=RetryPolicy(
            attempts=chance.choice((1, 2, 3)), first=timedelta(seconds=chance.choice((0.1, 1, 4))), jitter=1
        ),
        faults=replace(_faults(chance), **theme.faults),
        processes=chance.choice((2, 2, 3, 4) if theme.deploying else (1, 2, 2, 3)),
        lanes=chance.choice((1, 1, 2)),
        receivers=1 if theme.joins else chance.choice((1, 2, 3)),
        deploying=theme.deploying,
        since=_since(chance, kinds, theme),
        services=theme.services,
        callers=chance.choice((2, 3)) if theme.joins else 0,
        spool=theme.spool,
        destinations={one: 1 if one == OUT else chance.choice((1, 2, 3)) for one in theme.destinations},
        modern_since=chance.choice((2, 2, 3, 4)) if any(kind.versions > 1 for kind in kinds) else 1,
        steps=chance.choice((300, 450, 600)) if theme is PLAIN else 1200,
        jitter=0.0005 if HANGING in theme.destinations else chance.choice((0.0005, 0.005, 0.05)),
        pace=chance.choice((0.3, 1.0, 3.0)) * (3.0 if theme.joins else 1.0) if theme.deploying else 0.0,
    )


def _since(chance: random.Random, kinds: list[Kind], theme: Theme) -> dict[tuple[str, str], int]:
    """From which start on each consumer is there: all from the first, but for what comes late."""
    late = chance.choice((1, 2, 3))
    found = {}
    for kind in kinds:
        for consumer in kind.consumers:
            start = late if kind.late else 1
            if theme.deploying and (kind.late or consumer != SERVICE):
                start = chance.choice((1, 3, 4, 5, 6, 7))
            found[kind.type, consumer] = start
    return found


def _retention(chance: random.Random) -> dict[str, Any]:
    """So short that much is forgotten while its copies still come."""
    ids = chance.choice((2, 8, 20))
    return {
        "dedupe_retention": timedelta(seconds=ids),
        "body_retention": timedelta(seconds=ids / 2),
        "maintenance": timedelta(seconds=chance.choice((1, 5))),
        "archive_first": chance.random() < 0.3,
    }


def _plans(chance: random.Random, kinds: list[Kind], theme: Theme) -> dict[tuple[str, str], Plan]:
    plans: dict[tuple[str, str], Plan] = {}
    numbers: dict[tuple[str, str], int] = {}
    keys = ["a", "b"][: 1 if theme.deploying else chance.choice((1, 1, 2))]
    trouble = 0.9 if theme.trouble else chance.choice((0.0, 0.2, 0.5))
    missing = chance.random() < 0.2
    for index in range(chance.choice((8, 10) if theme.deploying else (2, 3, 4, 5, 6, 8, 10))):
        kind = chance.choice(kinds)
        key = chance.choice(keys)
        if kind.sequence:
            key = f"{kind.type}-{key}"  # places of different kinds are not comparable, so such keys are not shared
        number = None
        if kind.sequence:
            number = numbers.get((kind.type, key), 0) + (2 if missing and chance.random() < 0.3 else 1)
            if chance.random() < 0.1 and number > 1:
                number -= 1  # another message with a number that was used before
            numbers[kind.type, key] = max(number, numbers.get((kind.type, key), 0))
        delivery = _delivery(chance, kind, index, key, number)
        if theme.spool:
            delivery = _unsigned(chance, delivery, [plan.delivery for plan in plans.values()])
        inline = chance.random() < theme.inline
        if theme.delays and chance.random() < theme.delays:
            delivery, inline = delivery._replace(due=Due(after=round(chance.choice((0.3, 2.0, 8.0)) * 1e6))), False
        plan = Plan(delivery, kind, number, inline=inline)
        plans[delivery.source, delivery.id] = plan
        _misbehave(chance, plan, trouble, theme.twins)
    return plans


def _delivery(chance: random.Random, kind: Kind, index: int, key: str, number: int | None) -> Delivery:
    data: dict[str, Any] = {"key": key, "i": index}
    if number is not None:
        data["n"] = number
    source = chance.choice(("shop", "bank"))
    # Ids repeat over sources: they are only unique within one.
    message_id = f"m{index // 2}" if source == "bank" and index % 2 else f"m{index}"
    given = key if kind.key is not None and kind.sequence is None and chance.random() < 0.3 else None
    version = chance.randint(1, kind.versions) if kind.versions > 1 else 1
    return Delivery.of(source=source, id=message_id, type=kind.type, data=data, key=given, version=version)


def _unsigned(chance: random.Random, delivery: Delivery, before: list[Delivery]) -> Delivery:
    """From a source whose ids are not signed: now and then the body of another comes again under a new id."""
    same = [one for one in before if (one.source, one.type) == (delivery.source, delivery.type)]
    if same and chance.random() < 0.3:
        first = chance.choice(same)
        delivery = delivery._replace(body=first.body, hash=first.hash)
    return delivery._replace(echo_window=3600.0)


def _misbehave(chance: random.Random, plan: Plan, trouble: float, twins: float) -> None:
    if chance.random() < trouble:
        plan.fails = chance.choice((1, 1, 2, 3))
        plan.failure = chance.choice(("raise", "raise", "retry", "reject", "timeout"))
        plan.late_failure = chance.random() < 0.7
    if chance.random() < trouble / 3:
        plan.kills = chance.choice((1, 1, 2, 4))
    if chance.random() < max(0.2, trouble / 2):
        plan.pause = chance.choice((0.01, 0.5, 3.0))
    if chance.random() < twins:
        first = plan.delivery
        body = json.loads(first.body) | {"changed": True}
        plan.twin = Delivery.of(
            source=first.source, id=first.id, type=first.type, data=body, key=first.key, version=first.version
        )


def _deliveries(chance: random.Random, plans: list[Plan], theme: Theme) -> list[Delivery]:
    """Mostly in order, with copies, twins and some disorder."""
    queue: list[Delivery] = []
    for plan in plans:
        queue.append(plan.delivery)
        queue += [plan.delivery] * (theme.copies + chance.choice((0, 0, 0, 1, 2)))
        if plan.twin is not None:
            queue += [plan.twin] * chance.choice((1, 2))
    if theme.forgetful:
        chance.shuffle(queue)
    for _ in range(chance.choice((0, 0, 1, 3))):
        first, second = chance.randrange(len(queue)), chance.randrange(len(queue))
        queue[first], queue[second] = queue[second], queue[first]
    return queue


def _faults(chance: random.Random) -> Faults:
    """Swarm testing: each kind of fault is in some histories and not in others."""

    def some(rate: float) -> float:
        return rate * chance.choice((0.3, 1.0, 2.0)) if chance.random() < 0.45 else 0.0

    if chance.random() < 0.08:
        return Faults(operators=some(0.02))
    return Faults(
        cut_before=some(0.01),
        cut_after=some(0.01),
        conflict=some(0.01),
        commit_lost=some(0.06),
        crash=some(0.006),
        stop_resume=some(0.006),
        shutdown=some(0.003),
        cancel=some(0.004),
        clock_jump=some(0.002),
        away=some(0.3),
        operators=some(0.02),
    )
