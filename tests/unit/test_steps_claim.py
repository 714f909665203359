"""A row is ours only after a commit, under a fresh token, and only at the head of its key."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from onceward.domain.breaker import Breaker, Circuit
from onceward.errors import StoreConflict, StoreUnavailable
from onceward.flow import Begin, Query
from onceward.retry import VersionGap
from onceward.steps.claim import ISOLATED_SECONDS, may_claim_next
from onceward.steps.isolated import next_batch
from onceward.steps.lane import Claimed, Lane, let_go
from tests.unit.builders import WORKER, Clock, Stop, begin, catalog_answers, claim_row, context, handler, lane, relay
from tests.unit.script import Lost, Script, Turns

CLAIMED = "begin claim park commit"
IDLE = "begin claim park commit", "begin keys_in_front commit"
LOOKED = "begin isolation_level commit"


def clock(of: Lane) -> Clock:
    assert isinstance(of.context.clock, Clock)
    return of.context.clock


class TestClaim:
    """The ordinary claim."""

    def test_it_is_committed_before_anything_runs(self) -> None:
        """A claim under a fresh token, for the subscriptions of this lane; the batch comes in order."""
        here = lane(context(handler(), handler("sent")), group=30)
        here.lots[0].cursor = 4
        script = Script({"claim": [claim_row(9), claim_row(7), claim_row(8)]})
        batch = script.run(next_batch(here))
        assert [one.seq for one in batch] == [7, 8, 9]
        assert script.transactions == [CLAIMED]
        assert script.params("claim") == [
            {"worker": WORKER, "token": 1, "limit": 30, "retries": 15, "cursor": 4, "held": [], "subscriptions": [1, 2]}
        ]
        assert here.open_tokens == {1}
        assert here.lots[0].cursor == 7, "what comes next is not before what was claimed"
        assert {(one.worker, one.token) for one in batch} == {(WORKER, 1)}

    @pytest.mark.parametrize(("size", "light"), [(10_000, True), (10_001, False)])
    def test_large_bodies_are_not_claimed_in_stock(self, size: int, *, light: bool) -> None:
        """All that is claimed is in memory: beside a backlog more than a group only of small ones."""
        here = lane(context(handler(raw=True)))
        rows = [claim_row(1, body=b"x" * size), claim_row(2, body=b"x" * size), claim_row(3, body=b"x" * 10_000)]
        Script({"claim": rows}).run(next_batch(here))
        assert here.lots[0].is_light is light

    def test_only_the_relay_waits_for_the_disk(self) -> None:
        """What a handler does is lost with its claim; what was published before a crash of the server is not."""
        here = lane(context(handler()))
        ordinary, outgoing = Script({"claim": []}), Script({"claim_outgoing": []})
        ordinary.run(next_batch(here))
        here.destination = "default"
        outgoing.run(next_batch(here))
        assert not any(one.durable for one in ordinary.all(Begin))
        assert [one.durable for one in outgoing.all(Begin)] == [True]

    def test_an_empty_claim_leaves_nothing_open(self) -> None:
        """No rows: the token is forgotten and the lane leaves, so that an isolated message elsewhere can run."""
        here = lane(context(handler()))
        assert Script({"claim": []}).run(next_batch(here)) == []
        assert here.open_tokens == set()
        assert here.isolation.enter_alone("another")

    def test_it_goes_on_behind_rows_whose_keys_are_locked(self) -> None:
        """A claim finds nothing although rows are ready: others have their keys, and must not hide who comes after."""
        here = lane(context(handler()), group=2)
        here.lots[0].cursor = 3
        script = Script({"claim": Turns([], [], [claim_row(9)]), "keys_in_front": Turns([(77,), (78,)], [(79,)])})
        assert [one.seq for one in script.run(next_batch(here))] == [9]
        assert [one["held"] for one in script.params("claim")] == [[], [77, 78], [77, 78, 79]]
        looked = {"worker": WORKER, "cursor": 3, "limit": 2, "subscriptions": [1]}
        assert script.params("keys_in_front") == [{**looked, "held": []}, {**looked, "held": [77, 78]}]
        assert here.open_tokens == {3}

    def test_keys_that_are_held_are_passed_over_for_a_moment(self) -> None:
        """And for a longer one each time that they are found held again; the lane does not rest beyond that."""
        here = lane(context(handler()), group=2)
        lot, time = here.lots[0], clock(here)
        for pause in (0.02, 0.04, 0.08):
            lot.held.add([77], time.now)
            assert lot.wait(time.now) == pytest.approx(pause)
            time.now += pause / 2
            assert lot.held.at(time.now) == [77]
            time.now += pause
            assert lot.held.at(time.now) == []
        time.now += 0.08
        assert lot.held.at(time.now) == []
        lot.held.add([77], time.now)
        assert lot.wait(time.now) == pytest.approx(0.02), "it was free for a while"

    def test_keys_that_were_passed_over_are_looked_at_however_slow_the_machine_is(self) -> None:
        """Their pause ends between the look and the rest: the lane looks again, and does not wait for the next poll."""
        here = lane(context(handler()))
        lot, time = here.lots[0], clock(here)
        lot.held.add([77], time.now)
        script = Script({"claim": Turns([], [claim_row(9)]), "keys_in_front": []})
        assert script.run(next_batch(here)) == []
        time.now += 0.05
        assert lot.wait(time.now) == 0, "the last look has left it out"
        assert [one.seq for one in script.run(next_batch(here))] == [9]
        assert [one["held"] for one in script.params("claim")] == [[77], []]
        assert lot.held.wait(time.now) == float("inf"), "the last look has included it"

    @pytest.mark.parametrize("end", ["a look around found nothing", "begins anew"])
    def test_keys_that_have_nothing_ready_are_forgotten(self, end: str) -> None:
        """Else a lane that is not to claim would look for them again and again, without a rest."""
        here = lane(context(handler()))
        lot, time = here.lots[0], clock(here)
        lot.held.add([77], time.now)
        if end == "begins anew":
            lot.begin_anew()
        else:
            lot.found_empty(time.now, time.now)
        time.now += 0.05
        assert lot.wait(time.now) == float("inf")

    def test_it_begins_anew_when_nothing_is_behind_them(self) -> None:
        """The next claim looks at them again: their keys may be free by then."""
        here = lane(context(handler()))
        here.lots[0].cursor = 3
        script = Script({"claim": [], "keys_in_front": Turns([(77,)], [])})
        assert script.run(next_batch(here)) == []
        assert here.lots[0].cursor == 3

    def test_the_relay_does_not_look_behind_locked_keys(self) -> None:
        """Nobody holds a key of outgoing messages for longer than a claim."""
        here = lane(context(relay()), destination="default")
        script = Script({"claim_outgoing": []})
        assert script.run(next_batch(here)) == []
        assert script.transactions == ["begin claim_outgoing park commit"]

    def test_rows_with_a_key_are_checked_in_a_new_statement(self) -> None:
        """Those that are not at the head of their key are parked before the commit, and not in the batch."""
        here = lane(context(handler()))
        script = Script(
            {"claim": [claim_row(1, hashed=77), claim_row(2), claim_row(3, hashed=78)], "park": [(3, "waiting")]}
        )
        assert [one.seq for one in script.run(next_batch(here))] == [1, 2]
        assert script.transactions == ["begin claim park commit"]
        assert script.params("park") == [{"worker": WORKER, "token": 1}]

    def test_all_parked_is_nothing_claimed(self) -> None:
        """A claim of which nothing remains is let go."""
        here = lane(context(handler()))
        script = Script({"claim": Turns([claim_row(1, hashed=77)], []), "park": [(1, "waiting")]})
        assert script.run(next_batch(here)) == []
        assert here.open_tokens == set()

    def test_all_parked_is_not_idle(self) -> None:
        """Others may be behind those that wait from now on: it looks on at once, however many there are."""
        here = lane(context(handler()))
        claims = [[claim_row(seq, hashed=77)] for seq in (1, 2, 3)]
        parked = [[(seq, "waiting")] for seq in (1, 2, 3)]
        script = Script({"claim": Turns(*claims, [claim_row(4)], []), "park": Turns(*parked, [])})
        assert [one.seq for one in script.run(next_batch(here))] == [4]
        assert script.transactions == ["begin claim park commit"] * 3 + [CLAIMED]
        assert here.open_tokens == {4}

    def test_all_stepped_back_is_not_idle(self) -> None:
        """They are still due and would be claimed again: it passes over their keys, and looks for who comes after."""
        here = lane(context(handler()))
        claims = [claim_row(1, hashed=77), claim_row(2, hashed=78)], [claim_row(9, hashed=79)]
        script = Script({"claim": Turns(*claims), "park": Turns([(1, "ready"), (2, "retry")], [])})
        assert [one.seq for one in script.run(next_batch(here))] == [9]
        assert [one["held"] for one in script.params("claim")] == [[], [77, 78]]

    @pytest.mark.parametrize("why", ["no progress", "stopping", "closed"])
    def test_it_does_not_look_on_for_ever(self, why: str) -> None:
        """Not for keys that it meets although it passes over them; and a stop or an isolated message comes first."""
        here = lane(context(handler()), stop=Stop(after=0) if why == "stopping" else None)
        here.lots[0].held.add([77], here.context.clock())
        state = "ready" if why == "no progress" else "waiting"

        def park(_: Query) -> list[Any]:
            if why == "closed":
                here.isolation.enter_alone("another")
            return [(1, state)]

        script = Script({"claim": [claim_row(1, hashed=77)], "park": park})
        assert script.run(next_batch(here)) == []
        assert script.transactions == ["begin claim park commit"]
        assert here.open_tokens == set()

    def test_new_sources_are_looked_up(self) -> None:
        """A name this process has not read yet is read before its first message is shown to anybody."""
        here = lane(context(handler()))
        script = Script({"claim": [claim_row(1, source=9)], "names": [(1, "service"), (2, "shop"), (9, "new")]})
        (one,) = script.run(next_batch(here))
        assert script.transactions == [CLAIMED, "begin names commit"]
        assert one.request.message.source == "new"

    def test_a_subscription_that_is_not_known_is_looked_up(self) -> None:
        """A failover took it back, this process has read the catalog then, and another has subscribed again."""
        here = lane(context(handler()))
        known = here.context.cache.catalog
        here.context.cache.catalog = known._replace(subscriptions={}, by_type={})
        script = Script({"claim": [claim_row(1)], **catalog_answers(known)})
        (one,) = script.run(next_batch(here))
        assert script.transactions == [CLAIMED, "begin catalog names subscriptions unhandled_types pauses commit"]
        assert one.request.handler.type == "paid"

    def test_while_another_is_alone_nothing_is_claimed(self) -> None:
        """No claim is written while an isolated message of another lane runs or waits."""
        here = lane(context(handler()))
        here.isolation.enter_alone("another")
        script = Script()
        assert script.run(next_batch(here)) == []
        assert script.trips == []
        assert here.open_tokens == set()

    @pytest.mark.parametrize("failure", [Lost(), StoreUnavailable("busy"), StoreConflict("deadlock")])
    @pytest.mark.parametrize("place", ["claim", "park", "commit"])
    def test_a_claim_without_an_answer_stays_open(self, place: str, failure: Any) -> None:
        """Perhaps it was committed: its token is remembered until its rows are known to be gone, the lane inside."""
        here = lane(context(handler()))
        script = Script({"claim": [claim_row(1, hashed=77)], "park": [], place: failure})
        with pytest.raises((StoreUnavailable, StoreConflict)):
            script.run(next_batch(here))
        assert here.open_tokens == {1}
        assert not here.isolation.enter_alone("another")

    def test_the_worker_number_is_that_of_now(self) -> None:
        """A process that was declared dead and registered anew claims under its new number."""
        here = lane(context(handler()))
        here.worker = lambda: 99
        script = Script({"claim": [claim_row(1)]})
        (one,) = script.run(next_batch(here))
        assert script.params("claim")[0]["worker"] == 99
        assert (one.worker, here.owner) == (99, 99)

    def test_it_travels_in_one_go(self) -> None:
        """A round trip for each claim, with keys or without; only numbers must be looked at before the commit."""
        for rows in ([claim_row(1)], [claim_row(1, hashed=77)], []):
            script = Script({"claim": rows})
            script.run(next_batch(lane(context(handler()))))
            assert len(script.trips[0]) == 4

    def test_numbers_that_nobody_here_counts(self) -> None:
        """A newer version numbers them: they are let go, claimed once more, and looked at from then on."""
        here = lane(context(handler(key="order")))
        numbered = claim_row(8, hashed=70, key="k", sequence=1, place=1)
        script = Script({"claim": Turns([numbered], [numbered], []), "progress": [(8, 0)]})
        (one,) = script.run(next_batch(here))
        assert script.transactions == [CLAIMED, "begin unclaim_tokens commit", "begin claim park progress commit"]
        assert script.params("unclaim_tokens") == [{"worker": WORKER, "tokens": [1]}]
        assert (one.seq, here.open_tokens) == (8, {2})


class TestNumbers:
    """Messages that are counted within their key."""

    COUNTING = handler(key="order", sequence="n", gap=timedelta(seconds=60))

    def claim(
        self, *rows: tuple[Any, ...], applied: dict[int, int], parked: tuple[int, ...] = ()
    ) -> tuple[Script, list[Claimed]]:
        here = lane(context(self.COUNTING, handler("sent")))
        progress = [(row[0], applied[row[2]]) for row in rows if row[4] is not None]
        script = Script(
            {"claim": Turns(list(rows), []), "park": [(seq, "waiting") for seq in parked], "progress": progress}
        )
        return script, script.run(next_batch(here))

    def row(self, seq: int, number: int | None, *, hashed: int = 70, age: float = 0.5) -> tuple[Any, ...]:
        place = seq if number is None else number
        return claim_row(seq, hashed=hashed, key="k", sequence=number, place=place, age=age)

    def test_the_next_number_passes(self) -> None:
        """And those that follow it in the same claim, in the order of their numbers."""
        script, batch = self.claim(self.row(8, 5), self.row(9, 4), applied={70: 3})
        assert script.transactions == ["begin claim park progress commit"]
        assert script.params("progress") == [{"seqs": [8, 9]}]
        assert [(one.seq, one.sequence, one.stale) for one in batch] == [(9, 4, False), (8, 5, False)]

    def test_a_number_after_a_gap_is_held(self) -> None:
        """It gives its claim back and waits, for as long as its handler allows; what comes after it waits for it."""
        script, batch = self.claim(self.row(7, 4), self.row(8, 6, age=20.0), self.row(9, 7), applied={70: 3})
        assert [one.seq for one in batch] == [7]
        assert script.params("hold") == [
            {"seq": 8, "worker": WORKER, "token": 1, "delay": 40.0},
            {"seq": 9, "worker": WORKER, "token": 1, "delay": None},
        ]
        assert script.transactions == ["begin claim park progress hold hold commit"]

    def test_all_held_is_nothing_claimed(self) -> None:
        """The token is forgotten."""
        _, batch = self.claim(self.row(8, 6), applied={70: 3})
        assert batch == []

    def test_after_its_patience_it_is_given_up(self) -> None:
        """The number before it did not come in time: its problem says which."""
        _, (one,) = self.claim(self.row(8, 6, age=60.0), applied={70: 3})
        assert isinstance(one.problem, VersionGap)
        assert "number 4" in str(one.problem)

    def test_of_a_subscription_that_is_not_known_it_waits(self) -> None:
        """A failover lost it, and others told it again: nobody gives up a number before that is read."""
        row = claim_row(8, subscription=99, hashed=70, key="k", sequence=6, place=6, age=60.0)
        script, batch = self.claim(row, applied={70: 3})
        assert batch == []
        assert [one["delay"] for one in script.params("hold")] == [1.0]

    def test_a_lower_number_is_stale(self) -> None:
        """A later one is applied: it will be finished without running. The same number twice runs once."""
        _, batch = self.claim(self.row(7, 2), self.row(8, 4), self.row(9, 4), applied={70: 3})
        assert [(one.seq, one.stale) for one in batch] == [(7, True), (8, False), (9, True)]

    def test_keys_are_counted_apart(self) -> None:
        """Each from its own progress."""
        _, batch = self.claim(self.row(8, 1), self.row(9, 5, hashed=80), applied={70: 0, 80: 4})
        assert [(one.seq, one.stale) for one in batch] == [(8, False), (9, False)]

    def test_messages_without_a_number_pass(self) -> None:
        """In the same claim, whether they have a key or not; only counted ones are asked about."""
        script, batch = self.claim(
            self.row(7, 1), self.row(8, None, hashed=80), claim_row(9, subscription=2, type="sent"), applied={70: 0}
        )
        assert sorted(one.seq for one in batch) == [7, 8, 9]
        assert script.params("progress") == [{"seqs": [7]}]

    def test_messages_without_a_number_do_not_disturb_the_count(self) -> None:
        """Another type of the same key is not counted: the numbers go on from what is applied, whoever comes first."""
        for place in (1, 99):
            uncounted = claim_row(3, subscription=2, type="sent", hashed=70, key="k", place=place)
            script, batch = self.claim(uncounted, self.row(8, 5), self.row(9, 6), applied={70: 4})
            assert script.params("hold") == []
            assert sorted((one.seq, one.stale) for one in batch) == [(3, False), (8, False), (9, False)]

    def test_behind_one_that_was_given_up_the_count_goes_on(self) -> None:
        """The next number does not wait for what will not come; it runs behind it, or is unclaimed with it."""
        _, batch = self.claim(self.row(8, 6, age=60.0), self.row(9, 7), applied={70: 3})
        assert [(one.seq, one.problem is None) for one in batch] == [(8, False), (9, True)]

    def test_parked_ones_are_not_asked_about(self) -> None:
        """Behind an earlier row of the key a number says nothing yet."""
        script, batch = self.claim(self.row(8, 6), applied={70: 3}, parked=(8,))
        assert batch == []
        assert script.params("progress") == []

    def test_without_a_handler_there_is_no_patience(self) -> None:
        """A subscription whose handler this process lost is not waited for here."""
        here = lane(context(handler("sent"), strangers=(self.COUNTING,)))
        row = (8, 2, *self.row(8, 6)[2:])
        script = Script({"claim": [row], "park": [], "progress": [(8, 0)]})
        (one,) = script.run(next_batch(here))
        assert one.problem is not None


class TestOutgoing:
    """The relay's claim."""

    def test_it_has_a_statement_of_its_own(self) -> None:
        """With an index of its own, so that no backlog of incoming messages is in its way."""
        here = lane(context(relay()), destination="default")
        script = Script({"claim_outgoing": [claim_row(5, subscription=100, type="shipped", destination="sink")]})
        (one,) = script.run(next_batch(here))
        assert script.transactions == ["begin claim_outgoing park commit"]
        assert script.params("claim_outgoing")[0]["subscriptions"] == [100]
        assert one.external


