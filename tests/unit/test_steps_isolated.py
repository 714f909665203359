"""Isolated messages run apart, and nobody waits for them: in groups beside other lanes, in turn with other messages."""

from __future__ import annotations

from typing import Any

import pytest

from onceward.errors import StoreUnavailable
from onceward.flow import Call
from onceward.steps.claim import ISOLATED_SECONDS
from onceward.steps.handle import work
from onceward.steps.isolated import next_batch
from onceward.steps.isolation import Isolation
from onceward.steps.lane import Lane, let_go
from tests.unit.builders import WORKER, Stop, claim_row, context, handler, lane
from tests.unit.script import Lost, Script, Turns

CLAIMED = "begin claim park commit"
LOOKED = "begin isolation_level commit"
ISOLATED = "begin claim_isolated park commit"


class TestInCompany:
    """In a group, beside other lanes."""

    def looking(self, isolation: Isolation | None = None, *, group: int = 100) -> Lane:
        here = lane(context(handler(group=group)), isolation=isolation, group=group)
        here.looked_at = float("-inf")
        return here

    @pytest.mark.parametrize(("level", "group", "limit"), [(151, 100, 100), (51, 100, 50), (2, 100, 1), (3, 1, 1)])
    def test_a_claim_is_as_large_as_the_level_and_the_lane_allow(self, level: int, group: int, limit: int) -> None:
        """Of one level, the highest that waits."""
        here = self.looking(group=group)
        script = Script({"isolation_level": [(level,)], "claim_isolated": [claim_row(5)]})
        assert [one.seq for one in script.run(next_batch(here))] == [5]
        (asked,) = script.params("claim_isolated")
        assert (asked["level"], asked["limit"]) == (level, limit)

    def test_the_others_go_on(self) -> None:
        """They claim whatever is not isolated; only another lane of the same kind takes no isolated ones meanwhile."""
        isolation = Isolation()
        here, there = self.looking(isolation), self.looking(isolation)
        script = Script({"isolation_level": [(9,)], "claim_isolated": [claim_row(5)], "claim": [claim_row(6)]})
        script.run(next_batch(here))
        assert not isolation.closed
        assert [one.seq for one in script.run(next_batch(there))] == [6]
        assert script.transactions == [LOOKED, ISOLATED, LOOKED, CLAIMED]
        let_go(here, 1)
        let_go(there, 1)
        there.looked_at = float("-inf")
        assert [one.seq for one in script.run(next_batch(there))] == [5]

    def test_a_lane_of_another_kind_takes_its_own(self) -> None:
        """What is published does not wait for what is handled."""
        isolation = Isolation()
        here, relaying = self.looking(isolation), self.looking(isolation)
        relaying.destination = "default"
        script = Script({"isolation_level": [(9,)], "claim_isolated": [claim_row(5)]})
        script.run(next_batch(here))
        script.run(next_batch(relaying))
        assert script.transactions == [LOOKED, ISOLATED] * 2

    def test_other_messages_come_in_turn(self) -> None:
        """With one lane too: a claim of isolated messages, a claim of others, and nothing is claimed in between."""
        here = self.looking(group=1)
        here.stopping = Stop(after=14)
        script = Script(
            {
                "isolation_level": Turns([(9,)], [(9,)], [(0,)]),
                "claim_isolated": Turns([claim_row(1)], [claim_row(2)], []),
                "claim": Turns([claim_row(3)], [claim_row(4)], []),
            }
        )
        script.run(work(here))
        assert [request.message.seq for request in script.all(Call)] == [1, 3, 2, 4]
        ran = "begin call finish commit"
        assert script.transactions[:8] == [LOOKED, ISOLATED, ran, CLAIMED, ran, LOOKED, ISOLATED, ran]

    def test_where_nothing_else_is_due_the_next_isolated_ones_follow_at_once(self) -> None:
        """Nobody waits for the next look."""
        here = self.looking()
        script = Script(
            {
                "isolation_level": Turns([(2,)], [(2,)], [(2,)], [(0,)]),
                "claim_isolated": Turns([claim_row(1)], [claim_row(2)], [claim_row(3)], []),
                "claim": [],
            }
        )
        assert script.run(work(here, until_idle=True)) == 3
        assert "wait" not in script.transactions

    def test_where_other_messages_begin_is_not_changed(self) -> None:
        """An isolated message says nothing about the messages before it that are none."""
        here = self.looking()
        here.lots[0].cursor = 3
        Script({"isolation_level": [(9,)], "claim_isolated": [claim_row(50)]}).run(next_batch(here))
        assert here.lots[0].cursor == 3

    def test_a_claim_without_an_answer_keeps_its_place(self) -> None:
        """Perhaps it is claimed: no other lane takes isolated messages before it is let go."""
        isolation = Isolation()
        here, there = self.looking(isolation), self.looking(isolation)
        with pytest.raises(StoreUnavailable):
            Script({"isolation_level": [(9,)], "claim_isolated": Lost()}).run(next_batch(here))
        script = Script({"isolation_level": [(9,)], "claim_isolated": [claim_row(5)], "claim": []})
        assert script.run(next_batch(there)) == []
        assert script.params("claim_isolated") == []

    def test_one_that_stepped_back_is_passed_over(self) -> None:
        """A later one of its key runs elsewhere: those behind it are looked for at once, and not again and again."""
        here = self.looking()
        back = {"claim_isolated": [claim_row(5, hashed=77)], "park": [(5, "ready")]}
        script = Script({"isolation_level": [(9,)], "claim": [], **back})
        assert script.run(next_batch(here)) == []
        assert [list(one["held"]) for one in script.params("claim_isolated")] == [[], [77]]

    def test_one_that_waited_to_be_alone_takes_a_group_that_came_later(self) -> None:
        """Others may enter again."""
        isolation = Isolation()
        isolation.enter("another")
        here = self.looking(isolation)
        script = Script({"isolation_level": Turns([(1,)], [(9,)]), "claim_isolated": [claim_row(5)]})
        assert script.run(next_batch(here)) == []
        assert [one.seq for one in script.run(next_batch(here))] == [5]
        assert not isolation.closed


