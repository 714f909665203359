"""What is done to a handler, where; and the watch that does it.

A step yields requests (see `flow.py`), so a watch sits between the step and its session and sees each pass: the call
of the handler, its commit; a recorder on `tx` shows the handler's own statements. At its place it does its deed, once.

Invariant: after a crash nothing passes any more: neither a request of the step nor a statement of the handler.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, NoReturn, TypeVar

from onceward.errors import StoreUnavailable
from onceward.flow import ROLLBACK, Call, Commit, Each, Flow, Wait
from onceward.testing.outside import NotAllowed, Outside
from onceward.testing.recorder import Recorder
from onceward.testing.report import Statement

T = TypeVar("T")

Moment = Literal["before", "after"]
Place = int | str
"""The number of a statement; or "call", "end" (of the handler), "commit", "store" (the commit of a receive), "once"."""


class Crash(BaseException):
    """The process is dead from here on."""


class InjectedError(Exception):
    """What a handler raises where a fault makes it fail."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One deed at one place."""

    deed: Literal["crash", "loss", "raise"] | Callable[[], None]
    moment: Moment
    place: Place


@dataclass(slots=True, eq=False)
class Watch:
    """Watches one process, and injects one fault."""

    concerns: Callable[[Any], bool]
    """Whether a message is the one whose handling is watched."""
    fault: Fault | None = None
    failing: bool = False
    """Whether the neighbour that fails does."""
    kill: Callable[[], None] | None = None
    """Kills the real process; without it a crash is simulated."""
    single_writer: bool = True
    sever: Callable[[], None] = lambda: None
    """Breaks the connection of the session."""
    statements: list[Statement] = field(default_factory=list)
    effects: list[tuple[str, bool]] = field(default_factory=list)
    """The names of the calls made through `message.once`, and whether each is idempotent."""
    results: dict[str, Any] = field(default_factory=dict)
    """What those calls returned, for the operator who has to record it."""
    outside: Outside = field(default_factory=Outside)
    """What the handler did outside of its database, but for calls through `message.once`."""
    recorded: Mapping[str, Any] | None = None
    """Results of these calls, which are given instead of making them, where nothing outside may be touched."""
    calls: int = 0
    fired: bool = False
    dead: bool = False
    _commits: bool = False

    # Requests

    def pass_on(self, request: Any) -> Flow[Any]:
        """Pass a request on to the session, or do the deed."""
        self._check()
        if isinstance(request, Wait):
            time.sleep(min(request.seconds, 0.01))
            return None
        if isinstance(request, Call):
            return (yield from self._pass_call(request))
        parts = request if isinstance(request, tuple) else (request,)
        stores = any(isinstance(part, Each) and part.name == "receive" for part in parts)
        place = "commit" if self._commits else "store" if stores else ""
        if isinstance(parts[-1], Commit) and self._is_place(place):
            return (yield from self._pass_commit(request, place))
        answer = yield request
        return answer

    def _pass_call(self, request: Call) -> Flow[Any]:
        messages = request.message if isinstance(request.message, list) else [request.message]
        if not any(self.concerns(message) for message in messages):
            answer = yield request
            return answer
        self.calls += 1
        self.statements.clear()
        self.effects.clear()
        self._reach("call", "before")
        outcome = yield request
        self._check()
        self._commits = outcome.error is None
        return outcome

    def _pass_commit(self, request: Any, place: str) -> Flow[Any]:
        """Take what travels together apart, so that something can happen in between."""
        parts = request if isinstance(request, tuple) else (request,)
        answers = []
        for part in parts[:-1]:
            answer = yield part
            answers.append(answer)
        yield from self._reach_commit(place, "before")
        answer = yield parts[-1]
        self._commits = False
        yield from self._reach_commit(place, "after")
        return (*answers, answer) if isinstance(request, tuple) else answer

    def _reach_commit(self, place: str, moment: Moment) -> Flow[None]:
        if not self._take(place, moment):
            return
        if self.fault is not None and self.fault.deed == "loss":
            if moment == "before" and self.single_writer:
                yield ROLLBACK  # there is no network to lose: the commit fails and nothing was written
            self.sever()
            raise StoreUnavailable("the connection was lost while COMMIT was answered (onceward.testing)")
        self._do(None)

    # Inside the handler

    @contextmanager
    def passing(self, sql: str, recorder: Recorder) -> Iterator[None]:
        """A statement of the handler."""
        self._check()
        number = len(self.statements) + 1
        self.statements.append(Statement(number, sql, recorder.where()))
        self._reach(number, "before", recorder)
        yield
        self._reach(number, "after", recorder)

    def end(self) -> None:
        """The handler has done everything and is about to return."""
        self._reach("end", "after")

    def once(self, effects: Callable[..., Any], *, is_async: bool) -> Callable[..., Any]:
        """`message.once`, watched: the process may die when the call was made and is not recorded yet."""

        def made(message: Any, name: str, value: Any) -> None:
            if self.concerns(message):
                self.results[name] = value
                self._reach(f"once {name}", "after")

        def once(message: Any, name: str, call: Callable[[], Any], idempotent: bool | timedelta) -> Any:  # noqa: FBT001 - as inside
            self.effects.append((name, bool(idempotent)))

            def watched() -> Any:
                with self.outside.unheard():
                    value = self._result(name, call)
                made(message, name, value)
                return value

            async def watched_async() -> Any:
                with self.outside.unheard():
                    value = self._result(name, call)
                    value = await value if isinstance(value, Awaitable) else value
                made(message, name, value)
                return value

            return effects(message, name, watched_async if is_async else watched, idempotent)

        return once

    def _result(self, name: str, call: Callable[[], Any]) -> Any:
        if self.recorded is None:
            return call()
        if name not in self.recorded:
            raise NotAllowed(f"message.once({name!r}) has no result on record, and is not called here")
        return self.recorded[name]

    # The deed

    def _check(self) -> None:
        if self.dead:
            raise Crash

    def _is_place(self, place: Place) -> bool:
        return self.fault is not None and not self.fired and self.fault.place == place

    def _take(self, place: Place, moment: Moment) -> bool:
        if self.fault is None or not self._is_place(place) or self.fault.moment != moment:
            return False
        self.fired = True
        return True

    def _reach(self, place: Place, moment: Moment, recorder: Recorder | None = None) -> None:
        self._check()
        if self._take(place, moment):
            self._do(recorder)

    def _do(self, recorder: Recorder | None) -> None:
        deed = self.fault.deed if self.fault else "raise"
        if callable(deed):
            deed()
        elif deed == "crash":
            self._crash()
        elif deed == "loss" and recorder is not None:
            raise recorder.lose()
        else:
            raise InjectedError("the handler failed here (onceward.testing)")

    def _crash(self) -> NoReturn:
        if self.kill:
            self.kill()
        self.dead = True
        raise Crash


def with_faults(flow: Flow[T], watch: Watch) -> Flow[T]:
    """A step whose requests pass a watch."""
    try:
        request = next(flow)
        while True:
            try:
                answer = yield from watch.pass_on(request)
            except BaseException as error:  # noqa: BLE001 - whatever happens at a request is raised at its yield
                request = flow.throw(error)
            else:
                request = flow.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return] # StopIteration cannot carry the type
