"""The decision about a failed message is written under its claim, with the row of the attempt, or not at all."""

from __future__ import annotations

import secrets
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.errors import BlobsUnavailable, StoreConflict, StoreUnavailable
from onceward.retry import Again, Dead, Reject, Retry, RetryPolicy
from onceward.steps.group import failure_of
from onceward.steps.rows import MAX_ERROR, MAX_TRACEBACK, attempt_row, storable
from onceward.steps.settle import postpone, settle, state_of, unclaim
from tests.unit.builders import WORKER, claimed, context, handler, lane
from tests.unit.script import Lost, Script

LANE = lane(context(handler()))
CLAIM = {"worker": WORKER, "token": 1}


def raised(error: BaseException) -> BaseException:
    """An error with a traceback, as a handler's is."""
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


class TestSettle:
    """A charged attempt."""

    def test_again(self) -> None:
        """Due after the delay, under the claim, with the row of the attempt in the same commit."""
        script = Script({"settle": [(5,)]})
        script.run(settle(LANE, failure_of(claimed(5, handler(), attempts=2), raised(Retry("busy", after=9)))))
        assert script.transactions == ["begin settle add_attempt commit"]
        assert script.params("settle") == [{"seq": 5, **CLAIM, "state": "retry", "delay": 9.0, "detach": False}]
        (attempt,) = script.params("add_attempt")
        assert attempt["error"] == "Retry: busy"
        assert "raise error" in attempt["traceback"]
        assert (attempt["seq"], attempt["attempt"], attempt["kind"], attempt["charged"]) == (5, 3, "error", True)
        assert (attempt["worker"], attempt["code_version"]) == (WORKER, "v1")

    def test_dead(self) -> None:
        """A rejected message is dead at once."""
        script = Script({"settle": [(5,)]})
        script.run(settle(LANE, failure_of(claimed(5, handler()), raised(Reject("no such order")))))
        assert script.params("settle") == [{"seq": 5, **CLAIM, "state": "dead", "delay": None, "detach": False}]
        assert script.params("add_attempt")[0]["error"] == "Reject: no such order"

    def test_the_last_attempt(self) -> None:
        """The budget is the handler's, counted from what is stored, and the attempt says that it is used up."""
        by = handler(retry=RetryPolicy(attempts=3))
        script = Script({"settle": [(5,)]})
        script.run(settle(LANE, failure_of(claimed(5, by, attempts=1), ValueError("x"))))
        assert script.params("settle")[0]["state"] == "retry"
        script = Script({"settle": [(5,)]})
        script.run(settle(LANE, failure_of(claimed(5, by, attempts=2), ValueError("x"))))
        assert script.params("settle")[0]["state"] == "dead"
        assert script.params("add_attempt")[0]["error"] == "ValueError: x (failed 3 times, which is its budget)"

    def test_without_a_handler_the_default_policy_decides(self) -> None:
        """A version nobody handles still has a policy."""
        nobody = replace(claimed(5, handler(), problem=ValueError("x")), handler=None)
        script = Script({"settle": [(5,)]})
        script.run(settle(LANE, failure_of(nobody, ValueError("x"))))
        assert script.params("settle")[0]["state"] == "retry"

    def test_a_lost_claim_writes_nothing(self) -> None:
        """Another worker has the message: no attempt is charged to it, and nothing of this one stays."""
        script = Script({"settle": []})
        script.run(settle(LANE, failure_of(claimed(5, handler()), ValueError("x"))))
        assert script.transactions == ["begin settle add_attempt rollback"]

    @pytest.mark.parametrize("failure", [Lost(), StoreConflict("deadlock")])
    @pytest.mark.parametrize("place", ["settle", "add_attempt", "commit"])
    def test_a_failure_comes_out(self, place: str, failure: Any) -> None:
        """What is not committed was not charged."""
        script = Script({"settle": [(5,)], place: failure})
        with pytest.raises((StoreUnavailable, StoreConflict)):
            script.run(settle(LANE, failure_of(claimed(5, handler()), ValueError("x"))))

    @pytest.mark.parametrize("base", [Exception, Reject])
    def test_an_error_that_cannot_be_printed_is_recorded_all_the_same(self, base: type[Exception]) -> None:
        """A handler's exception with a broken `__str__` is charged like any other; it must not stop the worker."""

        class Mute(base):  # type: ignore[misc,valid-type] # each base in turn
            def __str__(self) -> str:
                raise RuntimeError("cannot be printed")

        script = Script({"settle": [(5,)]})
        script.run(settle(LANE, failure_of(claimed(5, handler()), raised(Mute("x")))))
        assert "Mute" in script.params("add_attempt")[0]["error"]


class TestGoingOn:
    """A dead message of a handler with on_dead="continue" leaves its key."""

    BY = handler(key="order", on_dead="continue")

    def test_the_key_goes_on_without_it(self) -> None:
        """Under the key lock: its number is given up, it is dead and detached, and the next one is promoted."""
        script = Script({"settle": [(5,)]})
        script.run(settle(LANE, failure_of(claimed(5, self.BY, key=70), Reject("no"))))
        assert [name for name in script.transactions[0].split() if name != "advance"] == (
            ["begin", "lock_keys", "settle", "promote", "add_attempt", "commit"]
        )
        assert script.params("settle")[0] == {"seq": 5, **CLAIM, "state": "dead", "delay": None, "detach": True}
        assert script.params("lock_keys") == script.params("promote") == [{"key_hashes": [70]}]
        assert script.params("advance") == [{"seqs": [5]}]

    @pytest.mark.parametrize(
        ("key", "by", "error"),
        [
            (None, BY, Reject("no")),
            (70, BY, ValueError("again")),
            (70, handler(key="order"), Reject("no")),
        ],
    )
    def test_otherwise_it_stays(self, key: int | None, by: Any, error: Exception) -> None:
        """Without a key, while it is tried again, or where a dead one blocks, nothing of that happens."""
        script = Script({"settle": [(5,)]})
        script.run(settle(LANE, failure_of(claimed(5, by, key=key), error)))
        assert script.transactions == ["begin settle add_attempt commit"]
        assert script.params("settle")[0]["detach"] is False

    def test_a_lost_claim_gives_nothing_up(self) -> None:
        """Another worker has the message: its number must not be passed over, or it would be skipped as stale."""
        script = Script({"settle": []})
        script.run(settle(LANE, failure_of(claimed(5, self.BY, key=70, sequence=3), Reject("no"))))
        committed = [line for line in script.transactions if line.endswith("commit")]
        assert not any("advance" in line or "promote" in line or "add_attempt" in line for line in committed)


