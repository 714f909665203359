"""The life of a lane: whatever happens, no effect twice, none lost, none out of order, and no claim left open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from onceward.errors import StoreConflict, StoreError, StoreUnavailable
from onceward.flow import Call, Outcome, Wait
from onceward.retry import RetryPolicy
from onceward.settings import Settings
from onceward.steps.handle import work
from onceward.steps.isolation import Isolation
from onceward.steps.lane import Lane
from tests.unit.builders import WORKER, Stop, begin, claim_row, context, handler, lane
from tests.unit.script import Lost, Script, Turns
from tests.unit.world import Behaviour, Fault, World

CLAIMED = "begin claim park commit"
IDLE = "begin claim park commit", "begin keys_in_front commit"
LOOKED = "begin isolation_level commit"


def living(*, stop: Stop | None = None, group: int = 100, isolation: Isolation | None = None, **settings: Any) -> Lane:
    """A lane at the beginning of its life."""
    by = handler(group=group, retry=RetryPolicy(attempts=3))
    here = lane(context(by, settings=Settings(**settings)), stop=stop, isolation=isolation)
    begin(here)
    return here


def answers(**more: Any) -> dict[str, Any]:
    return {"isolation_level": [(0,)], "claim": [], "settle": lambda request: [(request.params["seq"],)], **more}


def is_left(here: Lane) -> bool:
    """Nothing open, and nobody kept waiting."""
    return here.open_tokens == set() and here.isolation.enter_alone("another")


class TestLife:
    """Claim, handle, wait."""

    def test_without_work_it_waits(self) -> None:
        """For as long as the settings say, again and again, until it is stopped; then it is gone."""
        here, script = living(stop=Stop(after=3), poll=timedelta(seconds=7)), Script(answers())
        assert script.run(work(here)) == 0
        assert script.transactions == [LOOKED, *IDLE, "wait", *IDLE, "wait", *IDLE, "wait"]
        assert [request.seconds for request in script.all(Wait)] == [7.0] * 3
        assert is_left(here)

    def test_without_a_subscription_it_waits_for_one(self) -> None:
        """It is not written yet, or a failover took it back; the lane is there when it comes."""
        here, script = living(stop=Stop(after=2), poll=timedelta(seconds=7)), Script(answers())
        here.serve([])
        assert script.run(work(here)) == 0
        assert {request.seconds for request in script.all(Wait)} == {7.0}

    def test_a_claim_that_is_too_much_is_made_smaller(self) -> None:
        """D19: whatever it would bring takes longer than a statement may; the same again would for ever."""
        late = StoreUnavailable("canceling statement due to statement timeout")
        here, script = living(stop=Stop(after=9), group=8), Script(answers(claim=Turns(late, late, late, late, [])))
        script.run(work(here))
        assert [one["limit"] for one in script.params("claim")][:5] == [8, 4, 2, 1, 1]

    def test_it_handles_what_it_claims(self) -> None:
        """And goes on with what was claimed along, without another trip."""
        here = living(stop=Stop(after=9), group=1)
        script = Script(answers(claim=Turns([claim_row(1)], [claim_row(2)], [])))
        assert script.run(work(here)) == 2
        assert script.transactions[:4] == [
            LOOKED,
            CLAIMED,
            "begin call finish claim park commit",
            "begin call finish claim park commit",
        ]
        assert is_left(here)

    def test_until_idle_it_looks_twice(self) -> None:
        """Idle is only what a look from the very beginning finds idle."""
        here = living()
        script = Script(answers(claim=Turns([claim_row(1)], [])))
        assert script.run(work(here, until_idle=True)) == 1
        assert script.transactions == [LOOKED, CLAIMED, "begin call finish commit", *IDLE, LOOKED, *IDLE]
        assert script.params("claim")[-1]["cursor"] == 0
        assert is_left(here)

    def test_a_stop_before_anything(self) -> None:
        """Nothing is claimed."""
        script = Script(answers())
        assert script.run(work(living(stop=Stop(after=0)))) == 0
        assert script.trips == []

    def test_at_a_stop_the_next_batch_is_given_back(self) -> None:
        """What was claimed along and not begun is unclaimed, and nothing stays open."""
        here = living(stop=Stop(after=3))
        script = Script(answers(claim=Turns([claim_row(1)], [claim_row(2), claim_row(3)], [])))
        assert script.run(work(here)) == 1
        assert script.transactions[-1] == "begin unclaim commit"
        assert script.params("unclaim") == [{"seqs": [2, 3], "worker": WORKER, "token": 2}]
        assert is_left(here)

    def test_while_another_lane_is_alone_it_waits_shortly(self) -> None:
        """It comes back soon, and claims nothing meanwhile."""
        isolation = Isolation()
        isolation.enter_alone("another")
        here = living(stop=Stop(after=2), isolation=isolation)
        script = Script(answers())
        script.run(work(here))
        assert script.transactions == ["wait", "wait"]
        assert [request.seconds for request in script.all(Wait)] == [0.01] * 2

    def test_an_isolated_message_waits_for_the_others_then_runs_alone(self) -> None:
        """Asked for again and again until everybody else is out."""
        isolation = Isolation()
        isolation.enter("another")
        here = living(stop=Stop(after=5), isolation=isolation)
        waits = [0]

        def wait(_: Wait) -> None:
            waits[0] += 1
            if waits[0] == 2:
                isolation.leave("another")

        script = Script(
            answers(isolation_level=Turns([(1,)], [(1,)], [(1,)], [(0,)]), claim_isolated=[claim_row(5)], wait=wait)
        )
        assert script.run(work(here)) == 1
        assert script.transactions[:6] == [LOOKED, "wait", LOOKED, "wait", LOOKED, "begin claim_isolated park commit"]
        assert script.transactions[6] == "begin call finish commit", "nothing is claimed along while it is alone"
        assert is_left(here)

    def test_a_parked_isolated_message_is_not_the_last(self) -> None:
        """It waits behind an earlier message; whether there is another one behind it is looked up at once."""
        here = living()
        script = Script(
            answers(
                isolation_level=Turns([(0,)], [(1,)], [(1,)], [(0,)]),
                claim_isolated=Turns([claim_row(5, hashed=70)], [claim_row(6)], []),
                park=[(5, "waiting")],
            )
        )
        assert script.run(work(here, until_idle=True)) == 1
        assert [request.message.seq for request in script.all(Call)] == [6]
        assert is_left(here)


class TestTrouble:
    """The database fails."""

    @pytest.mark.parametrize("place", ["claim", "commit"])
    def test_after_a_lost_connection_it_lets_go_and_goes_on(self, place: str) -> None:
        """Reconnect, unclaim whatever the lost claim may hold, claim again."""
        here = living(stop=Stop(after=4))
        here.looked_at = here.context.clock()
        script = Script(answers(**{"claim": [], place: Turns(Lost(), [])}))
        script.run(work(here))
        assert script.transactions[1] == "reconnect"
        assert script.transactions[2] == "begin unclaim_tokens commit"
        assert script.params("unclaim_tokens") == [{"worker": WORKER, "tokens": [1]}]
        assert set(IDLE) <= set(script.transactions[3:])
        assert is_left(here)

    def test_nothing_to_let_go_is_no_trip(self) -> None:
        """A connection lost while looking holds nothing."""
        here = living(stop=Stop(after=3))
        script = Script(answers(isolation_level=Turns(Lost(), [(0,)])))
        script.run(work(here))
        assert script.transactions[:3] == ["begin isolation_level", "reconnect", LOOKED]

    @pytest.mark.parametrize("place", ["claim", "settle", "add_attempt", "commit"])
    def test_a_deadlock_does_not_end_it(self, place: str) -> None:
        """Rolled back, let go, tried again: a conflict is nobody's fault."""
        here = living(stop=Stop(after=8))
        here.looked_at = here.context.clock()
        failing = Outcome(error=ValueError("x"))
        claims: list[Any] = [[claim_row(1)], [claim_row(1)], []]
        usual: dict[str, list[Any]] = {"claim": claims, "settle": [[(1,)]], "add_attempt": [[]], "commit": [[]]}
        failed = {place: Turns(StoreConflict("deadlock"), *usual[place])}
        script = Script(answers(claim=Turns(*claims), call=failing) | failed)
        script.run(work(here))
        assert is_left(here)
        assert any("rollback" in line for line in script.transactions)

    @pytest.mark.parametrize("second", [Lost(), StoreUnavailable("lock timeout"), StoreConflict("deadlock")])
    @pytest.mark.parametrize("first", [Lost(), StoreConflict("deadlock")])
    def test_trouble_while_letting_go_does_not_end_it(self, first: Any, second: Any) -> None:
        """The old connection's locks may still be held by the server: it tries again until it has let go."""
        here = living(stop=Stop(after=12))
        here.looked_at = here.context.clock()
        script = Script(answers(claim=Turns(first, []), unclaim_tokens=Turns(second, [])))
        script.run(work(here))
        assert len(script.params("unclaim_tokens")) >= 2
        assert is_left(here)

    def test_an_error_nobody_foresaw_comes_out(self) -> None:
        """It is not hidden: the worker stops loudly."""
        here = living()
        with pytest.raises(StoreError, match="no such column"):
            Script(answers(claim=StoreError("no such column"))).run(work(here))

    def test_a_stop_while_the_database_is_away(self) -> None:
        """It does not wait for ever."""
        here = living(stop=Stop(after=3))
        with pytest.raises(StoreUnavailable, match="stopped while the database was away"):
            Script(answers(claim=Lost(), reconnect=False)).run(work(here))

    def test_a_stop_while_it_wanted_to_be_alone(self) -> None:
        """Nobody waits for one that is gone."""
        here = living(stop=Stop(after=3))
        lost = answers(isolation_level=[(1,)], claim_isolated=Lost(), reconnect=False)
        with pytest.raises(StoreUnavailable, match="stopped while the database was away"):
            Script(lost).run(work(here))
        assert here.isolation.enter("another")


