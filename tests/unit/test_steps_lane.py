"""A suspect runs alone; a lane knows which claims are open; a claimed row becomes a message or a problem."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.errors import HandlerNotFound, InvalidMessage
from onceward.flow import Call
from onceward.message import Message
from onceward.steps.lane import Gate
from onceward.steps.lane import PASS, Claimed, Lane, Verdict
from onceward.steps.lane import claimed as claimed_row
from tests.unit.builders import NOW, SERVICE, WORKER, claim_row, claimed, context, handler, lane, stored_headers

A, B, C = "a", "b", "c"


def read(here: Lane, token: int, row: tuple[Any, ...], verdict: Verdict = PASS) -> Claimed:
    return claimed_row(here, token, row, verdict)


class TestGate:
    """Others, or one alone."""

    def test_others_go_in_together(self) -> None:
        """Without a suspect nobody waits, and going in twice is going in."""
        gate = Gate()
        assert gate.enter(A)
        assert gate.enter(B)
        assert gate.enter(A)
        assert not gate.closed

    def test_alone_means_that_all_others_are_out(self) -> None:
        """Whoever asks first closes the gate, and is alone as soon as the last of the others has left."""
        gate = Gate()
        gate.enter(A)
        gate.enter(B)
        assert not gate.enter_alone(C)
        assert gate.closed
        gate.leave(A)
        assert not gate.enter_alone(C)
        gate.leave(B)
        assert gate.enter_alone(C)
        assert not gate.enter(A)
        assert not gate.enter_alone(B)
        gate.leave(C)
        assert not gate.closed
        assert gate.enter(A)

    def test_one_who_is_inside_may_stay_alone(self) -> None:
        """Its own presence is no obstacle."""
        gate = Gate()
        gate.enter(A)
        assert gate.enter_alone(A)
        assert not gate.enter(A)
        gate.leave(A)
        assert gate.enter(B)

    def test_the_wish_can_be_withdrawn(self) -> None:
        """Leaving opens the gate again, also for one who never came in; a stranger's leaving does not."""
        gate = Gate()
        gate.enter(A)
        assert not gate.enter_alone(B)
        gate.leave(C)
        assert gate.closed
        gate.leave(B)
        assert not gate.closed
        assert gate.enter(C)

    def test_only_one_is_alone(self) -> None:
        """Two suspects: the second waits until the first has left."""
        gate = Gate()
        assert gate.enter_alone(A)
        assert not gate.enter_alone(B)
        gate.leave(A)
        assert gate.enter_alone(B)

    @given(
        st.lists(
            st.tuples(st.sampled_from(["enter", "enter_alone", "leave"]), st.sampled_from([A, B, C])), max_size=40
        )
    )
    def test_whatever_happens_alone_is_alone(self, moves: list[tuple[str, str]]) -> None:
        """After any history: nobody is granted entry while somebody is alone, and all leaving opens the gate."""
        gate = Gate()
        inside: set[str] = set()
        alone: str | None = None
        for move, who in moves:
            granted = getattr(gate, move)(who)
            if move == "leave":
                inside.discard(who)
                alone = None if alone == who else alone
            elif move == "enter" and granted:
                assert alone is None
                inside.add(who)
            elif granted:
                assert inside <= {who}
                assert alone in (None, who)
                alone = who
        for who in (A, B, C):
            gate.leave(who)
        assert not gate.closed
        assert gate.enter(A)

    def test_threads_agree(self) -> None:
        """With many threads at once, nobody is ever inside together with one who is alone."""
        gate, inside, faults = Gate(), set[int](), list[str]()
        alone_runs = [0]

        def visit(me: int) -> None:
            chance = random.Random(me)
            for _ in range(25):
                if chance.random() < 0.25:
                    while not gate.enter_alone(me):
                        time.sleep(0)
                    if inside - {me}:
                        faults.append(f"{me} is alone with {inside}")
                    alone_runs[0] += 1
                else:
                    while not gate.enter(me):
                        time.sleep(0)
                inside.add(me)
                time.sleep(0)
                inside.discard(me)
                gate.leave(me)

        threads = [threading.Thread(target=visit, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads), "the gate is stuck"
        assert faults == []
        assert alone_runs[0] > 0
        assert not gate.closed


class TestLane:
    """What a lane holds."""

    def test_a_token_is_open_from_the_start(self) -> None:
        """It is remembered before it is ever sent, and each is new."""
        here = lane(context(handler()))
        assert [here.token(), here.token()] == [1, 2]
        assert here.open_tokens == {1, 2}

    def test_the_largest_group_is_that_of_its_handlers(self) -> None:
        """A lane claims as much as its most generous handler allows; without handlers one at a time."""
        assert lane(context(handler(group=5), handler("sent", group=30))).largest_group == 30
        assert lane(context()).largest_group == 1
        alone = lane(context(handler(group=5)))
        alone.subscriptions = [*lane(context(strangers=(handler(consumer="mail", group=50),))).subscriptions, *alone.subscriptions]
        assert alone.largest_group == 5

    def test_order_within_a_key(self) -> None:
        """A message follows another only in the same key, and only a later one an earlier one."""
        by = handler()
        first, second, other, free = claimed(1, by, key=7), claimed(2, by, key=7), claimed(3, by, key=8), claimed(4, by)
        assert second.follows(first)
        assert not first.follows(second)
        assert not first.follows(first)
        assert not other.follows(first)
        assert not free.follows(claimed(3, by))

    def test_what_a_claim_knows_of_its_handler(self) -> None:
        """Group and time limit come from the handler; without one it runs with nobody and not at all."""
        good = claimed(1, handler(group=5, timeout=9))
        assert (good.group, good.timeout) == (5, 9.0)
        assert isinstance(good.request, Call)
        bad = read(lane(context(handler())), 1, claim_row(1, version=9))
        assert (bad.group, bad.timeout) == (1, 0.0)
        with pytest.raises(AssertionError, match="never run"):
            _ = bad.request


def key_that_fails(message: Message) -> Any:
    raise LookupError(f"no key in {message.id}")


class TestRead:
    """A claimed row becomes what its handler will see, or says why it cannot."""

    def test_the_message_is_complete(self) -> None:
        """Every field of the row arrives, and the attempt is the next one."""
        here = lane(context(handler()))
        row = claim_row(5, hashed=77, attempts=2, headers='{"a":"b"}', age=3.5, body=memoryview(b'{"order":8}'))
        one = read(here, 4, row)
        assert (one.seq, one.worker, one.token, one.key_hash, one.attempts, one.age) == (5, WORKER, 4, 77, 2, 3.5)
        assert one.problem is None
        message = one.request.message
        assert (message.id, message.source, message.type, message.version) == ("e5", "shop", "paid", 1)
        assert (message.data, message.body, dict(message.headers)) == ({"order": 8}, b'{"order":8}', {"a": "b"})
        assert (message.seq, message.attempt, message.consumer) == (5, 3, SERVICE)
        assert int(message.received_at.timestamp() * 1e6) == NOW

    def test_a_version_nobody_handles_is_a_problem(self) -> None:
        """It is claimed, so that its failure is recorded; it has no handler and no call."""
        one = read(lane(context(handler())), 1, claim_row(5, version=9))
        assert isinstance(one.problem, HandlerNotFound)
        assert (one.handler, one.call) == (None, None)

    def test_a_body_that_cannot_be_read_is_a_problem(self) -> None:
        """Its handler is known, for the retry policy; a raw handler has no such problem."""
        one = read(lane(context(handler())), 1, claim_row(5, body=b"{"))
        assert isinstance(one.problem, InvalidMessage)
        assert one.handler is not None
        assert read(lane(context(handler(raw=True))), 1, claim_row(5, body=b"{")).problem is None

    def test_a_key_function_that_fails_is_a_problem(self) -> None:
        """It failed at receive too, which is why there is no key; here the reason is recorded."""
        here = lane(context(handler(key=key_that_fails)))
        assert isinstance(read(here, 1, claim_row(5)).problem, LookupError)

    def test_a_key_function_is_not_called_when_there_is_a_key(self) -> None:
        """The key was decided at receive."""
        here = lane(context(handler(key=key_that_fails)))
        assert read(here, 1, claim_row(5, hashed=77, key="k")).problem is None

    @pytest.mark.parametrize("value", [object(), {1, 2}, float("nan"), b"k"])
    def test_a_key_that_cannot_be_text_is_a_problem(self, value: Any) -> None:
        """A key function whose answer could not be stored failed at receive; the message must not run unordered."""
        here = lane(context(handler(key=lambda _: value)))
        assert read(here, 1, claim_row(5)).problem is not None

    def test_a_key_function_that_finds_nothing_is_fine(self) -> None:
        """No key is an answer."""
        assert read(lane(context(handler(key=lambda _: None))), 1, claim_row(5)).problem is None

    @pytest.mark.parametrize("headers", [{"trace": "a\x00b"}, {"\x00": ""}, {"a": "\ud800"}])
    def test_headers_that_were_accepted_are_no_problem(self, headers: dict[str, str]) -> None:
        """Whatever headers were stored read again; those that could not are refused before."""
        stored = stored_headers(headers)
        assert stored is None or read(lane(context(handler())), 1, claim_row(5, headers=stored)).problem is None
