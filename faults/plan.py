"""What is delivered and what goes wrong, drawn from a seed: every contender gets the same.

The poison messages and the killer have accounts of their own: what follows a message that cannot be booked waits in
onceward until a person decides, and that is another promise than the ones counted here.
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

Kind = Literal["plain", "raises once", "poison", "killer"]
How = Literal["alone", "at once", "again"]
"""A delivery by itself, both copies in the same moment, or the copy of one that was delivered before."""
Fault = Literal["kill", "restart", "suspend"]

ACCOUNTS = 40
WORKERS = 3
TWICE = 0.3
"""The part of the payments that is delivered twice; half of them at once."""
LATEST = 50
"""So many deliveries later a copy comes at most."""


@dataclass(frozen=True, slots=True)
class Payment:
    """One message."""

    id: str
    account: str
    position: int
    """Its place among the payments of its account."""
    amount: int
    kind: Kind = "plain"

    @property
    def books(self) -> bool:
        """Whether it must take effect in the end."""
        return self.kind in ("plain", "raises once")


@dataclass(frozen=True, slots=True)
class Delivery:
    """One thing that the sender does."""

    payment: Payment
    how: How


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault."""

    fault: Fault
    worker: int
    wait: float
    """Seconds from the release of the messages before it."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of everything."""

    messages: int = 2000
    kills: int = 20
    restarts: int = 3
    suspensions: int = 5
    raises: int = 20
    poisons: int = 5


FULL = Scale()
QUICK = Scale(messages=200, kills=4, restarts=1, suspensions=1, raises=4, poisons=2)


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that will happen."""

    payments: list[Payment]
    deliveries: list[Delivery]
    strikes: list[Strike]

    @property
    def copies(self) -> int:
        """How many messages are sent."""
        return sum(2 if delivery.how == "at once" else 1 for delivery in self.deliveries)

    @property
    def killer(self) -> Payment:
        """The message that kills its process."""
        return next(payment for payment in self.payments if payment.kind == "killer")


def make(seed: int, scale: Scale) -> Plan:
    """The same seed and scale, the same plan."""
    rng = random.Random(f"faults {seed} {scale}")
    payments = _payments(scale, rng)
    return Plan(payments, _deliveries(payments, rng), _strikes(scale, rng))


def _payments(scale: Scale, rng: random.Random) -> list[Payment]:
    troubles: list[Kind] = ["raises once" for _ in range(scale.raises)]
    troubles += ["poison" for _ in range(scale.poisons)]
    if len(troubles) + 1 > scale.messages // 2:
        raise ValueError(f"{scale.messages} messages are too few for {len(troubles) + 1} that make trouble")
    # Not at the ends: trouble is for those that come with it and behind it.
    middle = range(scale.messages // 8, scale.messages * 7 // 8)
    places = dict(zip(rng.sample(middle, len(troubles) + 1), [*troubles, "killer"], strict=True))
    positions: dict[str, int] = {}
    payments = []
    for number in range(scale.messages):
        kind: Kind = places.get(number, "plain")
        account = f"a{rng.randrange(ACCOUNTS)}" if kind in ("plain", "raises once") else f"{kind}-{number}"
        positions[account] = positions.get(account, 0) + 1
        payments.append(Payment(f"pay-{number}", account, positions[account], rng.randrange(1, 10_000), kind))
    return payments


def _deliveries(payments: list[Payment], rng: random.Random) -> list[Delivery]:
    """The killer comes once: what kills a worker is not sent again by a sender that got its answer."""
    twice = {payment.id for payment in rng.sample(payments, round(len(payments) * TWICE)) if payment.kind != "killer"}
    placed: list[tuple[float, Delivery]] = []
    for place, payment in enumerate(payments):
        at_once = payment.id in twice and rng.random() < 0.5
        placed.append((place, Delivery(payment, "at once" if at_once else "alone")))
        if payment.id in twice and not at_once:
            placed.append((place + rng.randrange(1, LATEST) + 0.5, Delivery(payment, "again")))
    return [delivery for _, delivery in sorted(placed, key=lambda pair: pair[0])]


def _strikes(scale: Scale, rng: random.Random) -> list[Strike]:
    kinds: list[Fault] = ["kill" for _ in range(scale.kills)]
    kinds += ["restart" for _ in range(scale.restarts)]
    kinds += ["suspend" for _ in range(scale.suspensions)]
    rng.shuffle(kinds)
    return [Strike(kind, rng.randrange(WORKERS), round(rng.uniform(0.05, 0.3), 3)) for kind in kinds]


def without_restarts(plan: Plan) -> Plan:
    """For a database that is no server."""
    return replace(plan, strikes=[strike for strike in plan.strikes if strike.fault != "restart"])


def write(path: Path, deliveries: list[Delivery]) -> None:
    """Keep the deliveries in a file, for the process that makes them."""
    path.write_text("".join(json.dumps(asdict(delivery)) + "\n" for delivery in deliveries), encoding="utf-8")


def read(path: Path) -> list[Delivery]:
    """Read them again."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [Delivery(Payment(**row["payment"]), row["how"]) for row in rows]
