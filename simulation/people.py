"""Operators: they redrive, discard, unblock, resolve, settle and erase, at random, sometimes two at once and twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onceward.errors import ConfigurationError, StoreError
from onceward.flow import RECONNECT, Flow, Wait
from onceward.steps import archive as archiving
from onceward.steps import erase as erasing
from onceward.steps import operate
from onceward.stores.moves.operations import Resolution
from simulation.checks.facts import CASE
from simulation.history import Action
from simulation.process import twice as _twice

if TYPE_CHECKING:
    from simulation.world import World


def twice(record: Action, step: Callable[[], Flow[Any]]) -> Flow[Any]:
    """As `process.twice`, and remembers whether there was a second try."""
    tries = 0

    def counted() -> Flow[Any]:
        nonlocal tries
        tries += 1
        record.retried = tries > 1
        return step()

    return (yield from _twice(counted))


ARCHIVED_AT_ONCE = 3
RESOLUTIONS: tuple[Resolution, ...] = ("keep-first", "accept-as-new", "discard")


def operator(world: World, name: str) -> Flow[None]:
    """Somebody who does things at random, for as long as there are faults."""
    chance = world.chance
    pace = 0.02 / world.scenario.faults.operators
    while not world.calm:
        yield Wait(pace * chance.choice((0.5, 3.0, 10.0)))
        yield from _act_at_random(world, name)


def _act_at_random(world: World, name: str) -> Flow[None]:
    chance = world.chance
    rows = world.database.queue()
    dead = [seq for seq, state, _ in rows if state == "dead"]
    cases, effects = world.database.open_cases(), world.database.open_effects()
    roll = chance.random()
    if world.scenario.settings.maintenance is not None and roll < 0.15:
        yield from erase(world, name, [row["seq"] for row in world.database.tables()["ledger"]])
    elif cases and roll < 0.3:
        yield from decide(world, name, chance.choice(cases), chance.choice(RESOLUTIONS))
    elif effects and roll < 0.5:
        key, seq = chance.choice(effects)
        yield from settle_effect(world, name, key, seq, happened=chance.random() < 0.5)
    elif dead and roll < 0.9:
        seq = world.favourite if world.favourite in dead and chance.random() < 0.5 else chance.choice(dead)
        world.favourite = seq
        what = chance.choice(("redrive", "redrive", "redrive", "discard", "unblock"))
        yield from act(world, name, what, seq, out_of_order=chance.random() < 0.6)
    elif rows:
        seq = chance.choice(rows)[0]
        yield from act(world, name, chance.choice(("redrive", "discard", "unblock")), seq, out_of_order=True)


def act(world: World, name: str, what: str, seq: int, *, out_of_order: bool) -> Flow[bool]:
    """One action on one message, recorded with its answer."""
    context = world.plain_context()
    record = Action(world.scheduler.steps, what, seq, "unknown")
    world.history.actions.append(record)

    def step() -> Flow[Any]:
        if what == "redrive":
            return operate.redrive(context, seq, actor=name, reason="test", out_of_order=out_of_order)
        action = operate.discard if what == "discard" else operate.unblock
        return action(context, seq, actor=name, reason="test")

    try:
        done = yield from twice(record, step)
    except ConfigurationError:
        record.answer = "nothing"
        world.observer.sometimes("redrive out of order refused")
        return False
    except StoreError:
        yield RECONNECT
        return False
    record.answer = "done" if done else "nothing"
    if done and what == "redrive":
        world.observer.redriven(seq)
    if not done:
        world.observer.sometimes(f"{what}: nothing to do")
    return bool(done)


def decide(world: World, name: str, case: int, resolution: Resolution) -> Flow[None]:
    """Decide about a mismatch."""
    context = world.plain_context()
    name_in_audit = "discard-mismatch" if resolution == "discard" else resolution
    record = Action(world.scheduler.steps, name_in_audit, -case, "unknown")
    world.history.actions.append(record)
    try:
        answer = yield from twice(record, lambda: operate.resolve(context, case, resolution, actor=name, reason=CASE))
    except StoreError:
        yield RECONNECT
        return
    record.answer = "nothing" if answer is None else "done"


def settle_effect(world: World, name: str, key: str, seq: int, *, happened: bool) -> Flow[None]:
    """Say what became of an external call."""
    context = world.plain_context()
    what = "effect happened" if happened else "effect did not happen"
    record = Action(world.scheduler.steps, what, seq, "unknown", effect=key)
    world.history.actions.append(record)
    try:
        done = yield from twice(
            record,
            lambda: operate.settle_effect(
                context, key, seq, happened=happened, result={"said": name}, actor=name, reason="test"
            ),
        )
    except StoreError:
        yield RECONNECT
        return
    record.answer = "done" if done else "nothing"


def erase(world: World, name: str, seqs: list[int]) -> Flow[None]:
    """Erase one of some messages; what is unfinished of it is discarded first."""
    if not seqs:
        return
    seq, context = world.chance.choice(seqs), world.plain_context()
    # Each may leave its line or not: what was finished is not discarded, and what runs is not erased.
    records = [Action(world.scheduler.steps, what, seq, "unknown") for what in ("discard", "erase")]
    world.history.actions += records
    try:
        done = yield from twice(records[1], lambda: erasing.erase(context, seq, actor=name, reason="test"))
    except StoreError:
        yield RECONNECT
        return
    world.observer.sometimes("erased" if done else "erase: nothing to do")


def archivist(world: World) -> Flow[None]:
    """Moves what is old to an archive, which here is a set of numbers."""
    context = world.plain_context()
    while True:
        yield Wait(2.0)
        try:
            records = yield from archiving.next_archivable(context, 0, ARCHIVED_AT_ONCE)
            seqs = [record["seq"] for record, _ in records]
            yield Wait(0.1)  # the file is written
            world.history.archived.update(seqs)
            if seqs and (yield from archiving.drop_archived(context, seqs)):
                world.observer.sometimes("archived")
        except StoreError:
            yield RECONNECT


def cleaner(world: World) -> Flow[None]:
    """After the faults: brings every dead message to its end: redriven once, then discarded."""
    tried: set[int] = set()
    while True:
        yield Wait(5.0)
        for case in world.database.open_cases():
            yield from decide(world, "cleaner", case, "keep-first")
        for key, seq in world.database.open_effects():
            yield from settle_effect(world, "cleaner", key, seq, happened=True)
        for seq, state, _ in world.database.queue():
            if state == "dead":
                what = "discard" if seq in tried else "redrive"
                tried.add(seq)
                yield from act(world, "cleaner", what, seq, out_of_order=True)