class TestAlone:
    """A message that was in flight when a process died."""

    def looking(self, isolation: Isolation | None = None) -> Lane:
        here = lane(context(handler()), isolation=isolation)
        here.context.clock.now += ISOLATED_SECONDS  # type: ignore[attr-defined] # a clock of the tests
        return here

    def test_it_is_claimed_alone(self) -> None:
        """One row, with the process to itself, until it is let go."""
        here = self.looking()
        script = Script({"isolation_level": [(1,)], "claim_isolated": [claim_row(5)]})
        (one,) = script.run(next_batch(here))
        assert script.transactions == [LOOKED, ISOLATED]
        assert script.params("claim_isolated") == [
            {
                "worker": WORKER,
                "token": 1,
                "level": 1,
                "limit": 1,
                "held": [],
                "subscriptions": [1],
                "destination": None,
            }
        ]
        assert (one.seq, here.open_tokens, here.wants_alone) == (5, {1}, False)
        assert here.isolation.closed
        assert not here.isolation.enter("another")
        let_go(here, 1)
        assert here.isolation.enter("another")

    def test_it_waits_for_the_others(self) -> None:
        """While another lane holds a claim nothing is claimed, not even ordinary work; it asks again."""
        isolation = Isolation()
        isolation.enter("another")
        here = self.looking(isolation)
        script = Script({"isolation_level": [(1,)], "claim_isolated": [claim_row(5)]})
        assert script.run(next_batch(here)) == []
        assert script.transactions == [LOOKED]
        assert here.wants_alone
        assert not isolation.enter("third"), "nobody new goes in meanwhile"
        isolation.leave("another")
        assert [one.seq for one in script.run(next_batch(here))] == [5]

    def test_when_somebody_else_took_it_work_goes_on(self) -> None:
        """The wish ends when the isolated message is gone, before or after being alone; others may enter again."""
        here = self.looking()
        here.wants_alone = True
        here.isolation.enter_alone(here)
        script = Script({"isolation_level": [(0,)], "claim": [claim_row(1)]})
        assert [one.seq for one in script.run(next_batch(here))] == [1]
        assert script.transactions == [LOOKED, CLAIMED]
        assert not here.wants_alone
        assert not here.isolation.closed

        here = self.looking()
        script = Script({"isolation_level": [(1,)], "claim_isolated": [], "claim": [claim_row(1)]})
        assert [one.seq for one in script.run(next_batch(here))] == [1]
        assert script.transactions == [LOOKED, ISOLATED, CLAIMED]
        assert here.open_tokens == {2}
        assert not here.isolation.closed

    def test_an_isolated_message_behind_an_earlier_message_is_parked(self) -> None:
        """Order holds for isolated messages too."""
        here = self.looking()
        script = Script(
            {
                "isolation_level": Turns([(1,)], [(0,)]),
                "claim_isolated": [claim_row(5, hashed=77)],
                "park": Turns([(5, "waiting")], []),
                "claim": [],
            }
        )
        assert script.run(next_batch(here)) == []
        assert script.transactions[:3] == [LOOKED, ISOLATED, LOOKED], "there may be another behind it"
        assert here.open_tokens == set()

    @pytest.mark.parametrize("place", ["claim_isolated", "commit"])
    def test_without_an_answer_it_stays_open_and_alone(self, place: str) -> None:
        """Perhaps it is claimed: nobody else may hold a claim."""
        here = self.looking()
        looked = [False]

        def commit(_: Any) -> Any:
            looked[0], before = True, looked[0]
            return Lost() if before else []

        failure = {"commit": commit} if place == "commit" else {"claim_isolated": Lost()}
        script = Script({"isolation_level": [(1,)], "claim_isolated": [claim_row(5)], **failure})
        with pytest.raises(StoreUnavailable):
            script.run(next_batch(here))
        assert here.open_tokens == {1}
        assert not here.isolation.enter("another")
