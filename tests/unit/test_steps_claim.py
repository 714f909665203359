"""A row is ours only after a commit, under a fresh token, and only at the head of its key."""

from __future__ import annotations

from typing import Any

import pytest

from onceward.errors import StoreConflict, StoreUnavailable
from onceward.steps.claim import SWEEP_SECONDS, let_go, may_ride, next_batch
from onceward.steps.lane import Gate, Lane
from tests.unit.builders import WORKER, Clock, Stop, claim_row, context, handler, lane
from tests.unit.script import Lost, Script

CLAIMED = "begin claim commit"
LOOKED = "begin suspects commit"


def clock(of: Lane) -> Clock:
    assert isinstance(of.context.clock, Clock)
    return of.context.clock


class TestClaim:
    """The ordinary claim."""

    def test_it_is_committed_before_anything_runs(self) -> None:
        """A note under a fresh token, for the subscriptions of this lane; the batch comes in order."""
        here = lane(context(handler(), handler("sent")), group=30)
        here.floor = 4
        script = Script({"claim": [claim_row(9), claim_row(7), claim_row(8)]})
        batch = script.run(next_batch(here))
        assert [one.seq for one in batch] == [7, 8, 9]
        assert script.story == [CLAIMED]
        assert script.params("claim") == [
            {"worker": WORKER, "token": 1, "limit": 30, "floor": 4, "subscriptions": [1, 2]}
        ]
        assert here.open_tokens == {1}
        assert here.floor == 7, "what comes next is not before what was claimed"
        assert {(one.worker, one.token) for one in batch} == {(WORKER, 1)}

    def test_an_empty_claim_leaves_nothing_open(self) -> None:
        """No rows: the token is forgotten and the gate left, so that a suspect elsewhere can run."""
        here = lane(context(handler()))
        assert Script({"claim": []}).run(next_batch(here)) == []
        assert here.open_tokens == set()
        assert here.gate.enter_alone("another")

    def test_rows_with_a_key_are_checked_in_a_new_statement(self) -> None:
        """Those that are not at the head of their key are parked before the commit, and not in the batch."""
        here = lane(context(handler()))
        script = Script({"claim": [claim_row(1, hashed=77), claim_row(2), claim_row(3, hashed=78)], "park": [(3,)]})
        assert [one.seq for one in script.run(next_batch(here))] == [1, 2]
        assert script.story == ["begin claim park commit"]
        assert script.params("park") == [{"seqs": [1, 3], "worker": WORKER, "token": 1}]

    def test_all_parked_is_nothing_claimed(self) -> None:
        """A claim of which nothing remains is let go."""
        here = lane(context(handler()))
        assert Script({"claim": [claim_row(1, hashed=77)], "park": [(1,)]}).run(next_batch(here)) == []
        assert here.open_tokens == set()

    def test_new_sources_are_looked_up_inside(self) -> None:
        """A name this process has not read yet is read in the same transaction."""
        here = lane(context(handler()))
        script = Script({"claim": [claim_row(1, source=9)], "names": [(1, "service"), (2, "shop"), (9, "new")]})
        (one,) = script.run(next_batch(here))
        assert script.story == ["begin claim names commit"]
        assert one.request.message.source == "new"

    def test_while_another_is_alone_nothing_is_claimed(self) -> None:
        """No note is written while a suspect of another lane runs or waits."""
        here = lane(context(handler()))
        here.gate.enter_alone("another")
        script = Script()
        assert script.run(next_batch(here)) == []
        assert script.trips == []
        assert here.open_tokens == set()

    @pytest.mark.parametrize("failure", [Lost(), StoreUnavailable("busy"), StoreConflict("deadlock")])
    @pytest.mark.parametrize("place", ["claim", "park", "commit"])
    def test_a_claim_without_an_answer_stays_open(self, place: str, failure: Any) -> None:
        """Perhaps it was committed: its token is remembered until its rows are known to be gone, and the gate is kept."""
        here = lane(context(handler()))
        script = Script({"claim": [claim_row(1, hashed=77)], "park": [], place: failure})
        with pytest.raises((StoreUnavailable, StoreConflict)):
            script.run(next_batch(here))
        assert here.open_tokens == {1}
        assert not here.gate.enter_alone("another")

    def test_the_worker_number_is_that_of_now(self) -> None:
        """A process that was declared dead and registered anew claims under its new number."""
        here = lane(context(handler()))
        here.worker = lambda: 99
        script = Script({"claim": [claim_row(1)]})
        (one,) = script.run(next_batch(here))
        assert script.params("claim")[0]["worker"] == 99
        assert (one.worker, here.owner) == (99, 99)


class TestSweep:
    """Now and then a lane looks from the very beginning."""

    def test_the_floor_goes_back_to_zero(self) -> None:
        """For late commits and released rows; once a second is enough."""
        here = lane(context(handler()))
        here.floor = 50
        clock(here).now += SWEEP_SECONDS
        script = Script({"suspects": [(0,)], "claim": []})
        script.run(next_batch(here))
        assert script.story == [LOOKED, CLAIMED]
        assert script.params("suspects") == [{"subscriptions": [1]}]
        assert script.params("claim")[0]["floor"] == 0
        script.run(next_batch(here))
        assert script.story == [LOOKED, CLAIMED, CLAIMED]

    def test_the_first_look_is_a_sweep(self) -> None:
        """A new lane begins at the beginning."""
        here = lane(context(handler()))
        here.swept_at = float("-inf")
        script = Script({"suspects": [(0,)], "claim": []})
        script.run(next_batch(here))
        assert script.story == [LOOKED, CLAIMED]


