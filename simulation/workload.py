"""What a history is about, drawn from its seed: kinds of messages, processes, faults.

Invariant: everything random about a history is drawn from `random.Random(seed)`, here or in the scheduler.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from onceward.breaker import Circuit
from onceward.message import Delivery
from onceward.retry import RetryPolicy
from onceward.settings import Settings

SERVICE = "svc"
OTHER = "other"
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
    keep_body: bool = True
    gap: float = 25.0


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
class Faults:
    """How often things go wrong, per request or per step; zero where this history has none of the kind."""

    cut_before: float = 0.0
    cut_after: float = 0.0
    conflict: float = 0.0
    commit_lost: float = 0.0
    crash: float = 0.0
    stop_resume: float = 0.0
    shutdown: float = 0.0
    cancel: float = 0.0
    clock_jump: float = 0.0
    away: float = 0.0
    effect_lost: float = 0.0
    """The connection is lost between an external call and its record."""
    publish_crash: float = 0.0
    """The process dies between a publication and its finish."""
    operators: float = 0.0


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
    late_from: int
    """The number of process starts from which on the late types are handled."""
    steps: int
    jitter: float
    budget_of: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Theme:
    """What every other history is about, so that rare states are reached in a short run too."""

    kinds: tuple[str, ...] = ()
    """Only these kinds of messages are drawn from; empty: all."""
    faults: Mapping[str, float] = field(default_factory=dict)
    """Rates of faults that are set instead of drawn."""
    trouble: bool = False
    """Messages fail and kill more often."""
    twins: float = 0.1
    """How many ids come with other bytes too."""
    inline: float = 0.3
    """How many messages are handled where they are received, if that can be."""
    copies: int = 0
    """So many more copies of each message."""
    forgetful: bool = False
    """What is finished is soon forgotten, and its copies come all the time."""


PLAIN = Theme()
BUSY = 0.2
"""Operators who do something all the time."""
THEMES = (
    Theme(("caller", "payer"), {"effect_lost": 0.4, "operators": 0.04}),
    Theme(("moving", "tally"), {"operators": BUSY}, trouble=True),
    Theme(("counted", "tally"), {"operators": BUSY, "stop_resume": 0.006}),
    Theme(("plain", "keyed", "single"), {"stop_resume": 0.03, "crash": 0.0, "away": 0.0}, trouble=True),
    Theme(("late", "later"), {"shutdown": 0.01, "crash": 0.0, "operators": 0.02}, twins=0.6),
    Theme(("sender", "teller"), {"publish_crash": 0.3, "operators": BUSY}),
    Theme(("flaky", "batch"), {"operators": 0.02}, trouble=True),
    Theme(("keyed", "single", "plain"), {"cut_after": 0.02}, trouble=True, inline=0.9, copies=3),
    Theme(("plain", "keyed", "flaky"), {"crash": 0.0, "away": 0.0}, trouble=True, inline=0.0),
    Theme(("keyed", "single", "moving"), {"conflict": 0.02, "operators": BUSY}, trouble=True),
    Theme(
        ("plain", "keyed", "shared", "batch"),
        {"clock_jump": 0.0, "operators": 0.04},
        copies=4,
        twins=0.3,
        forgetful=True,
    ),
)


def scenario(seed: int, mode: str, theme: Theme | None = None) -> Scenario:
    """Draw a history; every other seed has a theme, unless one is given."""
    chance = random.Random(f"{mode}:{seed}")
    theme = theme or (THEMES[seed // 2 % len(THEMES)] if seed % 2 else PLAIN)
    drawn = [kind for kind in KINDS if not theme.kinds or kind.type in theme.kinds]
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
            crash_limit=chance.choice((2, 3)),
            careful=timedelta(seconds=chance.choice((0, 20, 60))),
            **(_retention(chance) if theme.forgetful else {"upkeep": None}),
        ),
        retry=RetryPolicy(
            attempts=chance.choice((1, 2, 3)), first=timedelta(seconds=chance.choice((0.1, 1, 4))), jitter=1
        ),
        faults=replace(_faults(chance), **theme.faults),
        processes=chance.choice((1, 2, 2, 3)),
        lanes=chance.choice((1, 1, 2)),
        receivers=chance.choice((1, 2, 3)),
        late_from=chance.choice((1, 2, 3)),
        steps=chance.choice((300, 450, 600)) if theme is PLAIN else 1200,
        jitter=chance.choice((0.0005, 0.005, 0.05)),
    )


def _retention(chance: random.Random) -> dict[str, Any]:
    """So short that much is forgotten while its copies still come."""
    ids = chance.choice((2, 8, 20))
    return {
        "dedupe_retention": timedelta(seconds=ids),
        "body_retention": timedelta(seconds=ids / 2),
        "upkeep": timedelta(seconds=chance.choice((1, 5))),
        "archive_first": chance.random() < 0.3,
    }


def _plans(chance: random.Random, kinds: list[Kind], theme: Theme) -> dict[tuple[str, str], Plan]:
    plans: dict[tuple[str, str], Plan] = {}
    numbers: dict[tuple[str, str], int] = {}
    keys = ["a", "b"][: chance.choice((1, 1, 2))]
    trouble = 0.9 if theme.trouble else chance.choice((0.0, 0.2, 0.5))
    missing = chance.random() < 0.2
    for index in range(chance.choice((2, 3, 4, 5, 6, 8, 10))):
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
        plan = Plan(delivery, kind, number, inline=chance.random() < theme.inline)
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
    return Delivery.of(source=source, id=message_id, type=kind.type, data=data, key=given)


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
        plan.twin = Delivery.of(source=first.source, id=first.id, type=first.type, data=body, key=first.key)


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
