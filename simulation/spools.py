"""A host with a spool: what its processes cannot store waits in a real file, and they drain it while more comes.

Mirrors `runtime/spooling.py` around the real file and the real steps.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING

from onceward.errors import StoreError, StoreUnavailable
from onceward.flow import RECONNECT, Flow, Wait
from onceward.message import Delivery, Receipt
from onceward.runtime.spool import Spool
from simulation.process import Process, take_in, twice

if TYPE_CHECKING:
    from simulation.world import World

FEW, MANY = 2, 100
"""So many are drained at a time: few while there are faults, so that each may be met between them."""
_folders: dict[int, str] = {}
"""By process: a fork has one of its own."""


def new_spool() -> Spool:
    """An empty one; a process of the simulation has one host at a time."""
    process = os.getpid()
    if process not in _folders:
        memory = Path("/dev/shm")  # noqa: S108 - the folder inside it is made by mkdtemp
        _folders[process] = tempfile.mkdtemp(prefix="simulation-", dir=memory if memory.is_dir() else None)
        Finalize(None, shutil.rmtree, (_folders[process],), exitpriority=10)
    for file in Path(_folders[process]).iterdir():
        file.unlink()
    return Spool(Path(_folders[process]) / "spool")


def attempt(world: World, process: Process, deliveries: Sequence[Delivery]) -> Flow[list[Receipt]]:
    """As `Spooling.attempt`: store, or append while the database is away or others wait."""
    spool = world.spool
    if spool is None or spool.is_empty:
        try:
            receipts: list[Receipt] = yield from twice(lambda: take_in(process, deliveries))
            return receipts  # noqa: TRY300 - what follows is for those that cannot be stored
        except StoreUnavailable:
            if spool is None:
                raise
            yield RECONNECT
    assert spool is not None
    spool.append(deliveries)
    world.observer.sometimes("spooled while it is drained" if world.draining else "spooled")
    return [Receipt("spooled", 0) for _ in deliveries]


def drainer(world: World, process: Process) -> Flow[None]:
    """As `Spooling.drain`, again and again; its process may die between any two requests."""
    spool = world.spool
    assert spool is not None
    while not process.stopping:
        yield Wait(0.5)
        try:
            yield from _drain(world, process, spool)
        except StoreError:
            yield RECONNECT
        finally:
            world.draining = False


def _drain(world: World, process: Process, spool: Spool) -> Flow[None]:
    with spool.draining() as mine:
        world.draining = world.draining or mine
        while mine and not process.stopping:
            batch = spool.read(0, MANY if world.calm else FEW)
            if not batch:
                break
            deliveries = [one.delivery for one in batch]
            receipts = yield from twice(lambda: take_in(process, deliveries))  # noqa: B023 - called at once
            spool.settle([one.number for one in batch], {})
            for receipt in receipts:
                world.observer.sometimes(f"drained: {receipt.status}")


def left(spool: Spool) -> set[tuple[str, str, bytes]]:
    """What still waits: (source, id, hash)."""
    deliveries = [one.delivery for one in spool.read(0, 10**6)]
    return {(one.source, one.id, one.hash) for one in deliveries}