class TestCircuit:
    """A handler whose circuit is open."""

    def test_its_messages_are_left_alone(self) -> None:
        """Neither claimed nor looked for, until the pause is over; others are."""
        time = Clock()
        breaker = Breaker(Circuit(1, timedelta(seconds=30)), clock=time)
        here = lane(context(handler(breaker=breaker), handler("sent")))
        begin(here)
        script = Script({"isolation_level": [(0,)], "claim": []})
        breaker.failed(ConnectionError())
        script.run(next_batch(here))
        assert script.params("isolation_level")[0]["subscriptions"] == script.params("claim")[0]["subscriptions"] == [2]
        time.now += 30
        script.run(next_batch(here))
        assert script.params("claim")[1]["subscriptions"] == [1, 2]


class TestFullScan:
    """Now and then a lane looks from the very beginning."""

    def test_the_cursor_goes_back_to_zero(self) -> None:
        """For late commits and unclaimed rows; once a second is enough."""
        here = lane(context(handler()))
        here.lots[0].cursor = 50
        clock(here).now += ISOLATED_SECONDS
        script = Script({"isolation_level": [(0,)], "claim": []})
        script.run(next_batch(here))
        assert script.transactions == [LOOKED, *IDLE]
        assert script.params("isolation_level") == [{"subscriptions": [1], "destination": None}]
        assert script.params("claim")[0]["cursor"] == 0
        script.run(next_batch(here))
        assert script.transactions == [LOOKED, *IDLE, *IDLE]

    def test_the_first_look_is_a_full_scan(self) -> None:
        """A new lane begins at the beginning."""
        here = lane(context(handler()))
        begin(here)
        script = Script({"isolation_level": [(0,)], "claim": []})
        script.run(next_batch(here))
        assert script.transactions == [LOOKED, *IDLE]


