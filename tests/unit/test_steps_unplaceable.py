"""Messages that the database refused to place are remembered until they are placed, or gone."""

from __future__ import annotations

from onceward.steps.subscribe import fan_out
from tests.unit.builders import context, handler
from tests.unit.script import Script
from tests.unit.test_steps_subscribe import look, waiting_row

PAST, FUTURE = 0.0, 1e9


def test_only_those_that_wait_for_their_time_are_left_out_and_remembered() -> None:
    here = context(handler())
    here.unplaceable = {4: (2, PAST), 8: (3, FUTURE), 9: (1, PAST)}
    script = Script({**look(), "unhandled": [waiting_row(4)]})
    assert script.run(fan_out(here)) == 1
    assert script.params("unhandled")[0]["passed"] == [8]
    assert here.unplaceable == {8: (3, FUTURE)}, "4 is placed, 9 is not there any more"


def test_its_time_has_come_at_the_very_moment() -> None:
    here = context(handler())
    here.unplaceable = {4: (2, here.clock())}
    script = Script({**look(), "unhandled": [waiting_row(4)]})
    script.run(fan_out(here))
    assert script.params("unhandled")[0]["passed"] == []
