"""Waking: no lane sleeps beside work, and no caller waits for nobody."""

from __future__ import annotations

from mutants.mutant import Mutant

_REST = "tests/unit/test_steps_rest.py::"
_WAKE_UP = "tests/contract/test_wake_up.py::"

WAKING: tuple[Mutant, ...] = (
    Mutant(
        name="a lane that was not to claim rests as if it had looked",
        file="steps/handle.py",
        old="lane.isolation.was_turned_away(lane) or ",
        new="",
        test=_REST + "test_one_that_was_not_to_claim_looks_again_when_it_may",
    ),
    Mutant(
        name="what is isolated a moment after the last look waits for the next poll",
        file="steps/isolated.py",
        old="again = 0.0 if lane.looked_at < lane.woken_at else isolated.wait(now)",
        new="again = isolated.wait(now)",
        test=_REST + "test_what_is_isolated_a_moment_after_the_last_look_is_found_soon",
    ),
    Mutant(
        name="isolated messages whose keys are held wait for the next poll",
        file="steps/isolated.py",
        old="again = 0.0 if lane.looked_at < lane.woken_at else isolated.wait(now)",
        new='again = 0.0 if lane.looked_at < lane.woken_at else float("inf")',
        test=_REST + "test_an_isolated_message_whose_key_is_held_is_found_soon",
    ),
    Mutant(
        name="what was resumed a moment after the last look waits for the next poll",
        file="steps/context.py",
        old='if current_at < woken_at else float("inf")',
        new='if False else float("inf")',
        test=_REST + "test_what_was_resumed_a_moment_after_the_last_look_is_found_soon",
    ),
    Mutant(
        name="nobody is told of what a process gives back when it stops",
        file="runtime/worker.py",
        old="            self._store.notify()\n",
        new="            pass\n",
        test=_WAKE_UP + "test_what_a_stopped_process_gives_back_is_picked_up_at_once[postgres-def]",
        store="postgres",
    ),
    Mutant(
        name="the lanes that handle the next message of a key are not told that its turn has come",
        file="steps/lane.py",
        old="    if not {one.id for one in lane.subscriptions}.issuperset(promoted):\n",
        new="    if not promoted:\n",
        test=_WAKE_UP + "test_a_successor_that_others_handle_is_picked_up_at_once[postgres-def-def-async]",
        store="postgres",
    ),
    Mutant(
        name="a drain leaves what it promoted for the lanes of the other kind",
        file="runtime/worker.py",
        old="        return self._is_through and len(",
        new="        return False and len(",
        test="tests/contract/test_handle.py::test_a_drain_ends_when_the_lanes_of_both_kinds_have_nothing_left[sqlite]",
        store="sqlite",
    ),
    Mutant(
        name="a caller that stored for others and not for itself is forgotten",
        file="runtime/group_commit.py",
        old="                self._next_leads(leader)\n",
        new="                self._sharing.leave(leader)\n                self._next_leads(leader)\n",
        test="tests/unit/test_group_commit.py::test_a_leader_that_is_not_among_those_it_stores_waits_for_the_next",
    ),
)
