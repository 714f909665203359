"""A lane that was woken rests no longer than until all was looked for that may have woken it (R22).

Isolated messages and the catalog are not looked for every time; whoever polls every ten minutes relies on being woken.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

import pytest

from onceward.flow import Call, Query, Wait
from onceward.settings import Settings
from onceward.steps.claim import ISOLATED_SECONDS
from onceward.steps.context import LOOK_SECONDS
from onceward.steps.dispatch import Dispatch, dispatch
from onceward.steps.handle import work
from onceward.steps.isolation import Isolation
from onceward.steps.lane import Lane
from tests.unit.builders import Clock, Stop, begin, claim_row, context, handler, lane, relay
from tests.unit.script import Script, Turns

POLL = 600.0
ANOTHER = "another lane"


@dataclass
class Rests:
    """How a lane rests: it is notified after so many seconds, and then never again."""

    clock: Clock
    notified_after: list[float] = field(default_factory=list)
    asked: list[float] = field(default_factory=list)

    def __call__(self, wait: Wait) -> bool:
        self.asked.append(wait.seconds)
        is_notified = bool(self.notified_after)
        self.clock.now += self.notified_after.pop(0) if is_notified else wait.seconds
        return is_notified


def resting(isolation: Isolation | None = None, *, turns: int) -> tuple[Lane, Clock]:
    """A lane that has not looked yet, for so many turns."""
    here = context(handler(), settings=Settings(poll=timedelta(seconds=POLL)))
    one = lane(here, stop=Stop(after=turns), isolation=isolation)
    begin(one)
    return one, cast("Clock", here.clock)


def isolated(rows: Turns, **more: Any) -> dict[str, Any]:
    return {"claim": [], "settle": [], "claim_isolated": rows, **more}


def test_what_is_isolated_a_moment_after_the_last_look_is_found_soon() -> None:
    """A process has died, and its messages were taken over within a second of this lane's last look."""
    one, clock = resting(turns=6)
    rests = Rests(clock, [0.3])
    answers = isolated(Turns([claim_row(5)], []), isolation_level=Turns([(0,)], [(2,)], [(0,)]), wait=rests)
    assert Script(answers).run(work(one)) == 1
    assert rests.asked[:2] == [POLL, pytest.approx(ISOLATED_SECONDS - 0.3)]
    assert set(rests.asked[2:]) == {POLL}, "it looks no more often than it has to"


def test_an_isolated_message_whose_key_is_held_is_found_soon() -> None:
    """It stepped back from a later one of its key that runs elsewhere; nobody says when that has ended."""
    one, clock = resting(turns=9)
    rests = Rests(clock)
    row, back = [claim_row(5, hashed=77)], [(5, "ready")]
    answers = isolated(Turns(row, [], row, []), park=Turns(back, []), wait=rests)
    script = Script({**answers, "isolation_level": [(2,)]})
    script.run(work(one))
    assert [list(asked["held"]) for asked in script.params("claim_isolated")][:3] == [[], [77], []]
    assert rests.asked[0] == pytest.approx(ISOLATED_SECONDS)
    assert [request.message.seq for request in script.all(Call)][:1] == [5]


def test_what_was_resumed_a_moment_after_the_last_look_is_found_soon() -> None:
    """An operator resumes a type: the lane is woken, and still believes that it is paused."""
    one, clock = resting(turns=6)
    one.context.look_at = clock.now
    rests = Rests(clock, [0.1])
    script = Script({"isolation_level": [(0,)], "claim": [], "catalog": [(1, 1e9)], "wait": rests})
    script.run(work(one))
    looks = [at for at, request in enumerate(script.requests) if request == Query("catalog")]
    assert rests.asked[:2] == [POLL, pytest.approx(LOOK_SECONDS - 0.1)]
    assert len(looks) >= 2


def test_a_destination_that_was_resumed_a_moment_after_the_last_look_is_found_soon() -> None:
    """As for what is handled."""
    here = context(relay(), settings=Settings(poll=timedelta(seconds=POLL)))
    clock = cast("Clock", here.clock)
    here.look_at = clock.now
    rests = Rests(clock, [0.1])
    script = Script({"awaiting": [], "catalog": [(1, 1e9)], "wait": rests})
    script.run(dispatch(Dispatch(here, ["default"], Stop(after=3), lambda _: None)))
    assert rests.asked == [POLL, pytest.approx(LOOK_SECONDS - 0.1), POLL]


class Opening(Isolation):
    """Another lane is alone, and has just ended when this one was refused."""

    def enter(self, who: object) -> bool:
        entered = super().enter(who)
        self.leave(ANOTHER)
        return entered


def test_one_that_was_not_to_claim_looks_again_when_it_may() -> None:
    """The other lane was alone while this one looked, and is not by the time it rests."""
    isolation = Opening()
    assert isolation.enter_alone(ANOTHER)
    one, clock = resting(isolation, turns=4)
    one.looked_at, rests = clock.now, Rests(clock)
    script = Script({"isolation_level": [(0,)], "claim": Turns([claim_row(9)], []), "wait": rests})
    assert script.run(work(one)) == 1
    assert rests.asked[0] < 1, "it rested beside a message"
