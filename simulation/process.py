"""A simulated process: upkeep, lanes, receivers; the threads and loops of the real one as generators.

Mirrors `presence.py`, `worker.py`, `inline.py` and `transact.py`, whose threads cannot be simulated: the same steps in
the same order, each request a scheduling point.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from onceward.errors import StoreConflict, StoreError, StoreUnavailable
from onceward.flow import RECONNECT, Flow, Wait
from onceward.message import Delivery, Message, Receipt
from onceward.steps import presence
from onceward.steps.context import Context
from onceward.steps.handle import work
from onceward.steps.introduce import subscribe
from onceward.steps.lane import WARY, Gate, Lane
from onceward.steps.process import process as process_step
from onceward.steps.prune import Sweep, upkeep
from onceward.steps.receive import merged, receive
from onceward.steps.subscribe import fan_out
from simulation.broker import Parcel
from simulation.history import Reception
from simulation.requests import Effect
from simulation.tasks import Task
from simulation.workload import LEASE

if TYPE_CHECKING:
    from simulation.world import World

TICK = LEASE / 3


@dataclass(slots=True, eq=False)
class Process:
    """What the threads of one process share."""

    name: str
    context: Context
    inline: bool
    receivers: int
    lanes: int
    knows_all: bool
    """It handles the late types too."""
    numbers: Iterator[int]
    """What worker numbers are drawn from: the same for all processes."""
    gate: Gate = field(default_factory=Gate)
    worker: int = 0
    registered_as: str = ""
    stopping: bool = False
    alive: bool = True
    paused_until: float = 0.0
    orphans: set[int] = field(default_factory=set)
    tasks: list[Task] = field(default_factory=list)
    introduced: bool = False
    sweep: Sweep = field(default_factory=Sweep)
    _tokens: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _starts: itertools.count[int] = field(default_factory=itertools.count)

    def token(self) -> int:
        """A number never used before by this process."""
        return next(self._tokens)

    def start_name(self) -> str:
        """A name of its own for every registration."""
        number = next(self._starts)
        return self.name if number == 0 else f"{self.name}#{number}"

    @property
    def busy(self) -> bool:
        """Whether a lane or receiver still runs."""
        return any(not task.ended for task in self.tasks)


def twice(step: Callable[[], Flow[Any]]) -> Flow[Any]:
    """As `transact.perform`: once more on a new session when the first try failed for a reason that may have passed."""
    for last in (False, True):
        try:
            return (yield from step())
        except (StoreUnavailable, StoreConflict):
            yield RECONNECT
            if last:
                raise
    raise AssertionError("unreachable")


def life(world: World, process: Process) -> Flow[None]:
    """Register, start the lanes, renew the lease until told to stop, say goodbye."""
    while True:
        try:
            yield from _introduce(process)
            while (yield from fan_out(process.context)):
                pass
            yield from _register(process)
            break
        except StoreError:
            yield RECONNECT
            yield Wait(0.5)
    world.start_actors(process)
    while not process.stopping or process.busy:
        yield Wait(0.2 if process.stopping else TICK)
        try:
            yield from _renew(process)
        except StoreError:
            yield RECONNECT
    try:
        yield from presence.say_goodbye(process.context, process.worker)
    except StoreError:
        world.observer.sometimes("could not say goodbye")


def _introduce(process: Process) -> Flow[None]:
    if not process.introduced:
        yield from subscribe(process.context, process.context.cache)
        process.introduced = True


def _register(process: Process) -> Flow[None]:
    process.registered_as = process.start_name()
    process.worker = yield from presence.register(
        process.context,
        process=process.registered_as,
        host="host",
        pid=1,
        inline=process.inline,
        draw=lambda: next(process.numbers),
    )


def _renew(process: Process) -> Flow[None]:
    if not (yield from presence.beat(process.context, process.worker, process.registered_as, inline=process.inline)):
        yield from _register(process)
    tokens = set(process.orphans)
    yield from presence.release(process.context, process.worker, tokens)
    process.orphans -= tokens
    yield from presence.take_over_lapsed(process.context, process.worker)
    yield from fan_out(process.context)
    yield from upkeep(process.context, process.sweep)


def lane_of(process: Process, *, destination: str | None = None) -> Lane:
    """A lane for the handlers, or for a destination of the relay."""
    context = process.context
    served = []
    for subscription in context.cache.catalog.subscriptions.values():
        handler = context.registry.of_type(subscription.consumer, destination or subscription.type)
        if handler is not None and handler.external == (destination is not None):
            served.append(subscription)
    return Lane(
        context=context,
        worker=lambda: process.worker,
        new_token=process.token,
        subscriptions=served,
        stopping=lambda: process.stopping,
        gate=process.gate,
        destination=destination,
        effects=_effect,
        wary=WARY * (process.worker % 2),  # every second process makes points from the beginning
    )


def lane_work(lane: Lane) -> Flow[int]:
    """The life of a lane."""
    return (yield from work(lane))


def _effect(message: Message, name: str, call: Callable[[], Any], idempotent: bool) -> Effect:  # noqa: FBT001 - as `Message.once` calls it
    return Effect(message, name, call, idempotent)


def receiver(world: World, process: Process, name: str) -> Flow[None]:
    """Take deliveries from the broker, store or process them, acknowledge."""
    while not process.stopping:
        parcels = world.broker.take(name, world.chance.choice((1, 1, 2, 3)))
        if not parcels:
            yield Wait(0.3)
            continue
        try:
            if process.inline and _plan_is_inline(world, parcels[0]):
                for parcel in parcels:
                    yield from _process_one(world, process, parcel.delivery, name)
            else:
                yield from _receive_all(world, process, parcels)
        except StoreError:
            world.broker.refuse(parcels)
            yield RECONNECT
            yield Wait(0.2)
            continue
        yield Wait(0.0)
        world.broker.acknowledge(parcels)


def _plan_is_inline(world: World, parcel: Parcel) -> bool:
    plan = world.scenario.plans.get((parcel.delivery.source, parcel.delivery.id))
    return plan is not None and plan.inline


def _began(world: World, delivery: Delivery, *, inline: bool) -> Reception:
    plan = world.scenario.plans[delivery.source, delivery.id]
    reception = Reception(
        delivery.source,
        delivery.id,
        delivery.hash,
        delivery.type,
        world.key_of(plan),
        world.scheduler.steps,
        inline=inline,
    )
    world.history.receptions.append(reception)
    return reception


def _ended(world: World, reception: Reception, receipt: Receipt) -> None:
    reception.ended, reception.status = world.scheduler.steps, receipt.status
    world.observer.received(reception, receipt.seq)


def _receive_all(world: World, process: Process, parcels: list[Parcel]) -> Flow[None]:
    deliveries = [parcel.delivery for parcel in parcels]
    receptions = [_began(world, delivery, inline=False) for delivery in deliveries]

    def take_in() -> Flow[list[Receipt]]:
        yield from _introduce(process)
        return (yield from receive(process.context, process.context.cache, deliveries))

    receipts = yield from twice(take_in)
    for reception, receipt in zip(receptions, receipts, strict=True):
        _ended(world, reception, receipt)


def _process_one(world: World, process: Process, delivery: Delivery, name: str) -> Flow[None]:
    reception = _began(world, delivery, inline=True)
    lane = Lane(
        context=process.context,
        worker=lambda: process.worker,
        new_token=process.token,
        subscriptions=[],
        stopping=lambda: False,
        gate=process.gate,
        effects=_effect,
    )
    world.lane_of_task(name, lane)
    while not process.gate.enter(lane):
        yield Wait(0.005)
    try:
        receipts = yield from twice(lambda: process_step(lane, delivery, is_async=False))
    finally:
        process.orphans |= lane.open_tokens
        process.gate.leave(lane)
        world.lane_of_task(name, None)
    wanted = {one.consumer for one in process.context.cache.catalog.by_type.get(delivery.type, ())}
    stored: list[Receipt] = []
    if not receipts or wanted - receipts.keys():
        stored = yield from twice(lambda: receive(process.context, process.context.cache, [delivery]))
    receipt = merged([*receipts.values(), *stored])
    if receipt.finished and receipt.status == "accepted":
        world.observer.sometimes("inline: finished")
    _ended(world, reception, receipt)
