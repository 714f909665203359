"""Isolated messages run apart or alone; a lane knows its open claims; a claimed row becomes a message or a problem."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from onceward.errors import HandlerNotFound, InvalidMessage, OutcomeUnknown
from onceward.flow import Call, Outcome
from onceward.message import Message
from onceward.retry import VersionGap
from onceward.steps.isolation import Isolation
from onceward.steps.lane import Claimed, Lane, open_tokens
from onceward.steps.lane import claimed as claimed_row
from onceward.stores.moves.claims import PASS, ClaimedRow, Verdict
from tests.unit.builders import NOW, SERVICE, WORKER, claim_row, claimed, context, handler, lane, relay, stored_headers

A, B, C = "a", "b", "c"


def read(here: Lane, token: int, row: tuple[Any, ...], verdict: Verdict = PASS) -> Claimed:
    return claimed_row(here, token, ClaimedRow._make(row), verdict)


def closed(isolation: Isolation) -> bool:
    """As the property, asked anew each time."""
    return isolation.closed


def test_a_process_knows_the_claims_of_all_its_lanes() -> None:
    """Of those inside, one that is alone, too; what only waits there has none."""
    isolation = Isolation()
    one, two, three = (lane(context(handler()), isolation=isolation) for _ in range(3))
    for number, here in enumerate((one, two, three)):
        here.open_tokens |= {number, number + 10}
    isolation.enter(one)
    isolation.enter("another")
    assert open_tokens(isolation) == {0, 10}
    isolation.leave(one)
    isolation.leave("another")
    isolation.enter_alone(two)
    assert open_tokens(isolation) == {1, 11}


class TestIsolation:
    """Others, or one alone."""

    def test_others_go_in_together(self) -> None:
        """Without an isolated message nobody waits, and going in twice is going in."""
        isolation = Isolation()
        assert isolation.enter(A)
        assert isolation.enter(B)
        assert isolation.enter(A)
        assert not closed(isolation)

    def test_alone_means_that_all_others_are_out(self) -> None:
        """Whoever asks first keeps others out, and is alone as soon as the last of the others has left."""
        isolation = Isolation()
        isolation.enter(A)
        isolation.enter(B)
        assert not isolation.enter_alone(C)
        assert closed(isolation)
        isolation.leave(A)
        assert not isolation.enter_alone(C)
        isolation.leave(B)
        assert isolation.enter_alone(C)
        assert not isolation.enter(A)
        assert not isolation.enter_alone(B)
        isolation.leave(C)
        assert not closed(isolation)
        assert isolation.enter(A)

    def test_whoever_is_inside_may_stay(self) -> None:
        """One that asks again while another waits to be alone is what that one waits for."""
        isolation = Isolation()
        isolation.enter(A)
        assert not isolation.enter_alone(B)
        assert isolation.enter(A)
        assert not isolation.enter(C)
        isolation.leave(A)
        assert isolation.enter_alone(B)

    def test_one_who_is_inside_may_stay_alone(self) -> None:
        """Its own presence is no obstacle."""
        isolation = Isolation()
        isolation.enter(A)
        assert isolation.enter_alone(A)
        assert not isolation.enter(A)
        isolation.leave(A)
        assert isolation.enter(B)

    def test_the_wish_can_be_withdrawn(self) -> None:
        """Leaving lets others enter again, also for one who never came in; a stranger's leaving does not."""
        isolation = Isolation()
        isolation.enter(A)
        assert not isolation.enter_alone(B)
        isolation.leave(C)
        assert closed(isolation)
        isolation.leave(B)
        assert not closed(isolation)
        assert isolation.enter(C)

    def test_one_of_a_kind_has_isolated_ones(self) -> None:
        """The others come and go meanwhile; nobody has isolated messages beside one who is alone."""
        isolation = Isolation()
        assert isolation.enter_with_isolated(A, "sync")
        assert not isolation.enter_with_isolated(B, "sync")
        assert isolation.enter_with_isolated(C, "async")
        assert isolation.enter(B)
        assert not closed(isolation)
        isolation.leave(A)
        assert isolation.enter_with_isolated(B, "sync")
        isolation.leave(B)
        assert not isolation.enter_alone(A)
        assert not isolation.enter_with_isolated(B, "sync")
        isolation.leave(C)
        assert isolation.enter_alone(A)

    def test_only_one_is_alone(self) -> None:
        """Two isolated messages: the second waits until the first has left."""
        isolation = Isolation()
        assert isolation.enter_alone(A)
        assert not isolation.enter_alone(B)
        isolation.leave(A)
        assert isolation.enter_alone(B)

    @given(
        st.lists(
            st.tuples(
                st.sampled_from(["enter", "enter_with_isolated", "enter_alone", "leave"]), st.sampled_from([A, B, C])
            ),
            max_size=40,
        )
    )
    def test_whatever_happens_alone_is_alone(self, moves: list[tuple[str, str]]) -> None:
        """After any history: nobody is granted entry while somebody is alone, and all leaving lets others in."""
        isolation = Isolation()
        inside: set[str] = set()
        with_isolated: set[str] = set()
        alone: str | None = None
        for move, who in moves:
            granted = getattr(isolation, move)(*(who, "kind") if move == "enter_with_isolated" else (who,))
            if move == "leave":
                inside.discard(who)
                alone = None if alone == who else alone
                with_isolated.discard(who)
            elif move in ("enter", "enter_with_isolated") and granted:
                assert alone is None
                inside.add(who)
                if move == "enter_with_isolated":
                    assert not with_isolated
                    with_isolated.add(who)
            elif granted:
                assert inside <= {who}
                assert alone in (None, who)
                alone = who
        for who in (A, B, C):
            isolation.leave(who)
        assert not closed(isolation)
        assert isolation.enter(A)

    def test_threads_agree(self) -> None:
        """With many threads at once, nobody is ever inside together with one who is alone."""
        isolation, inside, faults = Isolation(), set[int](), list[str]()
        alone_runs = [0]

        def visit(me: int) -> None:
            chance = random.Random(me)
            for _ in range(25):
                if chance.random() < 0.25:
                    while not isolation.enter_alone(me):
                        time.sleep(0)
                    if inside - {me}:
                        faults.append(f"{me} is alone with {inside}")
                    alone_runs[0] += 1
                else:
                    while not isolation.enter(me):
                        time.sleep(0)
                inside.add(me)
                time.sleep(0)
                inside.discard(me)
                isolation.leave(me)

        threads = [threading.Thread(target=visit, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads), "the isolation is stuck"
        assert faults == []
        assert alone_runs[0] > 0
        assert not closed(isolation)


class TestLane:
    """What a lane holds."""

    def test_a_token_is_open_from_the_start(self) -> None:
        """It is remembered before it is ever sent, and each is new."""
        here = lane(context(handler()))
        assert [here.token(), here.token()] == [1, 2]
        assert here.open_tokens == {1, 2}

    def test_a_lot_for_each_size_of_groups(self) -> None:
        """Those who want groups of one size are claimed together; others, and who takes a group in one call, apart."""
        here = lane(context(handler(group=5), handler("sent", group=30), handler("seen", group=5)))
        assert [(lot.size, [one.type for one in lot.subscriptions]) for lot in here.lots] == [
            (5, ["paid", "seen"]),
            (30, ["sent"]),
        ]
        apart = lane(context(handler(group=7), handler("sent", group=7, batch=True)))
        assert [(lot.size, lot.steady) for lot in apart.lots] == [(7, False), (7, True)]
        keyed = handler(group=7, key="k"), handler("sent", group=1, key="k"), handler("seen", group=7)
        assert [(lot.size, [one.type for one in lot.subscriptions]) for lot in lane(context(*keyed)).lots] == [
            (7, ["paid", "sent"]),
            (7, ["seen"]),
        ], "they may share keys"
        assert lane(context()).lots == []

    def test_lots_come_in_turn(self) -> None:
        """Also when another thread replaces them meanwhile."""
        here = lane(context(handler(group=5), handler("sent", group=30)))
        first, second = here.lots
        for lots in ([first, second], [second, first], [first, second]):
            assert here.lots_in_turn() == lots
            here.turn += 1
        here.serve(here.subscriptions[:1])
        assert here.lots_in_turn() == [], "of those nobody knows yet whether they have something"
        assert here.looks_around()
        here.serve([])
        assert here.lots_in_turn() == []
        assert not here.looks_around()

    def test_an_empty_lot_rests_for_a_moment(self) -> None:
        """A look for it reads through the backlog of the others."""
        here = lane(context(handler(group=5), handler("sent", group=30)))
        (empty, full), now = here.lots, here.context.clock()
        empty.rest(now, now, is_empty=True)
        assert here.lots_in_turn() == [full]
        assert not here.looks_around()
        here.context.clock.now += 1.0  # type: ignore[attr-defined] # the clock of tests
        assert here.looks_around()
        empty.rest(now, now, is_empty=False)
        assert here.lots_in_turn() == [empty, full]
        assert not here.looks_around()

    @pytest.mark.parametrize(
        ("seconds", "has_backlog", "light", "key", "size"),
        [
            (0.0, True, True, None, 500),
            (0.0001, True, True, None, 500),
            (0.0005, True, True, None, 200),
            (0.0015, True, True, None, 100),
            (0.1, True, True, None, 2),
            (5.0, True, True, None, 1),
            (0.0, False, True, None, 100),
            (0.0, True, False, None, 100),
            (0.0, True, True, "k", 100),
        ],
    )
    def test_how_many_a_claim_takes(
        self, seconds: float, *, has_backlog: bool, light: bool, key: str | None, size: int
    ) -> None:
        """What fits into a fifth of a second, up to a group; of a backlog of quick and small ones several groups.

        Those are no more than fits into half of that, where nobody need be asked for a share. A key takes a lock.
        """
        here = lane(context(handler(group=100, key=key)))
        here.serve(here.subscriptions)
        (lot,) = here.lots
        assert (lot.size, lot.is_shared) == (100, True), "nobody knows yet how long they take"
        lot.measured(seconds * 100, 100)
        lot.has_backlog, lot.is_light = has_backlog, light
        assert lot.size == size
        assert lot.is_shared is (size * seconds > lot.seconds / 2)

    def test_order_within_a_key(self) -> None:
        """A message follows another only in the same key, and only a later one an earlier one."""
        by = handler()
        first, second, other, free = claimed(1, by, key=7), claimed(2, by, key=7), claimed(3, by, key=8), claimed(4, by)
        assert second.follows(first)
        assert not first.follows(second)
        assert not first.follows(first)
        assert not other.follows(first)
        assert not free.follows(claimed(3, by))

    def test_order_within_a_key_is_by_place(self) -> None:
        """A number or position decides; arrival only where places are equal."""
        by = handler()
        late, early = claimed(1, by, key=7, place=9), claimed(2, by, key=7, place=3)
        assert late.follows(early)
        assert not early.follows(late)
        assert claimed(4, by, key=7, place=3).follows(early)

    def test_what_a_claim_knows_of_its_handler(self) -> None:
        """Time limit, and what happens to its key, come from the handler; without one it is not run at all."""
        good = claimed(1, handler(timeout=9, on_dead="continue"))
        assert (good.timeout, good.continues, good.external) == (9.0, True, False)
        assert isinstance(good.request, Call)
        bad = read(lane(context(handler())), 1, claim_row(1, version=9))
        assert (bad.timeout, bad.continues, bad.external) == (60.0, False, False)
        with pytest.raises(AssertionError, match="never run"):
            _ = bad.request

    def test_who_may_share_a_transaction(self) -> None:
        """As many as both handlers allow; a handler that takes a batch shares with its own only."""
        many, few, batch = handler(group=9), handler("few", group=2), handler("batch", batch=True, group=3)
        assert claimed(2, many).may_join(claimed(1, many), 9)
        assert not claimed(2, many).may_join(claimed(1, many), 10)
        assert claimed(2, few).may_join(claimed(1, many), 2)
        assert not claimed(2, few).may_join(claimed(1, many), 3)
        assert not claimed(2, many).may_join(claimed(1, few), 3)
        assert claimed(2, batch).may_join(claimed(1, batch), 3)
        assert not claimed(2, batch).may_join(claimed(1, many), 2)
        assert not claimed(2, many).may_join(claimed(1, batch), 2)
        nobody = replace(claimed(3, many), handler=None)
        assert not nobody.may_join(claimed(1, many), 2)
        assert not claimed(1, many).may_join(nobody, 2)

    def test_an_unknown_effect_counts_though_it_was_swallowed(self) -> None:
        """A handler that caught it and returned has still failed; the next call begins afresh."""
        here = lane(context(handler()))
        here.begin_call()
        assert here.end_call(Outcome(value=1)) == Outcome(value=1)
        here.unknown = "nobody knows"
        ended = here.end_call(Outcome(value=1))
        assert isinstance(ended.error, OutcomeUnknown)
        here.begin_call()
        assert here.end_call(Outcome()).error is None


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
        """It is claimed, so that its failure is recorded; its type's policy holds, and there is no call."""
        one = read(lane(context(handler())), 1, claim_row(5, version=9))
        assert isinstance(one.problem, HandlerNotFound)
        assert (one.handler is not None, one.call) == (True, None)

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

    def test_a_message_without_its_number_is_a_problem(self) -> None:
        """Where the handler counts, one without a number cannot be placed."""
        here = lane(context(handler(key="order", sequence="n")))
        assert isinstance(read(here, 1, claim_row(5, hashed=7, key="k")).problem, InvalidMessage)
        assert isinstance(read(here, 1, claim_row(5, hashed=7, key="k", sequence=0)).problem, InvalidMessage)
        assert read(here, 1, claim_row(5, hashed=7, key="k", sequence=1)).problem is None

    def test_a_message_that_waited_too_long_is_a_problem(self) -> None:
        """The number before it did not come: dead, with the reason."""
        here = lane(context(handler(key="order", sequence="n")))
        late = read(here, 1, claim_row(5, hashed=7, key="k", sequence=4), Verdict(late="number 3 did not come"))
        assert isinstance(late.problem, VersionGap)
        stale = read(here, 1, claim_row(5, hashed=7, key="k", sequence=4), Verdict(stale=True))
        assert (stale.problem, stale.stale) == (None, True)

    def test_an_old_version_is_brought_up_to_date(self) -> None:
        """Its handler sees its own version; an upcaster that fails is a problem of the message."""
        here = lane(context(handler(version=2)))
        here.context.registry.add_upcaster("paid", 1, lambda data: {"new": data["order"]})
        message = read(here, 1, claim_row(5)).request.message
        assert (message.version, message.data) == (2, {"new": 7})
        assert isinstance(read(here, 1, claim_row(5, body=b"{}")).problem, KeyError)

    def test_an_outgoing_message_is_read_like_any_other(self) -> None:
        """The relay gets it raw, with where it goes."""
        here = lane(context(relay()), destination="default")
        message = read(
            here, 1, claim_row(5, subscription=100, type="shipped", version=9, destination="sink")
        ).request.message
        assert (message.type, message.version, message.to, message.data, message.body) == (
            "shipped",
            9,
            "sink",
            None,
            b'{"order":7}',
        )

    def test_a_key_function_that_finds_nothing_is_fine(self) -> None:
        """No key is an answer."""
        assert read(lane(context(handler(key=lambda _: None))), 1, claim_row(5)).problem is None

    @given(st.dictionaries(st.text(st.characters(), max_size=8), st.text(st.characters(), max_size=8), min_size=1))
    @example({"trace": "a\x00b"})
    @example({"\x00": ""})
    @example({"a": "\ud800"})
    def test_headers_that_were_accepted_are_no_problem(self, headers: dict[str, str]) -> None:
        """Accepted headers survive the way into the database and back; what could not is refused before."""
        stored = stored_headers(headers)
        if stored is None:
            return
        one = read(lane(context(handler())), 1, claim_row(5, headers=stored))
        assert one.problem is None
        if all(each.isprintable() for pair in headers.items() for each in pair):
            assert dict(one.request.message.headers) == headers
