"""How long counts stay as they are: at once into minutes, after two days into hours, after two weeks into days."""

from __future__ import annotations

import pytest

from onceward.settings import Settings
from onceward.steps.history import keep_history
from tests.unit.builders import context
from tests.unit.script import Script

SECOND, HOUR = 1_000_000, 3600


def test_each_level_is_folded_at_its_age_and_days_are_forgotten_after_a_quarter() -> None:
    answers = {"take_turn": [(1,)], "unserved": [], "lock_history": [], "forget_history": []}
    script = Script(answers)
    assert script.run(keep_history(context(settings=Settings()))) == 0, "nothing that a lane should wake up for"
    assert [(one["level"], one["longer"], one["keep"]) for one in script.params("lock_history")] == [
        (0, 60 * SECOND, 0),
        (1, HOUR * SECOND, 48 * HOUR),
        (2, 24 * HOUR * SECOND, 14 * 24 * HOUR),
    ]
    assert [(one["level"], one["keep"]) for one in script.params("forget_history")] == [(3, 90 * 24 * HOUR)]
    assert [one["every"] for one in script.params("take_turn")] == [60]


@pytest.mark.parametrize("settings", [Settings(), Settings(history=False), Settings(maintenance=None)])
def test_a_lane_is_never_to_wake_up_for_it(settings: Settings) -> None:
    assert Script({"take_turn": []}).run(keep_history(context(settings=settings))) == 0
