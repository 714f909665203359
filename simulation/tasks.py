"""A task: one actor's chain of generators, each asking through its own session.

Invariant: only the top frame runs. A handler is a frame above the step that called it, and an external call under
`message.once` is a frame above the handler, with a session of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from simulation.history import Run

if TYPE_CHECKING:
    from onceward.steps.lane import Lane
    from simulation.process import Process

End = Callable[[Any, BaseException | None], None]


@dataclass(slots=True, eq=False)
class Frame:
    """One generator and what it waits for."""

    flow: Generator[Any, Any, Any]
    session: Any
    kind: str = "step"
    parts: tuple[Any, ...] = ()
    answers: list[Any] = field(default_factory=list)
    several: bool = False
    """The request was a tuple, so its answer is one too."""
    runs: list[Run] = field(default_factory=list)
    deadline: float = float("inf")
    started: bool = False
    asleep: bool = False
    open_before: bool = False
    """A handler's: it began inside a transaction that others of its group had begun."""
    wrote: bool = False

    def load(self, request: Any) -> None:
        """Take the next request of the generator."""
        self.several = isinstance(request, tuple)
        self.parts = request if self.several else (request,)
        self.answers = []


@dataclass(slots=True, eq=False)
class Task:
    """One actor."""

    name: str
    process: Process | None
    frames: list[Frame]
    on_end: End
    lane: Lane | None = None
    wake_at: float = 0.0
    blocked_epoch: int = -1
    blocked_until: float = float("inf")
    ended: bool = False

    def is_ready(self, now: float, epoch: int) -> bool:
        """Whether it can take a step at this time."""
        if self.process is not None and self.process.paused_until > now:
            return False
        if self.blocked_epoch == epoch and now < self.blocked_until:
            return False
        return self.wake_at <= now

    def next_time(self) -> float:
        """When it will be ready by itself; blocked ones become ready when their patience ends."""
        moment = self.blocked_until if self.blocked_epoch >= 0 else self.wake_at
        if self.process is not None:
            moment = max(moment, self.process.paused_until)
        return moment

    def unblock(self) -> None:
        """The lock it waited for may be free."""
        self.blocked_epoch, self.blocked_until = -1, float("inf")
