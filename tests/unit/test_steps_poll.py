"""The cursor of a poll and the response before it are one commit, for the process whose turn it is."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from onceward.errors import StoreConflict, StoreUnavailable
from onceward.steps.poll import Answer, Turn, end, keep, take
from tests.unit.builders import NOW, SOURCE, catalog_answers, context, handler
from tests.unit.script import Lost, Script

PATIENCE = timedelta(seconds=30)
TURN = Turn(SOURCE, "mine", cursor={"page": 3}, number=7, hash=b"last", failures=2)
ANSWER = Answer("paid", b'{"order":7}', cursor={"page": 4}, id=None, headers={})
MOVED = {"source": 2, "token": "mine", "number": 7, "cursor": '{"page":4}', "patience": 30.0}


def accepted(request: Any) -> list[tuple[int, int, int]]:
    return [(record["ordinal"], 41, NOW) for record in request.records]


class TestTake:
    """One process at a time asks."""

    def test_a_turn_that_is_due(self) -> None:
        """It knows where the stored responses end."""
        script = Script({"take_poll": [('{"page":3}', 7, memoryview(b"last"), 2)], "poll_left": [(0.0,)]})
        assert script.run(take(context(), SOURCE, "mine", PATIENCE)) == TURN
        assert script.transactions == ["begin add_poll take_poll poll_left commit"]
        assert script.params("take_poll") == [{"source": 2, "token": "mine", "patience": 30.0, "early": False}]

    def test_the_very_first_turn_has_no_cursor(self) -> None:
        script = Script({"take_poll": [(None, 0, None, 0)], "poll_left": [(0.0,)]})
        turn = script.run(take(context(), SOURCE, "mine", PATIENCE, early=True))
        assert turn == Turn(SOURCE, "mine", cursor=None, number=0, hash=None, failures=0)
        assert script.params("take_poll")[0]["early"] is True

    def test_a_turn_of_another_process_is_waited_for(self) -> None:
        """For as long as the database says."""
        script = Script({"take_poll": [], "poll_left": [(12,)]})
        assert script.run(take(context(), SOURCE, "mine", PATIENCE)) == 12.0

    def test_a_source_without_a_number_gets_one_first(self) -> None:
        """In a transaction of its own; the turn is taken by that number."""
        here = context()
        known = catalog_answers(here.cache.catalog)
        known["names"] = [*known["names"], (9, "api")]
        script = Script({**known, "take_poll": [], "poll_left": [(1.0,)]})
        assert script.run(take(here, "api", "mine", PATIENCE)) == 1.0
        assert [one["name"] for one in script.params("add_name")] == ["api"]
        assert script.params("take_poll")[0]["source"] == 9


class TestKeep:
    """A response and the cursor after it."""

    def test_both_are_one_commit(self) -> None:
        """The message is named by its number, which no other response gets."""
        script = Script({"keep_poll": [(8,)], "receive": accepted})
        after = script.run(keep(context(handler()), TURN, ANSWER, PATIENCE))
        assert after == Turn(SOURCE, "mine", {"page": 4}, 8, ANSWER.digest(TURN), 2)
        assert script.transactions == ["begin keep_poll receive commit"]
        assert script.params("keep_poll") == [{**MOVED, "next": 8, "hash": ANSWER.digest(TURN)}]
        assert ANSWER.delivery(TURN).id == "response 8"

    def test_a_turn_that_is_another_s_now_stores_nothing(self) -> None:
        script = Script({"keep_poll": [], "poll_state": [(7,)]})
        assert script.run(keep(context(handler()), TURN, ANSWER, PATIENCE)) is None
        assert script.transactions == ["begin keep_poll rollback", "begin poll_state commit"]

    def test_a_commit_whose_answer_was_lost_is_found(self) -> None:
        """The number that it wrote is there, under our token: the turn goes on from the new cursor."""
        script = Script({"keep_poll": [], "poll_state": [(8,)]})
        after = script.run(keep(context(handler()), TURN, ANSWER, PATIENCE))
        assert after is not None
        assert (after.cursor, after.number) == ({"page": 4}, 8)

    @pytest.mark.parametrize("place", ["keep_poll", "receive", "commit"])
    @pytest.mark.parametrize("failure", [Lost(), StoreUnavailable("busy"), StoreConflict("deadlock")])
    def test_a_failure_at_any_place_is_raised(self, place: str, failure: Any) -> None:
        """And no turn comes back that would go on behind what may not be stored."""
        script = Script({"keep_poll": [(8,)], "receive": accepted, "reconnect": False} | {place: failure})
        with pytest.raises((StoreUnavailable, StoreConflict)):
            script.run(keep(context(handler()), TURN, ANSWER, PATIENCE))

    def test_the_same_answer_to_the_same_question_only_moves_the_cursor(self) -> None:
        again = Turn(SOURCE, "mine", {"page": 3}, 7, ANSWER.digest(TURN), 0)
        script = Script({"keep_poll": [(7,)]})
        after = script.run(keep(context(handler()), again, ANSWER, PATIENCE))
        assert after is not None
        assert after.number == 7
        assert script.transactions == ["begin keep_poll commit"]

    def test_the_same_answer_to_another_question_is_news(self) -> None:
        """An empty page behind another cursor is another response."""
        asked = Turn(SOURCE, "mine", {"page": 2}, 7, ANSWER.digest(TURN), 0)
        script = Script({"keep_poll": [(8,)], "receive": accepted})
        script.run(keep(context(handler()), asked, ANSWER, PATIENCE))
        assert script.params("receive")

    def test_what_its_producer_names_is_always_stored(self) -> None:
        """The ledger knows whether it is a copy; the name is the producer's."""
        named = Answer("paid", ANSWER.body, {"page": 4}, "evt_1", {"h": "1"})
        same = Turn(SOURCE, "mine", {"page": 3}, 7, named.digest(TURN), 0)
        script = Script({"keep_poll": [(8,)], "receive": accepted})
        script.run(keep(context(handler()), same, named, PATIENCE))
        assert named.delivery(same).id == "evt_1"
        assert script.params("receive")


def test_a_refused_response_is_kept_for_an_operator() -> None:
    """Without the names that the database refused, with the reason."""
    named = Answer("paid", b"x", {"page": 4}, "evt_1", {"h": "1"})
    plain = named.without_names("no such thing " * 100)
    assert (plain.id, plain.body, plain.cursor) == (None, b"x", {"page": 4})
    assert plain.type != "paid"
    assert [len(value) for value in plain.headers.values()] == [300]


@pytest.mark.parametrize(("error", "failures"), [(None, 0), ("HTTP 500", 3)])
def test_a_turn_is_given_back(error: str | None, failures: int) -> None:
    """With one more failure in a row, or none any more."""
    script = Script()
    script.run(end(context(), TURN, timedelta(seconds=5), error))
    given = {"source": 2, "token": "mine", "wait": 5.0, "failures": failures, "error": error}
    assert script.params("end_poll") == [given]
