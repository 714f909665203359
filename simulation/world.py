"""One history: sets the scene, runs it, and hands the record to the checker."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from onceward.errors import StoreError, StoreUnavailable
from onceward.flow import Flow
from onceward.message import Delivery, Receipt
from onceward.registry import OUTBOX, Registry
from onceward.steps import group
from onceward.steps.context import Context
from onceward.steps.dispatch import Dispatch, dispatch
from onceward.steps.lane import Lane
from onceward.stores.protocol import TimeLimits
from onceward.stores.relational import RelationalMoves
from simulation.broker import Broker
from simulation.clock import Clock
from simulation.handlers import Scripts, registry_of
from simulation.history import History
from simulation.joins import caller
from simulation.nemesis import Nemesis
from simulation.observer import Observer
from simulation.people import archivist, cleaner, operator
from simulation.process import Process, duties, lane_of, lane_work, life, receiver
from simulation.scheduler import Scheduler
from simulation.schedules import Chance
from simulation.services import add_requests, announcer, client
from simulation.spools import attempt, drainer, left, new_spool
from simulation.tasks import Task
from simulation.themes import HANGING, SERVICE
from simulation.workload import Plan, Scenario

PREFIX = "o_"
DRAIN_SECONDS = 900.0
DRAIN_STEPS = 40_000


class World:
    """Everything that exists in one history."""

    def __init__(self, scenario: Scenario, database: Any, *, trace: bool = False, chance: Chance | None = None) -> None:
        random.seed(scenario.seed)  # the jitter of back-offs in the steps themselves
        self.scenario, self.database = scenario, database
        self.clock = Clock()
        database.reset(self.clock)
        self.chance = chance or Chance(f"run:{scenario.mode}:{scenario.seed}")
        self.history = History(scenario.mode, database.name)
        self.observer = Observer(self.history, database)
        self.scheduler = Scheduler(database, self.clock, self.chance, self.observer, scenario.jitter)
        self.scheduler.trace = [] if trace else None
        if self._is_quick:
            self.scheduler.prompt = 1.0
        self.scripts = Scripts(scenario, self.observer, database, self.chance)
        self.observer.script = self.scripts.script
        self.observer.tasks = lambda: self.scheduler.tasks
        self.broker = Broker(scenario.queue, self.history, self.chance)
        self.nemesis = Nemesis(self, scenario.faults, self.chance)
        self.scheduler.nemesis = self.nemesis
        self.processes: list[Process] = []
        self.started = 0
        self._numbers = itertools.count(1)
        self.spool = new_spool() if scenario.spool else None
        self.draining = False
        self.calm = False
        self.favourite = 0
        self._describe()

    def _describe(self) -> None:
        """What the checker must know about the handlers."""
        history, scenario = self.history, self.scenario
        history.crash_limit = scenario.settings.crash_limit
        history.archive_first = scenario.settings.archive_first
        history.dedupe_retention = scenario.settings.dedupe_retention.total_seconds()
        for kind in scenario.kinds:
            history.consumers[kind.type] = [one for one in kind.consumers if scenario.since[kind.type, one] <= 1]
            history.sends[kind.type] = kind.sends
            if not kind.batch:
                history.answering.add(kind.type)
            for consumer in kind.consumers:
                history.budgets[consumer, kind.type] = scenario.retry.attempts
                if kind.on_dead == "continue":
                    history.continuing.add((consumer, kind.type))
        history.budgets[OUTBOX, "note"] = history.budgets[OUTBOX, "news"] = 4
        if self._is_quick:
            history.prompt = {one for one in scenario.sinks(1) if not scenario.hangs(one)}

    @property
    def _is_quick(self) -> bool:
        """Whether the database answers at once, so that whoever waits long waits for a destination that hangs."""
        return HANGING in self.scenario.destinations

    @patch.object(group, "SPACING", 2)  # groups are small here
    def run(self) -> History:
        """Let it happen."""
        for _ in range(self.scenario.processes):
            self._start_process()
        for number in range(2 if self.scenario.faults.operators else 0):
            name = f"operator-{number}"
            self.scheduler.spawn(name, operator(self, name), process=None, on_end=self._ended(name))
        for number in range(self.scenario.callers):
            name = f"caller-{number}"
            self.scheduler.spawn(name, caller(self, name), process=None, on_end=self._ended(name), joined=True)
        if self.scenario.settings.archive_first:
            self.scheduler.spawn("archivist", archivist(self), process=None, on_end=self._ended("archivist"))
        while self.scheduler.steps < self.scenario.steps and self.scheduler.tick():
            self._replace_the_dead()
        self.history.ended_at = self.clock.wall()
        if self.scenario.mode == "liveness":
            self._drain()
        self.broker.close()
        self.history.spooled = left(self.spool) if self.spool is not None else set()
        self.history.tables = self.database.tables()
        self.history.steps, self.history.digest = self.scheduler.steps, self.scheduler.digest
        for task in list(self.scheduler.tasks):
            self.scheduler.kill(task)
        return self.history

    def describe(self) -> list[str]:
        """What was planned, for whoever reads a trace."""
        lines = [f"{self.scenario.faults}", f"{self.scenario.settings}, {self.scenario.retry}"]
        for plan in self.scenario.plans.values():
            one = plan.delivery
            lines.append(
                f"{one.source}/{one.id} {plan.kind.type} key={self.key_of(plan)} number={plan.number} "
                f"fails={plan.fails}x{plan.failure} kills={plan.kills} inline={plan.inline} "
                f"twin={plan.twin is not None}"
            )
        return lines

    @property
    def counters(self) -> Counter[str]:
        """How often each hard state was reached."""
        return self.observer.counters

    def _drain(self) -> None:
        """Faults stop; everything must come to its end within a bound."""
        self.calm = self.scripts.calm = True
        self.nemesis.active = False
        self.broker.lossy = False
        self.scheduler.jitter, self.scheduler.prompt = min(self.scheduler.jitter, 0.002), 1.0
        self.scheduler.note("the faults stop")
        for process in self.processes:
            process.paused_until = min(process.paused_until, self.clock.now)
        self.started = max(self.started, self.scenario.newest)
        for process in self.processes:
            if not process.knows_all:
                process.stopping = True  # the next generation handles every type
        self.scheduler.spawn("cleaner", cleaner(self), process=None, on_end=self._ended("cleaner"))
        end, limit = self.clock.now + DRAIN_SECONDS, self.scheduler.steps + DRAIN_STEPS
        while self.scheduler.steps < limit and self.clock.now < end and self.scheduler.tick():
            self._replace_the_dead()
            if self._is_empty and self.scheduler.steps % 20 == 0 and not self.database.queue():
                return
        self.history.drained = not self.database.queue() and self._is_empty

    @property
    def _is_empty(self) -> bool:
        """Whether nothing more will come."""
        return self.broker.empty and (self.spool is None or self.spool.is_empty)

    def _replace_the_dead(self) -> None:
        if len(self.processes) < self.scenario.processes:
            self._start_process()

    def _start_process(self) -> None:
        self.started += 1
        scenario = self.scenario
        registry = registry_of(scenario, self.clock, self.started)
        service = scenario.services[self.started % len(scenario.services)]
        context = replace(self.plain_context(registry), service=service)
        process = Process(
            name=f"p{self.started}",
            context=context,
            inline=self.chance.random() < 0.5,
            receivers=scenario.receivers,
            lanes=scenario.lanes,
            knows_all=self.started >= scenario.newest,
            numbers=self._numbers,
        )
        if len(scenario.services) > 1:
            add_requests(process)
        self.processes.append(process)
        task = self.scheduler.spawn(
            f"{process.name} maintenance", life(self, process), process=process, on_end=self._process_ended(process)
        )
        task.wake_at = self.clock.now + self.chance.choice((0.0, 0.0, 2.0))

    def program(self) -> Context:
        """A program that receives by itself: one of those that run, or one that has told nobody yet what it handles."""
        known = [process.context for process in self.processes if process.worker]
        if known and self.chance.random() < 0.7:
            return self.chance.choice(known)
        return self.plain_context(registry_of(self.scenario, self.clock, max(1, self.started)))

    def plain_context(self, registry: Registry | None = None) -> Context:
        """What the steps of a process know; without handlers for operators and parents."""
        return Context(
            service=SERVICE,
            prefix=PREFIX,
            code_version="1",
            settings=self.scenario.settings,
            registry=registry or Registry(),
            moves=RelationalMoves(TimeLimits.of(self.scenario.settings)),
            clock=self.clock.monotonic,
        )

    def take_in(self, process: Process, deliveries: list[Delivery]) -> Flow[list[Receipt]]:
        """What a receiver does with what it was handed."""
        return attempt(self, process, deliveries)

    def start_actors(self, process: Process) -> None:
        """A process has registered: its lanes and receivers begin."""
        self._start_actor(process, f"{process.name} duties", duties(process))
        for number in range(process.lanes):
            self._start_lane(process, f"{process.name} lane-{number}", lane_of(process))
        self._start_relay(process)
        for number in range(process.receivers):
            self._start_receiver(process, f"{process.name} receiver-{number}")
        if self.spool is not None:
            self._start_actor(process, f"{process.name} drainer", drainer(self, process))
        if len(self.scenario.services) > 1:
            name = f"{process.name} client"
            self._start_actor(process, name, client(self, process, name))
            self._start_actor(process, f"{process.name} announcer", announcer(self, process))

    def _start_lane(self, process: Process, name: str, lane: Lane, end: Any = None) -> None:
        end = end or self._lane_ended(process, name)
        task = self.scheduler.spawn(name, lane_work(lane), process=process, on_end=end)
        task.lane = lane
        process.tasks.append(task)

    def _start_relay(self, process: Process) -> None:
        """As `Worker._sync_relay`: one looks for destinations with something due, and each has a lane for a while."""

        def start(destination: str) -> None:
            name = f"{process.name} relay-{destination}"
            ended = self._lane_ended(process, name)

            def end(value: Any, error: BaseException | None) -> None:
                relay.busy.discard(destination)
                ended(value, None if isinstance(error, StoreUnavailable) else error)

            self._start_lane(process, name, lane_of(process, destination=destination), end)

        destinations = process.context.registry.destinations(is_async=False)
        relay = Dispatch(process.context, destinations, stopping=lambda: process.stopping, start=start)
        self._start_actor(process, f"{process.name} relay", dispatch(relay))

    def _start_receiver(self, process: Process, name: str) -> None:
        self._start_actor(process, name, receiver(self, process, name))

    def _start_actor(self, process: Process, name: str, flow: Flow[None]) -> None:
        process.tasks.append(self.scheduler.spawn(name, flow, process=process, on_end=self._ended(name)))

    def lane_of_task(self, name: str, lane: Lane | None) -> None:
        """A receiver handles a message itself: its handler frames need to know the lane."""
        for task in self.scheduler.tasks:
            if task.name == name:
                task.lane = lane

    def cancel(self, task: Task) -> None:
        """A receiver's work is cancelled: its connection is dropped, its process lives on and starts another."""
        process = task.process
        assert process is not None
        self.scheduler.kill(task)
        process.tasks.remove(task)
        self.broker.lost(task.name)
        self._start_receiver(process, f"{task.name}'")

    def bury(self, process: Process) -> None:
        """Drop everything of a process that died."""
        process.alive = False
        for task in [task for task in self.scheduler.tasks if task.process is process]:
            self.scheduler.kill(task)
        for task in process.tasks:
            self.broker.lost(task.name)
        if process in self.processes:
            self.processes.remove(process)

    def _process_ended(self, process: Process) -> Any:
        def end(_value: Any, error: BaseException | None) -> None:
            if error is not None:
                self._surprise(f"maintenance of {process.name}", error)
            self.bury(process)

        return end

    def _lane_ended(self, process: Process, name: str) -> Any:
        """As `Worker._guarded`: a lane that fails stops its worker loudly, unless the worker is stopping anyway."""

        def end(_value: Any, error: BaseException | None) -> None:
            if error is not None and not (process.stopping and isinstance(error, StoreError)):
                self._surprise(name, error)
            process.stopping = process.stopping or error is not None

        return end

    def _ended(self, name: str) -> Any:
        def end(_value: Any, error: BaseException | None) -> None:
            if error is not None:
                self._surprise(name, error)

        return end

    def _surprise(self, name: str, error: BaseException) -> None:
        self.scheduler.note(f"{name} ended with {type(error).__name__}: {error}")
        self.history.surprises.append(f"{name}: {type(error).__name__}: {error}")

    def key_of(self, plan: Plan) -> str | None:
        """The key under which a message is ordered."""
        if plan.kind.key is None:
            return plan.delivery.key
        return str(plan.delivery.key or _key_in(plan))


def _key_in(plan: Plan) -> str:
    return str(json.loads(plan.delivery.body)["key"])
