"""Membership: processes register, renew their leases, and give back what a dead one had claimed."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from onceward.flow import Flow
from onceward.stores.moves.queue import AttemptRow


class NewWorker(NamedTuple):
    """A process that registers."""

    worker: int
    """A number that was never used: a random one."""
    process: str
    """Its name; no other process has it."""
    host: str
    pid: int
    code_version: str
    handles: str
    """What it has handlers for: lines of consumer, type and version."""
    lanes: int
    inline: bool
    lease: float
    """For how many seconds it counts as alive."""


class Heartbeat(NamedTuple):
    """A process that is still there."""

    worker: int
    process: str
    lease: float
    inline: bool
    circuits: str
    """Which circuits are open: lines of consumer, type and seconds."""


class Member(NamedTuple):
    """A registered process."""

    worker: int
    inline: bool
    pid: int
    host: str


class Crash(NamedTuple):
    """A message that a process held when it died."""

    seq: int
    attempts: int
    crashes: int
    """How often it was charged for a crash before this one."""
    worker: int
    cause: str
    held: int
    """How many messages that process held."""
    isolation: int
    """The level at which it runs next."""


class Charge(NamedTuple):
    """How crashes are charged: to a message that was the only one its process held, until it is dead."""

    limit: int
    """After so many crashes it is dead."""
    attempt: Callable[[Crash], AttemptRow]
    """The row of the crashed attempt."""


class MembershipMoves(Protocol):
    """What processes do."""

    def register(self, worker: NewWorker, cause: Callable[[Member], str], charge: Charge, /) -> Flow[bool]:
        """Register a process, and take over the one that had its name; False where another took it meanwhile."""

    def heartbeat(self, heartbeat: Heartbeat, /) -> Flow[bool]:
        """Renew the lease, and keep which circuits are open; False where the process was declared dead."""

    def members_named(self, process: str, /) -> Flow[list[Member]]:
        """The processes under a name, and those that registered again after they had been declared dead."""

    def take_over_lapsed(self, worker: int, cause: Callable[[Member], str], charge: Charge, /) -> Flow[int]:
        """Take over processes, other than this one, whose leases have run out; returns how many."""

    def take_over_process(self, process: str, cause: str, charge: Charge, /) -> Flow[int]:
        """Take over a process that is known to be dead; returns how many registrations that were."""

    def deregister(self, worker: int, /) -> Flow[None]:
        """Leave: whatever the process has claimed is given back, uncharged."""

    def tokens(self, worker: int, /) -> Flow[set[int]]:
        """The claims in the name of a worker."""
