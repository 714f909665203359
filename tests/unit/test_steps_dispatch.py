"""A destination that has something gets a lane of its own; nothing here waits for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from onceward.errors import StoreConflict, StoreUnavailable
from onceward.flow import Reconnect, Wait
from onceward.steps.dispatch import Dispatch, dispatch
from tests.unit.builders import Stop, catalog, context, relay
from tests.unit.script import Lost, Script, Turns

BOTH = ("default", "other")


def relaying(stop: Stop | None = None) -> tuple[Dispatch, list[str]]:
    """The destinations of a process that has looked at the catalog, and those whose lanes were begun."""
    here, started = context(relay(), relay("other")), list[str]()
    here.look_at = float("inf")
    return Dispatch(here, BOTH, stop or Stop(), started.append), started


def run(answers: Mapping[str, Any], stop: Stop) -> tuple[Script, Dispatch, list[str]]:
    one, started = relaying(stop)
    script = Script(answers)
    script.run(dispatch(one))
    return script, one, started


def test_each_that_has_something_gets_one_lane() -> None:
    """And is not looked at while it has one."""
    script, one, started = run({"awaiting": Turns([("other",)], [])}, Stop(after=2))
    assert (started, one.busy) == (["other"], {"other"})
    assert [asked["destinations"] for asked in script.params("awaiting")] == [["default", "other"], ["default"]]
    assert len(script.all(Wait)) == 2


def test_when_all_are_served_nothing_is_asked() -> None:
    script, _, started = run({"awaiting": [(name,) for name in BOTH]}, Stop(after=3))
    assert started == list(BOTH)
    assert len(script.params("awaiting")) == 1


@pytest.mark.parametrize("failure", [Lost(), StoreUnavailable("busy"), StoreConflict("deadlock")])
def test_trouble_with_the_database_is_waited_out(failure: Any) -> None:
    """Nothing is begun twice, and the next look is on a connection that works."""
    script, _, started = run({"awaiting": Turns(failure, [("default",)], [])}, Stop(after=3))
    assert started == ["default"]
    assert len(script.all(Reconnect)) == 1


def test_until_idle_it_looks_once_and_waits_for_the_lanes() -> None:
    one, started = relaying()

    def ends(_: Any) -> None:
        one.busy.clear()

    script = Script({"awaiting": [("default",)], "wait": ends})
    script.run(dispatch(one, until_idle=True))
    assert (started, len(script.params("awaiting")), len(script.all(Wait))) == (["default"], 1, 1)


def test_a_process_that_has_not_introduced_itself_asks_nothing() -> None:
    one, started = relaying(Stop(after=1))
    one.context.cache.catalog = catalog()._replace(relay=None)
    script = Script({})
    script.run(dispatch(one))
    assert (started, script.params("awaiting")) == ([], [])