class TestPostpone:
    """The database was at fault."""

    def test_it_is_tried_again_soon_and_uncharged(self) -> None:
        """One guarded statement, no attempt, a short random delay."""
        delays = set()
        for _ in range(20):
            script = Script()
            script.run(postpone(LANE, claimed(5, handler(), attempts=9), ValueError("x")))
            assert script.transactions == ["begin postpone commit"]
            (params,) = script.params("postpone")
            delays.add(params.pop("delay"))
            assert params == {"seq": 5, **CLAIM, "longest": 60.0, "most": 10}
        assert all(0.05 <= delay <= 1 for delay in delays)
        assert len(delays) > 10

    def test_one_that_was_postponed_too_often_is_charged(self) -> None:
        """D23: the statement takes no more; unless the blob store is away, which says nothing about one message."""
        script = Script({"postpone": [], "settle": [(5,)]})
        script.run(postpone(LANE, claimed(5, handler()), StoreUnavailable("away")))
        assert script.transactions == ["begin postpone commit", "begin settle add_attempt commit"]
        script = Script()
        script.run(postpone(LANE, claimed(5, handler()), BlobsUnavailable("away")))
        assert script.params("postpone")[0]["most"] is None

    def test_one_that_is_too_old_is_settled(self) -> None:
        """Not for ever: at its maximum age it is dead, with its attempt."""
        old = claimed(5, handler(retry=RetryPolicy(max_age=timedelta(seconds=60))), age=60.0)
        script = Script({"settle": [(5,)]})
        script.run(postpone(LANE, old, StoreUnavailable("away")))
        assert script.params("settle")[0]["state"] == "dead"
        assert "maximum age" in script.params("add_attempt")[0]["error"]

    @pytest.mark.parametrize("by", [handler(), None])
    def test_without_a_maximum_age_it_is_charged_some_day(self, by: Any) -> None:
        """Not for ever either: after days of it the database counts as any other error."""
        for age, statements in ((3 * 86400.0 - 1, "postpone"), (3 * 86400.0, "settle add_attempt")):
            script = Script({"settle": [(5,)]})
            script.run(postpone(LANE, replace(claimed(5, handler(), age=age), handler=by), StoreUnavailable("away")))
            assert script.transactions == [f"begin {statements} commit"]


def test_unclaim_gives_back_uncharged() -> None:
    """Under their claim, in one trip; nothing to unclaim is no trip."""
    script = Script()
    script.run(unclaim(LANE, [claimed(5, handler()), claimed(6, handler())]))
    assert script.transactions == ["begin unclaim commit"]
    assert script.params("unclaim") == [{"seqs": [5, 6], **CLAIM}]
    script.run(unclaim(LANE, []))
    assert len(script.trips) == 1


def test_a_decision_as_a_state() -> None:
    """Only a retry has a due time."""
    assert state_of(Again(timedelta(seconds=2.5))) == ("retry", 2.5)
    assert state_of(Dead("x")) == ("dead", None)


@given(st.text(st.characters(), max_size=30))
def test_any_text_can_be_stored(text: str) -> None:
    """No NUL, no half characters; ordinary text stays as it is."""
    kept = storable(text)
    assert "\x00" not in kept
    assert kept.encode().decode() == kept
    if "\x00" not in text and not any("\ud800" <= each <= "\udfff" for each in text):
        assert kept == text


@given(st.text(st.characters(), max_size=40), st.integers(1, 400))
def test_an_attempt_row_is_short_and_storable(text: str, times: int) -> None:
    """However long the error is, the beginning of its text and the end of its traceback are kept."""
    error = raised(ValueError(text * times))
    row = attempt_row(LANE.context, 5, attempt=1, error=error, decision=Dead("budget"), worker=WORKER)
    traceback = row["traceback"] or ""
    assert len(row["error"]) <= MAX_ERROR
    assert 0 < len(traceback) <= MAX_TRACEBACK
    assert row["error"].startswith("ValueError: ")
    for part in (row["error"], traceback):
        assert "\x00" not in part
        part.encode()


def test_an_attempt_row_has_no_local_variables() -> None:
    """A traceback shows lines of code, not the values in them, which may be secrets."""
    secret = secrets.token_hex(16)

    def handle(card_number: str) -> None:
        raise ValueError(f"declined, {len(card_number)} digits")

    with pytest.raises(ValueError, match="declined") as caught:
        handle(secret)
    row = attempt_row(LANE.context, 5, attempt=1, error=caught.value, decision=Dead("x"), worker=WORKER)
    traceback = row["traceback"] or ""
    assert secret not in row["error"] + traceback
    assert "handle(secret)" in traceback


def test_the_reason_is_not_repeated() -> None:
    """Where the error says it already, the reason is left out."""
    row = attempt_row(LANE.context, 5, attempt=1, error=Reject("no"), decision=Dead("no"), worker=WORKER)
    assert row["error"] == "Reject: no"