class TestLookAround:
    """What had nothing is looked for together: each look reads past the backlog of the others."""

    def lane(self) -> Lane:
        here = lane(context(handler(group=5), handler("sent", group=6), handler("seen", group=7)))
        for lot in here.lots:
            lot.is_empty = True
        return here

    def test_one_look_for_all(self) -> None:
        """What has something is claimed; the others are looked for with the next claim, and then rest."""
        here = self.lane()
        script = Script({"first_due": [(2,)], "claim": [claim_row(9, subscription=2, type="sent")]})
        assert [one.seq for one in script.run(next_batch(here))] == [9]
        assert script.transactions == ["begin first_due commit", CLAIMED]
        assert script.params("first_due") == [{"subscriptions": [1, 2, 3]}]
        assert script.params("claim")[0]["subscriptions"] == [2]
        assert [lot.is_empty for lot in here.lots] == [True, False, True]
        assert may_claim_next(here) is None
        script = Script({"first_due": [], "claim": [claim_row(10, subscription=2, type="sent")]})
        assert [one.seq for one in script.run(next_batch(here))] == [10]
        assert script.params("first_due") == [{"subscriptions": [1, 3]}]
        assert not here.looks_around()

    def test_who_cannot_be_claimed_hides_nobody(self) -> None:
        """Its key is held, or another claim was quicker: the same round goes on to look for the others."""
        here = self.lane()
        found = Turns([], [claim_row(9, subscription=3, type="seen")])
        script = Script({"first_due": Turns([(1,)], [(3,), (3,)]), "claim": found})
        assert [one.seq for one in script.run(next_batch(here))] == [9]
        assert [one["subscriptions"] for one in script.params("first_due")] == [[1, 2, 3], [2, 3]]
        assert [lot.is_empty for lot in here.lots] == [True, True, False]

    def test_nothing_for_any_of_them(self) -> None:
        """Nothing is claimed, and that was a look from the very beginning."""
        here = self.lane()
        here.lots[0].cursor = 7
        begin(here)
        here.looked_at = clock(here).now
        script = Script({"first_due": []})
        assert script.run(next_batch(here)) == []
        assert script.transactions == ["begin first_due commit"]
        assert {(lot.cursor, lot.scanned_at) for lot in here.lots} == {(0, clock(here).now)}

    def test_beside_a_backlog_now_and_then(self) -> None:
        """While the others rest, the one that has something is claimed as if there were no others; then it is time."""
        here = self.lane()
        busy, found = here.lots[1], [claim_row(seq, subscription=2, type="sent") for seq in range(6)]
        script = Script({"first_due": Turns([(2,)], []), "claim": found})
        script.run(next_batch(here))
        for _ in range(3):
            script.run(next_batch(here))
            assert may_claim_next(here) is busy
        clock(here).now += 0.25
        assert may_claim_next(here) is None
        script.run(next_batch(here))
        assert script.params("first_due") == [{"subscriptions": [1, 2, 3]}, *[{"subscriptions": [1, 3]}] * 2]
        assert may_claim_next(here) is busy

    def test_also_while_they_rest_if_there_is_nothing_else(self) -> None:
        """An idle lane looks for everything, whenever it is woken; for one lot the claim is the look."""
        here = self.lane()
        script = Script({"first_due": Turns([], [(3,)]), "claim": Turns([claim_row(1, subscription=3)], [])})
        assert script.run(next_batch(here)) == []
        assert [one.seq for one in script.run(next_batch(here))] == [1]
        alone = lane(context(handler()))
        alone.lots[0].is_empty = True
        single = Script({"claim": []})
        single.run(next_batch(alone))
        single.run(next_batch(alone))
        assert single.transactions == [*IDLE, *IDLE]