SPACINGS = st.sampled_from([1, 2, 10])
"""After how many messages a savepoint is made."""


@contextmanager
def savepoints(spacing: int) -> Iterator[None]:
    """One after so many messages; no handler is slow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("onceward.steps.group.SPACING", spacing)
        patch.setattr("onceward.steps.group.SLOW", float("inf"))
        yield


BEHAVIOURS = st.lists(
    st.sampled_from(
        ["fine", "fails", "refuses", "rejects", "infrastructure", "swallows", "commits", "ends", "bad result"]
    ),
    max_size=3,
)
FAULTS = st.lists(
    st.sampled_from(["none", "none", "none", "none", "lost", "lost after", "conflict", "busy", "taken over"]),
    max_size=40,
)
LANES = st.tuples(st.integers(1, 6), SPACINGS)
"""How many messages it takes in a group, and how often it makes a savepoint."""
KEYS = st.lists(st.sampled_from([None, 70, 80]), min_size=1, max_size=6)


def check(world: World, here: Lane) -> None:
    """What must be true at the end of any life."""
    done, left = world.state.effects, world.state.queue
    assert len(done) == len(set(done)), f"twice: {done}"
    assert not set(done) & set(left), "finished and still in the queue"
    for key in (70, 80):
        of_key = [seq for seq in done if seq in world.keys and world.keys[seq] == key]
        assert of_key == sorted(of_key), f"out of order: {of_key}"
    assert here.open_tokens == set(), "a claim is left open"
    assert here.isolation.enter_alone("another"), "the lane never left"


@given(
    KEYS,
    st.dictionaries(st.integers(1, 6), BEHAVIOURS, max_size=4),
    FAULTS,
    LANES,
    st.dictionaries(st.integers(1, 6), st.integers(1, 4), max_size=4),
)
@example([None, 70], {}, ["none", "none", "none", "none", "none", "none", "conflict"], (4, 10), {})
@example([None], {1: ["swallows"]}, [], (4, 10), {})
@example([70, 70, 70, None], {1: ["rejects"]}, [], (1, 10), {})
@example([70, 70, 70, None], {2: ["rejects"]}, [], (1, 10), {3: 1, 4: 1})
@example([70, 70, 70, None], {2: ["rejects"]}, [], (4, 10), {3: 3, 4: 3})
@example([None] * 4, {3: ["fails"]}, [], (4, 1), {})
@example([None, None], {}, [*["none"] * 3, "lost", *["none"] * 12, "lost"], (1, 1), {1: 1, 2: 2})
@example([70, 70], {1: ["commits"]}, [], (2, 10), {})
@example([70, 70], {1: ["fine", "fails"], 2: ["infrastructure"]}, [], (2, 2), {})
def test_any_life_ends_well(
    keys: list[int | None],
    behaviour: dict[int, list[Behaviour]],
    faults: list[Fault],
    traits: tuple[int, int],
    isolated: dict[int, int],
) -> None:
    """Any handlers and any faults: each effect at most once, in order per key; all that could be done is done."""
    here = living(group=traits[0], group_time=timedelta(minutes=1))
    world = World(here, keys, behaviour=behaviour, faults=faults, isolated=isolated)
    with savepoints(traits[1]):
        world.script.run(work(here, until_idle=True))
    check(world, here)
    for row in world.state.queue.values():
        assert row.token is None, "a claim is left behind"
        dead_ahead = any(one.key == row.key and one.state == "dead" for one in world.state.queue.values())
        assert row.state == "dead" or (row.key is not None and dead_ahead), f"forgotten: {row}"


@given(
    KEYS,
    st.dictionaries(st.integers(1, 6), BEHAVIOURS, max_size=4),
    FAULTS,
    LANES,
    st.integers(0, 14),
)
def test_a_stop_at_any_moment_ends_well(
    keys: list[int | None],
    behaviour: dict[int, list[Behaviour]],
    faults: list[Fault],
    traits: tuple[int, int],
    looks: int,
) -> None:
    """The same when it is stopped somewhere: nothing is left open, nothing keeps its claim."""
    here = living(group=traits[0], stop=Stop(after=looks), group_time=timedelta(minutes=1))
    world = World(here, keys, behaviour=behaviour, faults=[fault for fault in faults if fault != "taken over"])
    try:
        with savepoints(traits[1]):
            world.script.run(work(here))
    except (StoreUnavailable, StoreConflict):
        return  # the last trip of a stopping lane failed: its process deregisters, which takes its claims off
    check(world, here)
    assert all(row.token is None for row in world.state.queue.values())
