"""The scheduler: picks, by the seed, which actor takes the next step, and what goes wrong with it.

Invariant: one step is one request of one actor. Between any two requests of an actor every other actor may act, its
process may die or be stopped, and time may pass.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from onceward.errors import HandlerTimeout, NeedsAlone, OutcomeUnknown, StoreConflict, StoreError, StoreUnavailable
from onceward.flow import Begin, Call, Commit, Do, Each, Outcome, Query, Reconnect, Rollback, Wait
from onceward.steps.effect import guarded
from simulation.clock import Clock
from simulation.observer import Observer
from simulation.process import twice
from simulation.requests import Beside, Blocked, Close, Die, Effect, Open, Pause, Write
from simulation.tasks import End, Frame, Task

if TYPE_CHECKING:
    from onceward.steps.lane import Lane
    from simulation.nemesis import Nemesis
    from simulation.process import Process
    from simulation.schedules import Chance

_LATER = object()
AT_ONCE = {"subscribe", "touch_catalog", "add_name", "declare_source", "add_worker", "heartbeat"}
"""What never waits for a caller's transaction, which holds nothing but the messages it has received."""
PROMPT = 0.97
"""How many requests take no more than the jitter; the others take up to a second."""


class Died(Exception):
    """The process of this task has just died."""


class Scheduler:
    """Runs tasks one request at a time."""

    def __init__(self, database: Any, clock: Clock, chance: Chance, observer: Observer, jitter: float) -> None:
        self.database, self.clock, self.chance, self.observer = database, clock, chance, observer
        self.tasks: list[Task] = []
        self.nemesis: Nemesis | None = None
        self.steps = 0
        self.digest = 0
        self.trace: list[str] | None = None
        self.jitter = jitter
        self.prompt = PROMPT

    def spawn(
        self,
        name: str,
        flow: Generator[Any, Any, Any],
        *,
        process: Process | None,
        on_end: End,
        joined: bool = False,
    ) -> Task:
        """Start an actor with a session of its own; `joined`, its transactions are a caller's."""
        session = self.database.caller(name) if joined else self.database.session(name)
        task = Task(name, process, [Frame(flow, session)], on_end, wake_at=self.clock.now)
        self.tasks.append(task)
        return task

    def tick(self) -> bool:
        """Take one step; False when no actor will ever act again."""
        now, epoch = self.clock.now, self.database.epoch
        ready = [task for task in self.tasks if task.is_ready(now, epoch)]
        if not ready:
            moment = min((task.next_time() for task in self.tasks), default=float("inf"))
            if moment == float("inf"):
                return False
            self.clock.now = max(now, moment)
            return True
        self.steps += 1
        self.observer.step = self.steps
        task = self.chance.turn(ready)
        roll = self.chance.random()
        self.clock.now += self.jitter * roll if roll < self.prompt else roll
        if self.nemesis is not None and self.nemesis.strikes(task):
            return True
        self._step(task)
        return True

    def kill(self, task: Task) -> None:
        """Drop a task; whatever it had not committed rolls back."""
        task.ended = True
        if task in self.tasks:
            self.tasks.remove(task)
        for frame in task.frames:
            for run in frame.runs:
                self.observer.run_ended(run, "died")
        for frame in {id(frame.session): frame for frame in task.frames}.values():
            self._give_back(frame.session)
        frames, task.frames = task.frames, []
        for frame in reversed(frames):
            frame.flow.close()

    def _give_back(self, session: Any) -> None:
        """It will serve another actor, to whom a transaction that this one left open means nothing."""
        self.observer.forget(session)
        self.database.give_back(session)

    def cut_all(self) -> None:
        """Every connection is lost."""
        for task in self.tasks:
            for frame in task.frames:
                self.observer.forget(frame.session)
                frame.session.cut()
            task.unblock()

    def note(self, text: str) -> None:
        """A line of the trace that is not a request."""
        self.digest = zlib.crc32(text.encode(), self.digest)
        if self.trace is not None:
            self.trace.append(f"{self.steps:5d} {self.clock.now:10.3f}  {text}")

    def _step(self, task: Task) -> None:
        frame = task.frames[-1]
        if not frame.started:
            frame.started = True
            self._drive(task, frame, None, None)
            return
        part = frame.parts[len(frame.answers)]
        try:
            answer = self._perform(task, frame, part)
        except Blocked:
            self._block(task, frame, part)
            return
        except Died:
            return
        except Exception as error:  # noqa: BLE001 - whatever a session raises belongs to the step
            self._say(task, part, f"! {type(error).__name__}")
            task.unblock()
            self._drive(task, frame, None, error)
            return
        task.unblock()
        if answer is _LATER:
            return
        self._say(task, part, answer)
        self._answer(task, frame, answer)

    def _say(self, task: Task, part: Any, answer: Any) -> None:
        name = part.name if isinstance(part, Query | Each) else type(part).__name__
        size = len(answer) if isinstance(answer, list) else answer if isinstance(answer, str) else ""
        self.digest = zlib.crc32(f"{task.name}{name}{size}".encode(), self.digest)
        if self.trace is not None:
            self.note_part(task, part, name, answer)

    def note_part(self, task: Task, part: Any, name: str, answer: Any) -> None:
        """A readable line for one request."""
        params = part.params if isinstance(part, Query) else part.records if isinstance(part, Each) else ""
        line = (
            f"{self.steps:5d} {self.clock.now:10.3f}  {task.name:<14} {name:<16} {_short(params)} -> {_short(answer)}"
        )
        assert self.trace is not None
        self.trace.append(line)

    def _answer(self, task: Task, frame: Frame, answer: Any) -> None:
        frame.answers.append(answer)
        if len(frame.answers) == len(frame.parts):
            self._drive(task, frame, tuple(frame.answers) if frame.several else answer, None)

    def _drive(self, task: Task, frame: Frame, value: Any, error: BaseException | None) -> None:
        try:
            request = frame.flow.send(value) if error is None else frame.flow.throw(error)
        except StopIteration as stop:
            self._pop(task, stop.value, None)
        except KeyboardInterrupt:
            raise
        except BaseException as problem:  # noqa: BLE001 - handed to whoever waits for this frame
            self._pop(task, None, problem)
        else:
            frame.load(request)

    def _pop(self, task: Task, value: Any, error: BaseException | None) -> None:
        frame = task.frames.pop()
        if frame.kind == "handler":
            for run in frame.runs:
                self.observer.run_ended(run, outcome_name(error))
            away = isinstance(error, StoreUnavailable | StoreConflict)
            lost = frame.session.idle and (frame.open_before or frame.wrote)
            outcome = Outcome(value=value, error=error, infrastructure=away, touched=frame.wrote, lost=lost)
            if lost and error is None:  # the session would see it, too
                outcome.error, outcome.infrastructure = StoreUnavailable("the connection was lost"), True
            self._answer(task, task.frames[-1], outcome)
        elif frame.kind == "beside":
            self._give_back(frame.session)
            self._answer(task, task.frames[-1], Outcome(value=value, error=error))
        elif frame.kind == "effect":
            self._give_back(frame.session)
            self._end_effect(task, value, error)
        else:
            task.ended = True
            self.tasks.remove(task)
            self._give_back(frame.session)
            task.on_end(value, error)

    def _end_effect(self, task: Task, value: Any, error: BaseException | None) -> None:
        handler = task.frames[-1]
        if isinstance(error, OutcomeUnknown) and task.lane is not None:
            task.lane.unknown = str(error)
            self.observer.sometimes("once: outcome unknown")
        if error is None:
            self._answer(task, handler, value)
        else:
            self._drive(task, handler, None, error)

    def _block(self, task: Task, frame: Frame, part: Any) -> None:
        if task.blocked_epoch >= 0 and self.clock.now >= task.blocked_until:
            task.unblock()
            self.observer.sometimes("lock wait ran out")
            if (
                not frame.session.is_caller
                and getattr(part, "name", "") in AT_ONCE
                and self.database.waits_for_caller(frame.session)
            ):
                self.observer.history.misdeeds.append(("stalled", f"{task.name} waited for a caller: {part}"))
            self._say(task, part, "! busy")
            frame.session.give_up()
            self._drive(task, frame, None, StoreUnavailable("another writer holds the database for too long"))
            return
        if task.blocked_epoch < 0:
            task.blocked_until = self.clock.now + frame.session.patience
        task.blocked_epoch = self.database.epoch

    def _perform(self, task: Task, frame: Frame, part: Any) -> Any:  # noqa: PLR0911 - one for each kind of request
        if isinstance(part, Query | Each | Commit | Rollback | Write | Open | Close):
            frame.wrote = frame.wrote or isinstance(part, Write)
            return self._at_database(task, frame, part)
        if isinstance(part, Begin):
            return frame.session.perform(part)
        if isinstance(part, Wait | Pause):
            return self._sleep(task, frame, part)
        if isinstance(part, Reconnect):
            return self._reconnect(frame, part)
        if isinstance(part, Call):
            self._call(task, frame, part)
            return _LATER
        if isinstance(part, Effect):
            self._begin_effect(task, frame, part)
            return _LATER
        if isinstance(part, Do):
            self.observer.caller_holds = self._holds(task.lane)
            outcome = _done(part)
            if isinstance(outcome.value, Beside):
                session = self.database.session(f"{task.name}.beside")
                task.frames.append(Frame(twice(outcome.value.step), session, "beside"))
                return _LATER
            return outcome
        if isinstance(part, Die):
            assert self.nemesis is not None
            assert task.process is not None
            self.nemesis.crash(task.process, "its handler")
            raise Died
        raise AssertionError(f"nobody knows {part!r}")

    def _at_database(self, task: Task, frame: Frame, part: Any) -> Any:
        session = frame.session
        fault = self.nemesis.fault(part) if self.nemesis is not None else ""
        if fault in ("before", "conflict"):
            self.observer.forget(session)
        if fault == "before":
            session.cut()
            if isinstance(part, Commit):
                self.observer.sometimes("unknown commit, not done")
            raise StoreUnavailable("the connection was cut before the request arrived")
        if fault == "conflict":
            session.abort()
            raise StoreConflict("deadlock or serialization failure")
        began = not session.idle
        try:
            answer = session.perform(part)
        except StoreError as error:
            self.observer.refused(part, error)
            raise
        self.observer.performed(task, session, part, answer, began=began)
        if isinstance(part, Rollback):
            self.observer.forget(session)
        if fault == "after":
            self.observer.forget(session)
            session.cut()
            if isinstance(part, Commit):
                self.observer.sometimes("unknown commit, done")
            raise StoreUnavailable("the connection was cut before the answer arrived")
        return answer

    def _sleep(self, task: Task, frame: Frame, part: Wait | Pause) -> Any:
        if frame.asleep:
            frame.asleep = False
            if self.clock.now >= frame.deadline:
                raise HandlerTimeout("the handler ran longer than its timeout")
            return None
        frame.asleep = True
        early = isinstance(part, Wait) and part.seconds > 0.1 and self.chance.random() < 0.3
        seconds = part.seconds * self.chance.random() if early else part.seconds
        task.wake_at = min(self.clock.now + seconds, frame.deadline)
        return _LATER

    def _reconnect(self, frame: Frame, part: Reconnect) -> bool:
        self.observer.forget(frame.session)
        if self.nemesis is not None and self.nemesis.is_away():
            frame.session.cut()
            self.observer.sometimes("database away")
            return False
        return bool(frame.session.perform(part))

    def _call(self, task: Task, frame: Frame, call: Call) -> None:
        runs, script = self.observer.begin_call(task, call)
        deadline = self.clock.now + call.handler.timeout.total_seconds()
        open_before = not frame.session.idle
        task.frames.append(
            Frame(script, frame.session, "handler", runs=runs, deadline=deadline, open_before=open_before)
        )

    def _begin_effect(self, task: Task, frame: Frame, effect: Effect) -> None:
        lane = task.lane
        assert lane is not None
        if not lane.alone:
            self.observer.sometimes("once: needs to be alone")
            self._drive(task, frame, None, NeedsAlone())
            return
        if self.database.single_writer and not frame.session.idle:
            raise AssertionError("a simulated handler calls once() before it writes")
        flow = guarded(
            lane.context, lane.worker(), effect.message, effect.name, effect.call, idempotent=effect.idempotent
        )
        task.frames.append(Frame(flow, self.database.session(f"{task.name}.once"), "effect"))

    def _holds(self, lane: Lane | None) -> bool:
        """Whether a lane has its message in hand; what is processed inline nobody can take away."""
        if lane is None or not lane.open_tokens:
            return True
        return any((lane.owner, token) == claim[1:3] for token in lane.open_tokens for claim in self.database.claims())


def _done(request: Do) -> Outcome:
    try:
        return Outcome(value=request.call())
    except Exception as error:  # noqa: BLE001 - handed back to the step
        return Outcome(error=error)


def outcome_name(error: BaseException | None) -> str:
    """A handler's end in one word."""
    if error is None:
        return "ok"
    if isinstance(error, StoreUnavailable | StoreConflict):
        return "infra"
    return {"Retry": "retry", "Reject": "reject", "HandlerTimeout": "timeout", "NeedsAlone": "needs alone"}.get(
        type(error).__name__, "raise"
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 150 else text[:147] + "..."