class TestRide:
    """The next claim may be made in the transaction that finishes the last."""

    def test_usually(self) -> None:
        """Nothing speaks against it."""
        assert may_claim_next(lane(context(handler())))

    @pytest.mark.parametrize(("found", "more"), [(2, True), (1, False), (0, False)])
    def test_only_after_a_full_claim(self, found: int, *, more: bool) -> None:
        """Where there is nothing more to take, the effects of what was taken are not to wait for a look."""
        here = lane(context(handler()), group=2)
        Script({"claim": [claim_row(seq) for seq in range(1, found + 1)]}).run(next_batch(here))
        assert (may_claim_next(here) is not None) is more

    def test_not_when_stopping_closed_or_scanning(self) -> None:
        """A stop, an isolated message somewhere, or a due full scan each call for a claim of its own, or none."""
        assert not may_claim_next(lane(context(handler()), stop=Stop(after=0)))
        closed = lane(context(handler()))
        closed.isolation.enter_alone("another")
        assert not may_claim_next(closed)
        due = lane(context(handler()))
        clock(due).now += ISOLATED_SECONDS
        assert not may_claim_next(due)
        isolating = lane(context(handler()))
        isolating.had_isolated = True
        assert not may_claim_next(isolating)
        isolating.had_isolated, isolating.looked_at = False, float("-inf")
        assert not may_claim_next(isolating)


def test_the_isolation_is_left_with_the_last_token() -> None:
    """While any claim is open the lane holds messages, so it stays inside."""
    here = lane(context(handler()))
    here.isolation.enter(here)
    one, two = here.token(), here.token()
    let_go(here, one)
    assert not here.isolation.enter_alone("another")
    here.isolation.leave("another")
    let_go(here, two, 99)
    assert here.open_tokens == set()
    assert here.isolation.enter_alone("another")