class TestSuspect:
    """A message that was in flight when a process died."""

    def sweeping(self, gate: Gate | None = None) -> Lane:
        here = lane(context(handler()), gate=gate)
        clock(here).now += SWEEP_SECONDS
        return here

    def test_it_is_claimed_alone(self) -> None:
        """One row, with the process to itself, until it is let go."""
        here = self.sweeping()
        script = Script({"suspects": [(1,)], "claim_solo": [claim_row(5)]})
        (one,) = script.run(next_batch(here))
        assert script.story == [LOOKED, "begin claim_solo commit"]
        assert script.params("claim_solo") == [{"worker": WORKER, "token": 1, "subscriptions": [1]}]
        assert (one.seq, here.open_tokens, here.wants_alone) == (5, {1}, True)
        assert here.gate.closed
        assert not here.gate.enter("another")
        let_go(here, 1)
        assert here.gate.enter("another")

    def test_it_waits_for_the_others(self) -> None:
        """While another lane holds a note nothing is claimed, not even ordinary work; it asks again."""
        gate = Gate()
        gate.enter("another")
        here = self.sweeping(gate)
        script = Script({"suspects": [(1,)], "claim_solo": [claim_row(5)]})
        assert script.run(next_batch(here)) == []
        assert script.story == [LOOKED]
        assert here.wants_alone
        assert not gate.enter("third"), "nobody new goes in meanwhile"
        gate.leave("another")
        here.swept_at = clock(here).now
        assert [one.seq for one in script.run(next_batch(here))] == [5]

    def test_when_somebody_else_took_it_work_goes_on(self) -> None:
        """The wish ends when the suspect is gone, before or after being alone; the gate is open again."""
        here = self.sweeping()
        here.wants_alone = True
        here.gate.enter_alone(here)
        script = Script({"suspects": [(0,)], "claim": [claim_row(1)]})
        assert [one.seq for one in script.run(next_batch(here))] == [1]
        assert script.story == [LOOKED, CLAIMED]
        assert not here.wants_alone
        assert not here.gate.closed

        here = self.sweeping()
        script = Script({"suspects": [(1,)], "claim_solo": [], "claim": [claim_row(1)]})
        assert [one.seq for one in script.run(next_batch(here))] == [1]
        assert script.story == [LOOKED, "begin claim_solo commit", CLAIMED]
        assert here.open_tokens == {2}
        assert not here.gate.closed

    def test_a_suspect_behind_an_earlier_message_is_parked(self) -> None:
        """Order holds for suspects too."""
        here = self.sweeping()
        script = Script({"suspects": [(1,)], "claim_solo": [claim_row(5, hashed=77)], "park": [(5,)], "claim": []})
        assert script.run(next_batch(here)) == []
        assert script.story == [LOOKED, "begin claim_solo park commit", CLAIMED]
        assert here.open_tokens == set()
        assert not here.wants_alone

    @pytest.mark.parametrize("place", ["claim_solo", "commit"])
    def test_without_an_answer_it_stays_open_and_alone(self, place: str) -> None:
        """Perhaps it is noted: nobody else may hold a note."""
        here = self.sweeping()
        looked = [False]

        def commit(_: Any) -> Any:
            looked[0], before = True, looked[0]
            return Lost() if before else []

        failure = {"commit": commit} if place == "commit" else {"claim_solo": Lost()}
        script = Script({"suspects": [(1,)], "claim_solo": [claim_row(5)], **failure})
        with pytest.raises(StoreUnavailable):
            script.run(next_batch(here))
        assert here.open_tokens == {1}
        assert not here.gate.enter("another")


class TestRide:
    """The next claim may be made in the transaction that finishes the last."""

    def test_usually(self) -> None:
        """Nothing speaks against it."""
        assert may_ride(lane(context(handler())))

    def test_not_when_stopping_closed_or_sweeping(self) -> None:
        """A stop, a suspect somewhere, or a due sweep each call for a claim of its own, or none."""
        assert not may_ride(lane(context(handler()), stop=Stop(after=0)))
        closed = lane(context(handler()))
        closed.gate.enter_alone("another")
        assert not may_ride(closed)
        due = lane(context(handler()))
        clock(due).now += SWEEP_SECONDS
        assert not may_ride(due)


def test_the_gate_is_left_with_the_last_token() -> None:
    """While any claim is open the lane holds notes, so it stays inside."""
    here = lane(context(handler()))
    here.gate.enter(here)
    one, two = here.token(), here.token()
    let_go(here, one)
    assert not here.gate.enter_alone("another")
    here.gate.leave("another")
    let_go(here, two, 99)
    assert here.open_tokens == set()
    assert here.gate.enter_alone("another")
