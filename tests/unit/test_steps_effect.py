"""An external call leaves a trace before it is made and after: what nobody knows is never taken for known."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from onceward.errors import ContractViolation, OutcomeUnknown, StoreUnavailable
from onceward.retry import Retry
from onceward.steps.effect import guarded
from tests.unit.builders import WORKER, context, message
from tests.unit.script import Lost, Script, Turns

INTENT = "begin intend commit"
LOOKED = "begin effect commit"
DONE = "begin effect_done commit"
ONE = message(seq=5)
KEY = ONE.idempotency_key("charge")
FRESH = {"intend": [(KEY,)], "effect_done": [(KEY,)]}


def once(script: Script, call: Callable[[], Any] = lambda: {"id": 1}, *, idempotent: bool | timedelta = False) -> Any:
    return script.run(guarded(context(), WORKER, ONE, "charge", call, idempotent=idempotent))


def never() -> Any:
    raise AssertionError("it must not be called")


def test_the_intent_is_committed_before_the_call_and_the_result_after() -> None:
    """Three moments, no transaction open while the other side is asked."""
    script = Script(FRESH)
    assert once(script) == {"id": 1}
    assert script.transactions == [INTENT, "do", DONE]
    assert script.params("intend") == [{"key": KEY, "seq": 5, "name": "charge", "worker": WORKER}]
    assert script.params("effect_done") == [{"key": KEY, "result": '{"id":1}'}]


@pytest.mark.parametrize(("stored", "expected"), [('{"id":1}', {"id": 1}), ("null", None), (None, None)])
def test_a_retry_gets_the_record(stored: str | None, expected: Any) -> None:
    """What was done is not done again."""
    script = Script({"intend": [], "effect": [(1, stored, 9e9)]})
    assert once(script, never) == expected
    assert script.transactions == [INTENT, LOOKED]


def test_begun_but_not_done_is_unknown() -> None:
    """Nobody calls again by themselves; the error says what a person has to do."""
    script = Script({"intend": [], "effect": [(0, None, 1.0)]})
    with pytest.raises(OutcomeUnknown, match=r"'charge' of message 'e1'.*settle_effect.*redrive"):
        once(script, never)


@pytest.mark.parametrize("idempotent", [False, True])
def test_an_intent_taken_away_between_the_two_looks_is_recorded_anew(idempotent: bool) -> None:  # noqa: FBT001
    """An operator said that it did not happen: it may be called, but never without an intent of its own."""
    script = Script({"intend": Turns([], [(KEY,)]), "effect": [], "effect_done": [(KEY,)]})
    assert once(script, idempotent=idempotent) == {"id": 1}
    assert script.transactions == [INTENT, LOOKED, INTENT, "do", DONE]


@pytest.mark.parametrize(("idempotent", "age"), [(True, 86_399), (timedelta(minutes=1), 59), (timedelta(days=9), 9e4)])
def test_an_idempotent_call_is_made_again(idempotent: bool | timedelta, age: float) -> None:  # noqa: FBT001
    """The other side tells repetitions by the key."""
    script = Script({"intend": [], "effect": [(0, None, age)], "effect_done": [(KEY,)]})
    assert once(script, idempotent=idempotent) == {"id": 1}
    assert script.transactions == [INTENT, LOOKED, "do", DONE]


@pytest.mark.parametrize(
    ("idempotent", "age"),
    [(True, 86_400), (timedelta(minutes=1), 60), (timedelta(0), 0.0), (False, -56.0), (True, -56.0)],
)
def test_a_key_that_may_be_forgotten_is_no_protection(idempotent: bool | timedelta, age: float) -> None:  # noqa: FBT001
    """Beyond the memory of the other side a repetition would be a second call: a person decides."""
    script = Script({"intend": [], "effect": [(0, None, age)]})
    with pytest.raises(OutcomeUnknown, match="settle_effect"):
        once(script, never, idempotent=idempotent)


def test_retry_means_that_it_did_not_happen() -> None:
    """The intent is taken back, so that the next attempt may call; the signal goes on."""
    script = Script({**FRESH, "effect_undone": [(KEY,)]})

    def busy() -> Any:
        raise Retry("busy")

    with pytest.raises(Retry, match="busy"):
        once(script, busy)
    assert script.transactions == [INTENT, "do", "begin effect_undone commit"]


def test_any_other_error_leaves_the_outcome_open() -> None:
    """A timeout may have happened on the other side: the intent stays."""
    script = Script(FRESH)

    def slow() -> Any:
        raise TimeoutError("no answer")

    with pytest.raises(TimeoutError):
        once(script, slow)
    assert script.transactions == [INTENT, "do"]


def test_a_result_that_cannot_be_recorded() -> None:
    """It has happened, so it is recorded as done; the handler hears that its result is lost."""
    script = Script(FRESH)
    with pytest.raises(ContractViolation, match="It has happened, but its result is lost"):
        once(script, object)
    assert script.params("effect_done") == [{"key": KEY, "result": "null"}]


@pytest.mark.parametrize("value", ["\x00", {"a": ["\x00"]}, {1: "a", "1": "b"}])
def test_a_result_that_is_recorded_can_be_read(value: Any) -> None:
    """A retry gets the record, so what could not be read back is not recorded as if it could."""
    script = Script(FRESH)
    with suppress(ContractViolation):
        once(script, lambda: value)
    (stored,) = script.params("effect_done")
    again = Script({"intend": [], "effect": [(1, stored["result"], 1.0)]})
    once(again, never)


@pytest.mark.parametrize("commit", [Lost(), Turns([], Lost())])
def test_a_lost_answer_is_never_a_result(commit: Any) -> None:
    """Neither a call without a committed intent, nor a result without a committed record."""
    calls: list[int] = []
    script = Script({**FRESH, "commit": commit})
    with pytest.raises(StoreUnavailable):
        once(script, lambda: calls.append(1))
    assert calls == ([] if isinstance(commit, Lost) else [1])
