"""The nemesis: cuts connections, kills, stops, cancels and misleads, at rates drawn from the seed.

Invariant: it only does what can happen to real processes, connections and clocks; what was committed stays committed.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from onceward.flow import Commit, Rollback
from onceward.steps import membership
from simulation.process import Process
from simulation.standby import Standby
from simulation.tasks import Task
from simulation.themes import Faults
from simulation.workload import LEASE

if TYPE_CHECKING:
    from simulation.world import World


class Nemesis:
    """Decides, step by step, what goes wrong."""

    def __init__(self, world: World, faults: Faults, chance: random.Random) -> None:
        self._world, self._faults, self._chance = world, faults, chance
        self.active = True
        self._request_limit = faults.cut_before + faults.cut_after + faults.conflict
        self._strike_limit = faults.crash + faults.stop_resume + faults.shutdown + faults.cancel + faults.clock_jump
        self._standby: Standby | None = None

    def fault(self, part: Any) -> str:  # noqa: PLR0911 - one for each kind of fault
        """What happens to a request: nothing, or it is cut before, cut after, or refused."""
        if not self.active:
            return ""
        roll = self._chance.random()
        if isinstance(part, Commit):
            if roll < self._faults.commit_lost:
                return self._chance.choice(("before", "after", "after"))
            roll -= self._faults.commit_lost
        elif getattr(part, "name", "") == "effect_done":
            if roll < self._faults.effect_lost:
                return "before"
            roll -= self._faults.effect_lost
        if roll >= self._request_limit:
            return ""
        if roll < self._faults.cut_before:
            return "before"
        if roll < self._faults.cut_before + self._faults.cut_after:
            return "after"
        return "" if isinstance(part, Rollback) else "conflict"

    def is_away(self) -> bool:
        """Whether the database cannot be reached right now."""
        return self.active and self._chance.random() < self._faults.away

    def strikes(self, task: Task) -> bool:
        """Perhaps something happens to a process instead of the step that was due."""
        if not self.active:
            return False
        return self._fails_over() or self._strikes_one(task)

    def _strikes_one(self, task: Task) -> bool:
        roll = self._chance.random()
        if roll >= self._strike_limit:
            return False
        process, faults = task.process, self._faults
        if roll < faults.clock_jump:
            self._jump()
            return True
        if process is None or not process.alive:
            return False
        roll -= faults.clock_jump
        if roll < faults.crash:
            self.crash(process, "the nemesis")
        elif roll < faults.crash + faults.stop_resume:
            self._stop(process)
        elif roll < faults.crash + faults.stop_resume + faults.shutdown:
            self._shut_down(process)
        else:
            return self._cancel(task)
        return True

    def crash(self, process: Process, cause: str) -> None:
        """A process dies: nothing of it remains but what is committed."""
        world = self._world
        world.scheduler.note(f"{process.name} is killed by {cause}")
        world.observer.sometimes("crash")
        unfinished = world.database.outgoing_of(process.worker)
        if any(one.id in unfinished for one in world.history.publications):
            world.observer.sometimes("crash between publish and finish")
        world.history.deaths[process.worker] = world.clock.wall()
        world.bury(process)
        if self._chance.random() < 0.4:
            self._supervise(process)

    def _supervise(self, process: Process) -> None:
        """Its parent saw it die and takes over at once."""
        world = self._world
        context = world.plain_context()
        flow = membership.take_over_process(context, process.name, f"{process.name} died")
        world.scheduler.spawn(f"parent of {process.name}", flow, process=None, on_end=lambda *_: None)
        world.observer.sometimes("parent takes over")

    def _stop(self, process: Process) -> None:
        seconds = self._chance.choice((0.1, 1.0, 1.0, 2.5)) * LEASE
        self._world.scheduler.note(f"{process.name} is stopped for {seconds:.1f} s")
        self._world.observer.sometimes("stopped and resumed")
        process.paused_until = self._world.clock.now + seconds

    def _shut_down(self, process: Process) -> None:
        """One process is asked to stop; a deployment may stop all of them, and as many others start."""
        world = self._world
        together = world.scenario.deploying and self._chance.random() < 0.3
        for one in world.processes if together else [process]:
            world.scheduler.note(f"{one.name} is asked to stop")
            world.observer.sometimes("graceful stop")
            one.stopping = True

    def _cancel(self, task: Task) -> bool:
        if "receiver" not in task.name or not task.frames[0].started:
            return False
        self._world.scheduler.note(f"{task.name} is cancelled")
        self._world.observer.sometimes("cancelled")
        self._world.cancel(task)
        return True

    def _fails_over(self) -> bool:
        world = self._world
        if not self._faults.failover:
            return False
        if self._standby is None:
            if self._chance.random() < self._faults.failover:
                self._standby = Standby(world, world.clock.now + self._chance.choice((0.1, 1.0, 6.0)))
            return False
        if world.clock.now < self._standby.until:
            return False
        self._standby.promote()
        self._standby = None
        return True

    def _jump(self) -> None:
        seconds = self._chance.choice((-1.0, 1.0)) * self._chance.choice((0.5, 5.0, 60.0))
        self._world.scheduler.note(f"the wall clock jumps by {seconds} s")
        self._world.observer.sometimes("clock jump back" if seconds < 0 else "clock jump ahead")
        self._world.clock.offset += seconds
        self._world.history.clock_jumped = True
