"""Effects, results and "done" are one commit; whatever breaks, a message is finished, settled, or still ours."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from onceward.domain.breaker import Breaker, Circuit
from onceward.errors import (
    ContractViolation,
    GuardFailed,
    HandlerNotFound,
    HandlerTimeout,
    InvalidMessage,
    NeedsAlone,
    StoreConflict,
    StoreError,
    StoreUnavailable,
    TransactionAborted,
)
from onceward.flow import Begin, Call, Outcome
from onceward.message import Receipt
from onceward.registry import Handler
from onceward.retry import Reject, Retry
from onceward.settings import Settings
from onceward.steps.attempt import reconnect, undo
from onceward.steps.group import MOST_SAVEPOINTS, SPACING
from onceward.steps.handle import handle
from onceward.steps.lane import Claimed, Lane
from onceward.steps.receive import receive
from onceward.steps.rows import outgoing_key_hash
from tests.unit.builders import (
    WORKER,
    Clock,
    Stop,
    begin,
    claim_row,
    claimed,
    context,
    delivery,
    handler,
    lane,
    message,
    outcomes,
    relay,
)
from tests.unit.script import Lost, Script, Turns

BY = handler()
FAILED = Outcome(error=ValueError("no"), touched=True)
UNTOUCHED = Outcome(error=ValueError("no"))
FINE = Outcome(touched=True)
PUBLISHED = Outcome()
INFRASTRUCTURE = Outcome(error=OSError("connection reset"), infrastructure=True, touched=True)


def batch(*seqs: int, by: Handler = BY, keys: dict[int, int] | None = None) -> list[Claimed]:
    """Messages that one claim holds."""
    return [claimed(seq, by, key=(keys or {}).get(seq)) for seq in seqs]


def holding(
    *handlers: Handler,
    stop: Stop | None = None,
    group: int | None = None,
    settings: Settings | None = None,
    **more: Any,
) -> Lane:
    """A lane whose first claim is open."""
    here = lane(context(*(handlers or (BY,)), settings=settings), stop=stop, group=group, **more)
    here.isolation.enter(here)
    here.token()
    return here


@pytest.fixture
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A savepoint after every second message."""
    monkeypatch.setattr("onceward.steps.group.SPACING", 2)


def called(script: Script) -> list[int]:
    """The messages whose handlers were called, in order."""
    return [request.message.seq for request in script.all(Call)]


def finished(script: Script) -> list[list[int]]:
    """The messages of each finish that was sent."""
    return [one["seqs"] for one in script.params("finish")]


def answers(**more: Any) -> dict[str, Any]:
    """Nothing more to claim; whatever is settled was ours."""
    return {"claim": [], "settle": lambda request: [(request.params["seq"],)], **more}


class TestSuccess:
    """All goes well."""

    def test_effects_and_done_are_one_commit(self) -> None:
        """The handler is called inside the transaction that finishes it, and the next claim is made along with it."""
        here, script = holding(), Script(answers())
        assert script.run(handle(here, batch(5))) == []
        assert script.transactions == ["begin call finish claim park commit"]
        assert script.params("finish") == [
            {"seqs": [5], "worker": WORKER, "token": 1, "code_version": "v1", "fence": "7.1.5", "expected": 1}
        ]
        assert here.finished == 1
        assert here.open_tokens == set()
        assert here.isolation.enter_alone("another")

    def test_the_transaction_is_marked_and_lives_as_long_as_the_slowest_handler(self) -> None:
        """The fence names the attempt; the limits follow the longest timeout in the group."""
        slow = handler("slow", timeout=90)
        here, script = holding(BY, slow), Script(answers())
        script.run(handle(here, [claimed(5, BY), claimed(6, slow)]))
        (begin,) = script.all(Begin)
        assert begin == Begin(95, 95, 105, "7.1.5", savepoint=True)

    def test_a_group_is_one_commit(self) -> None:
        """In order, one trip for everything after the handlers."""
        here, script = holding(), Script(answers())
        script.run(handle(here, batch(5, 6, 7)))
        assert script.transactions == ["begin call call call finish claim park commit"]
        assert called(script) == [5, 6, 7]
        assert script.params("finish")[0]["expected"] == 3
        assert here.finished == 3

    def test_results_bodies_and_keys_travel_with_the_finish(self) -> None:
        """Results and forgotten bodies, then the key locks (sorted) as the last that can wait, finish, promote."""
        forgetful = handler("short", keep_body=False)
        here = holding(BY, forgetful)
        some = [claimed(5, BY, key=9), claimed(6, forgetful, key=-3), claimed(7, BY), claimed(8, BY, key=9)]
        script = Script(answers(call=outcomes(m5=Outcome(value={"a": "ß"}), m7=Outcome(value=0))))
        script.run(handle(here, some))
        assert script.transactions == [
            "begin call call call call store_results forget_bodies lock_keys finish promote claim park commit"
        ]
        assert script.params("store_results") == [
            {"seq": 5, "result": '{"a":"\\u00df"}'},
            {"seq": 7, "result": "0"},
        ]
        assert script.params("forget_bodies") == [{"seqs": [6]}]
        assert script.params("lock_keys") == script.params("promote") == [{"key_hashes": [-3, 9]}]

    def test_what_was_claimed_along_is_the_next_batch(self) -> None:
        """Under a token of its own; rows that are not heads of their key are parked before the commit."""
        here = holding()
        script = Script(answers(claim=[claim_row(9, hashed=77), claim_row(8)], park=[(9, "waiting")]))
        following = script.run(handle(here, batch(5)))
        assert script.transactions == ["begin call finish claim park commit"]
        assert [(one.seq, one.token) for one in following] == [(8, 2)]
        assert here.open_tokens == {2}
        assert not here.isolation.enter_alone("another")

    def test_it_rides_only_with_the_last_group(self) -> None:
        """While messages are left in hand nothing new is claimed."""
        small = handler(group=2)
        here, script = holding(small), Script(answers())
        script.run(handle(here, batch(5, 6, 7, by=small)))
        assert script.transactions == ["begin call call finish commit", "begin call finish claim park commit"]

    @pytest.mark.parametrize("why", ["stopping", "closed", "full scan"])
    def test_it_does_not_ride_when_it_must_not(self, why: str) -> None:
        """A stop, an isolated message elsewhere or a due full scan: finish only."""
        here = holding(stop=Stop(after=1) if why == "stopping" else None)
        if why == "closed":
            here.isolation.enter_alone("another")
        if why == "full scan":
            begin(here)
        script = Script(answers())
        assert script.run(handle(here, batch(5))) == []
        assert script.transactions == ["begin call finish commit"]
        assert here.open_tokens == set()

    def test_a_group_is_as_large_as_each_of_its_handlers_allows(self) -> None:
        """A handler that wants small groups makes small ones, also when it comes later."""
        one_by_one = handler("single", group=1)
        here, script = holding(BY, one_by_one), Script(answers())
        script.run(handle(here, [claimed(1, BY), claimed(2, BY), claimed(3, one_by_one), claimed(4, BY)]))
        assert finished(script) == [[1, 2], [3], [4]]

    def test_a_slow_group_is_committed_early(self) -> None:
        """After the group time what is done is committed; the rest follows in the next transaction."""
        here = holding(settings=Settings(group_time=timedelta(seconds=0.5)))
        assert isinstance(here.context.clock, Clock)

        def call(request: Call) -> Outcome:
            here.context.clock.now += 0.3  # type: ignore[attr-defined] # checked above
            return Outcome(value=request.message.seq)

        script = Script(answers(call=call, isolation_level=[(0,)]))
        script.run(handle(here, batch(1, 2, 3, 4, 5)))
        assert finished(script) == [[1, 2], [3, 4], [5]]
        assert [begin.fence for begin in script.all(Begin) if begin.fence] == ["7.1.1", "7.1.3", "7.1.5"]
        assert here.finished == 5


class TestFailure:
    """A handler raises."""

    def test_alone_it_is_undone_then_charged(self) -> None:
        """Rolled back first; then settled, in a transaction of its own."""
        here, script = holding(), Script(answers(call=FAILED))
        assert script.run(handle(here, batch(5))) == []
        assert script.transactions == ["begin call rollback", "begin settle add_attempt commit"]
        assert script.params("add_attempt")[0]["error"] == "ValueError: no"
        assert here.finished == 0
        assert here.open_tokens == set()

    def test_in_a_group_it_is_settled_in_the_commit_of_the_others(self) -> None:
        """D34: back to the savepoint, the one before it runs again, and nobody else does."""
        here, script = holding(group=100), Script(answers(call=outcomes(m6=FAILED)))
        script.run(handle(here, batch(5, 6, 7)))
        assert script.transactions == [
            "begin call call rollback_to_savepoint call call finish settle add_attempt claim park commit",
        ]
        assert called(script) == [5, 6, 5, 7]
        assert finished(script) == [[5, 7]]
        assert script.params("settle")[0]["seq"] == 6
        assert here.finished == 2

    def test_one_that_wrote_nothing_undoes_nothing(self) -> None:
        """Then nobody runs again."""
        here, script = holding(), Script(answers(call=outcomes(m6=UNTOUCHED)))
        script.run(handle(here, batch(5, 6, 7)))
        assert called(script) == [5, 6, 7]
        assert script.params("rollback_to_savepoint") == []
        assert finished(script) == [[5, 7]]
        assert [one["seq"] for one in script.params("settle")] == [6]

    def test_what_wrote_nothing_is_not_run_again(self) -> None:
        """Going back undoes nothing of it, whatever it did outside."""
        outside = Outcome(value=1)
        here, script = holding(), Script(answers(call=outcomes(m1=outside, m2=FINE, m3=FAILED)))
        script.run(handle(here, batch(1, 2, 3, 4)))
        assert called(script) == [1, 2, 3, 2, 4]
        assert finished(script) == [[1, 2, 4]]
        assert [one["seq"] for one in script.params("store_results")] == [1]

    def test_a_slow_one_has_a_savepoint_of_its_own(self) -> None:
        """It may have called somebody: nothing that fails after it runs it again."""
        here = holding()

        def call(request: Call) -> Outcome:
            if request.message.seq == 2:
                here.context.clock.now += 0.005  # type: ignore[attr-defined] # a Clock
            return FAILED if request.message.seq == 4 else FINE

        script = Script(answers(call=call))
        script.run(handle(here, batch(1, 2, 3, 4, 5)))
        assert called(script) == [1, 2, 3, 4, 3, 5]
        assert script.transactions[0].startswith(
            "begin call call savepoint call call rollback_to_savepoint call call finish"
        )

    def test_one_that_computes_has_called_nothing(self) -> None:
        """An ORM takes a while by itself: that is no reason for a savepoint for each message."""
        here = holding()

        def call(_: Call) -> Outcome:
            here.context.clock.now += 0.005  # type: ignore[attr-defined] # a Clock
            return Outcome(touched=True, inside=0.002, computed=0.0025)

        script = Script(answers(call=call))
        script.run(handle(here, batch(1, 2)))
        assert script.params("savepoint") == []

    def test_explicit_verdicts_are_honoured_where_they_are_raised(self) -> None:
        """D33: the handler of a rejected or postponed message is called once."""
        verdicts = {"m1": Outcome(error=Reject("no")), "m3": Outcome(error=Retry("later", after=60), touched=True)}
        here, script = holding(), Script(answers(call=outcomes(**verdicts)))
        script.run(handle(here, batch(1, 2, 3, 4)))
        assert [called(script).count(seq) for seq in (1, 3)] == [1, 1]
        settled = [(one["seq"], one["state"], one["delay"]) for one in script.params("settle")]
        assert settled == [(1, "dead", None), (3, "retry", 60.0)]
        assert len(script.transactions) == 1

    def test_whoever_swallows_an_error_of_the_database_is_found_at_once(self) -> None:
        """D64: the connection says so after its call, and going back to the savepoint mends it."""
        swallowed = Outcome(error=TransactionAborted("swallowed"), touched=True)
        here, script = holding(), Script(answers(call=outcomes(m40=swallowed)))
        script.run(handle(here, batch(*range(1, 100))))
        assert called(script).count(40) == 1
        assert len(called(script)) < 99 + SPACING
        assert [one["seq"] for one in script.params("settle")] == [40]
        assert here.finished == 98

    def test_its_successors_go_back_with_it(self) -> None:
        """In the same commit, uncharged: it is unfinished, so they must not run; other keys go on."""
        keys = {1: 70, 2: 70, 3: 80, 4: 70}
        here, script = holding(), Script(answers(call=outcomes(m2=FAILED)))
        script.run(handle(here, batch(1, 2, 3, 4, keys=keys)))
        assert finished(script) == [[1, 3]]
        assert [one["seq"] for one in script.params("settle")] == [2]
        assert script.params("unclaim") == [{"seqs": [4], "worker": WORKER, "token": 1}]
        assert 4 not in called(script)
        assert here.open_tokens == set()
        assert len(script.transactions) == 1

    def test_successors_outside_the_group_go_back_too(self) -> None:
        """Also those that would have come in a later group."""
        small = handler(group=2)
        here = holding(small, handler("other", group=100))
        script = Script(answers(call=outcomes(m2=FAILED)))
        script.run(handle(here, batch(1, 2, 3, by=small, keys={2: 70, 3: 70})))
        assert 3 not in called(script)
        assert script.params("unclaim")[0]["seqs"] == [3]
        assert len(script.transactions) == 1

    def test_successors_of_one_that_failed_before_the_time_was_over(self) -> None:
        """A group that ends early gives them back as well."""
        here = holding(settings=Settings(group_time=timedelta(0)))
        here.context.clock = Clock(step=0.001)
        script = Script(answers(call=outcomes(m1=UNTOUCHED)))
        script.run(handle(here, batch(1, 2, 3, keys={1: 70, 2: 70})))
        assert called(script) == [1, 3]
        assert script.params("unclaim")[0]["seqs"] == [2]

    def test_a_dead_one_whose_key_goes_on(self) -> None:
        """Its key is locked with those of the others, its number counts as applied, and the next is promoted."""
        by = handler("goes", key="order", sequence="n", on_dead="continue")
        here, script = holding(by, BY), Script(answers(call=outcomes(m2=Outcome(error=Reject("no")))))
        some = [claimed(1, BY, key=90), claimed(2, by, key=70, sequence=3)]
        script.run(handle(here, some))
        assert script.transactions == [
            "begin call call lock_keys advance finish settle add_attempt promote claim park commit"
        ]
        assert script.params("lock_keys") == script.params("promote") == [{"key_hashes": [70, 90]}]
        assert script.params("advance") == [{"seqs": [2]}]
        assert script.params("settle")[0]["detach"] is True

    @pytest.mark.usefixtures("_often")
    def test_what_ran_before_the_last_savepoint_stays(self) -> None:
        """Only what came since then runs again."""
        here, script = holding(), Script(answers(call=outcomes(m6=FAILED)))
        script.run(handle(here, batch(1, 2, 3, 4, 5, 6, 7)))
        assert called(script) == [1, 2, 3, 4, 5, 6, 5, 7]
        assert finished(script) == [[1, 2, 3, 4, 5, 7]]
        assert [one["seq"] for one in script.params("settle")] == [6]
        assert here.finished == 6

    @pytest.mark.usefixtures("_often")
    def test_only_what_is_kept_has_a_result(self) -> None:
        """What was undone returns another one when it runs again."""
        again = [Outcome(value=2, touched=True), Outcome(value=3, touched=True)]
        here = holding()
        script = Script(answers(call=outcomes(m1=Outcome(value=1, touched=True), m3=again, m4=FAILED)))
        script.run(handle(here, batch(1, 2, 3, 4)))
        assert finished(script) == [[1, 2, 3]]
        assert [(one["seq"], one["result"]) for one in script.params("store_results")] == [(1, "1"), (3, "3")]

    def test_savepoints_are_few(self) -> None:
        """One for so many quick messages, none after the last, and none where nothing was written."""
        here, script = holding(), Script(answers())
        script.run(handle(here, batch(*range(1, 3 * SPACING + 1))))
        assert len(script.params("savepoint")) == 2
        here, script = holding(), Script(answers(call=Outcome()))
        script.run(handle(here, batch(*range(1, 3 * SPACING + 1))))
        assert script.params("savepoint") == []

    def test_a_transaction_has_at_most_so_many_savepoints(self) -> None:
        """Those that handlers make count too: the group is committed, and the rest goes on."""
        busy = Outcome(touched=True, savepoints=MOST_SAVEPOINTS // 2)
        here, script = holding(), Script(answers(call=busy))
        script.run(handle(here, batch(1, 2, 3, 4)))
        assert finished(script) == [[1, 2], [3, 4]]

    def test_a_neighbour_that_ran_too_long_hurts_nobody(self) -> None:
        """It has been interrupted before its call ended, so going back to the savepoint is safe."""
        late = Outcome(error=HandlerTimeout("too long"), touched=True)
        here, script = holding(), Script(answers(call=outcomes(m3=late)))
        script.run(handle(here, batch(1, 2, 3, 4)))
        assert finished(script) == [[1, 2, 4]]
        assert [one["seq"] for one in script.params("settle")] == [3]

    def test_a_neighbour_whose_transaction_is_lost_is_charged_and_the_others_run_again(self) -> None:
        """It has ended it, or left its connection in use: nothing of the group can be kept."""
        lost = Outcome(error=ContractViolation("ended"), touched=True, lost=True)
        here, script = holding(), Script(answers(call=outcomes(m2=lost)))
        script.run(handle(here, batch(1, 2, 3, 4, keys={2: 70, 4: 70})))
        assert script.transactions[:3] == [
            "begin call call rollback",
            "begin settle add_attempt commit",
            "begin unclaim commit",
        ]
        assert finished(script) == [[1, 3]]
        assert called(script) == [1, 2, 1, 3]

    def test_a_savepoint_that_cannot_be_made_or_gone_back_to(self) -> None:
        """The transaction is not what it was: the one that has just run is to blame, the others run again."""
        here, script = (
            holding(),
            Script(answers(rollback_to_savepoint=StoreError("no such savepoint"), call=outcomes(m4=FAILED))),
        )
        script.run(handle(here, batch(1, 2, 3, 4)))
        assert finished(script) == [[1, 2, 3]]
        assert [one["seq"] for one in script.params("settle")] == [4]

    def test_a_transaction_that_could_not_begin_is_charged_to_nobody(self) -> None:
        """The database refused its first savepoint, so there is none to go back to; each runs again alone."""
        script = Script(
            answers(rollback_to_savepoint=StoreError("no such savepoint"), call=outcomes(m1=[INFRASTRUCTURE, FINE]))
        )
        script.run(handle(holding(), batch(1, 2)))
        assert finished(script) == [[1], [2]]
        assert script.params("settle") == script.params("postpone") == []

    @pytest.mark.usefixtures("_often")
    def test_a_connection_lost_at_a_savepoint(self) -> None:
        """Nothing was committed, so all of it runs again, each by itself."""
        here, script = holding(), Script(answers(savepoint=Turns(Lost(), [])))
        script.run(handle(here, batch(1, 2, 3)))
        assert finished(script) == [[1], [2], [3]]

    def test_failures_at_the_front_and_nothing_else(self) -> None:
        """Where nothing stands there is no commit to share: each is settled in its own."""
        here, script = holding(), Script(answers(call=outcomes(m1=UNTOUCHED, m2=UNTOUCHED)))
        script.run(handle(here, batch(1, 2)))
        assert script.transactions == [
            "begin call call rollback",
            "begin settle add_attempt commit",
            "begin settle add_attempt commit",
        ]
        assert here.open_tokens == set()

    def test_an_error_that_is_empty_is_still_an_error(self) -> None:
        """An exception that counts as false is not a success: nothing of it is committed."""

        class Nothing(Exception):
            def __len__(self) -> int:
                return 0

        here, script = holding(), Script(answers(call=Outcome(error=Nothing())))
        script.run(handle(here, batch(5)))
        assert finished(script) == []
        assert [one["seq"] for one in script.params("settle")] == [5]

    def test_a_result_that_cannot_be_stored_breaks_the_contract(self) -> None:
        """Undone and dead, with a text that says what to return."""
        for value in (object(), {object()}, float("nan")):
            here, script = holding(), Script(answers(call=Outcome(value=value)))
            script.run(handle(here, batch(5)))
            assert script.transactions[0] == "begin call rollback"
            assert script.params("settle")[0]["state"] == "dead"
            assert "return None or JSON-able data" in script.params("add_attempt")[0]["error"]

    @pytest.mark.parametrize("value", ["\x00", {"a": ["\x00"]}, {1: "a", "1": "b"}, [[[[1]]]] * 2])
    def test_a_result_that_is_stored_can_be_read(self, value: Any) -> None:
        """Duplicates are answered with the stored result, so what could not be read back is not stored."""
        deep = value
        for _ in range(70):
            deep = [deep]
        for each in (value, deep):
            here, script = holding(), Script(answers(call=Outcome(value=each)))
            script.run(handle(here, batch(5)))
            for stored in script.params("store_results"):
                one = delivery()
                again = Script({"receive": [], "known": [(0, 5, one.hash, one.type_hash, 1, stored["result"], 0.0)]})
                (receipt,) = again.run(receive(here.context, here.context.cache, [one]))
                assert isinstance(receipt, Receipt)
                assert receipt.status == "duplicate"


class TestProblem:
    """A message that cannot be shown to its handler."""

    @pytest.mark.parametrize("problem", [InvalidMessage("no JSON"), HandlerNotFound("nobody")])
    def test_it_is_settled_without_a_call(self, problem: Exception) -> None:
        """It is recorded like a failed attempt, and dead at once; others go on."""
        here, script = holding(), Script(answers())
        script.run(handle(here, [claimed(4, BY, problem=problem), *batch(5, 6)]))
        assert called(script) == [5, 6]
        assert script.transactions == ["begin settle add_attempt commit", "begin call call finish claim park commit"]
        assert script.params("settle")[0]["state"] == "dead"

    def test_its_successors_do_not_overtake_it(self) -> None:
        """What comes after it in its key is unclaimed, unrun."""
        here, script = holding(), Script(answers())
        some = [claimed(4, BY, key=70, problem=InvalidMessage("x")), claimed(5, BY, key=70), claimed(6, BY, key=80)]
        script.run(handle(here, some))
        assert called(script) == [6]
        assert script.params("unclaim")[0]["seqs"] == [5]

    def test_its_predecessors_run(self) -> None:
        """What comes before it in its key is not its business."""
        here, script = holding(), Script(answers())
        script.run(handle(here, [claimed(3, BY, key=70), claimed(4, BY, key=70, problem=InvalidMessage("x"))]))
        assert called(script) == [3]
        assert finished(script) == [[3]]


class TestInfrastructure:
    """The database was at fault."""

    def test_alone_it_is_postponed(self) -> None:
        """Uncharged, soon again."""
        here, script = holding(), Script(answers(call=INFRASTRUCTURE))
        script.run(handle(here, batch(5)))
        assert script.transactions == ["begin call rollback", "begin postpone commit"]
        assert script.params("add_attempt") == []

    def test_in_a_group_it_runs_again_alone(self) -> None:
        """A deadlock ended only its own part of the transaction; what follows it in its key waits for it."""
        here, script = holding(), Script(answers(call=outcomes(m1=[INFRASTRUCTURE, FINE])))
        script.run(handle(here, batch(1, 2, 3, keys={1: 70, 2: 80, 3: 70})))
        assert finished(script) == [[2], [1], [3]]
        assert called(script) == [1, 2, 1, 3]
        assert script.params("settle") == script.params("postpone") == []

    def test_a_connection_lost_in_a_handler_is_replaced(self) -> None:
        """The rollback finds it broken, and a new one is made before anything else is sent."""
        here = holding()
        script = Script(answers(call=INFRASTRUCTURE, rollback=Lost()))
        script.run(handle(here, batch(5)))
        assert script.transactions == ["begin call rollback", "reconnect", "begin postpone commit"]

    @pytest.mark.parametrize("place", ["finish", "commit"])
    def test_a_conflict_at_the_end_is_postponed(self, place: str) -> None:
        """A deadlock is nobody's fault."""
        here = holding(stop=Stop(after=2))
        script = Script(answers(**{place: Turns(StoreConflict("deadlock"), [])}))
        script.run(handle(here, batch(5)))
        assert script.transactions[0].endswith("rollback")
        assert script.transactions[1] == "begin postpone commit"
        assert script.params("add_attempt") == []

    def test_a_conflict_of_a_group_tries_each_alone(self) -> None:
        """One after the other, in order, nobody charged."""
        here = holding()
        script = Script(answers(finish=Turns(StoreConflict("deadlock"), [])))
        script.run(handle(here, batch(1, 2)))
        assert script.transactions == [
            "begin call call finish rollback",
            "begin call finish commit",
            "begin call finish claim park commit",
        ]
        assert here.finished == 2

    def test_an_old_message_is_not_postponed_for_ever(self) -> None:
        """At its maximum age even a fault of the database is the end."""
        by = handler(retry=BY.retry.__class__(max_age=timedelta(seconds=10)))
        here, script = holding(by), Script(answers(call=INFRASTRUCTURE))
        script.run(handle(here, [claimed(5, by, age=10.0)]))
        assert script.params("settle")[0]["state"] == "dead"


class TestRefusedFinish:
    """The database refuses what the handlers did, at the end."""

    @pytest.mark.parametrize(
        ("error", "state"),
        [
            (StoreError("a deferred constraint"), "retry"),
            (TransactionAborted("swallowed"), "retry"),
            (ContractViolation("ended"), "dead"),
        ],
    )
    def test_alone_it_is_charged(self, error: Exception, state: str) -> None:
        """It ran alone, so it is the cause; a swallowed error may pass, a broken contract will not."""
        here = holding(stop=Stop(after=2))
        script = Script(answers(finish=error))
        script.run(handle(here, batch(5)))
        assert script.transactions == ["begin call finish rollback", "begin settle add_attempt commit"]
        assert script.params("settle")[0]["state"] == state

    def test_in_a_group_each_runs_alone(self) -> None:
        """Only one of them is the cause; the others succeed."""
        here = holding()

        def finish(request: Any) -> Any:
            return StoreError("a deferred constraint") if 2 in request.params["seqs"] else []

        script = Script(answers(finish=finish))
        script.run(handle(here, batch(1, 2, 3)))
        assert finished(script) == [[1, 2, 3], [1], [2], [3]]
        assert [one["seq"] for one in script.params("settle")] == [2]
        assert here.finished == 2

    @pytest.mark.parametrize(
        "error", [StoreConflict("x"), TransactionAborted("x"), ContractViolation("x"), StoreError("x")]
    )
    @pytest.mark.parametrize("place", ["finish", "claim", "park", "commit"])
    def test_the_claim_that_rode_along_is_forgotten(self, place: str, error: Exception) -> None:
        """It was rolled back with the rest: its token must not keep the lane inside for ever."""
        here = holding()
        usual = {"claim": [claim_row(9, hashed=77)], "park": []}
        script = Script(answers(**{**usual, place: Turns(error, [])}))
        script.run(handle(here, batch(5)))
        assert here.open_tokens == set()
        assert here.isolation.enter_alone("another")


class TestGuard:
    """The finish found that a row was not in the state its writer believed."""

    def test_taken_over(self) -> None:
        """Claims gone: everything is undone, nothing is charged, nothing is run again."""
        here = holding()
        script = Script(answers(finish=GuardFailed("x"), still_claimed=[]))
        assert script.run(handle(here, batch(5, 6))) == []
        assert script.transactions[0] == "begin call call finish rollback"
        assert "settle" not in " ".join(script.transactions)
        assert called(script) == [5, 6]
        assert here.finished == 0
        assert here.open_tokens == set()

    def test_taken_over_in_part(self) -> None:
        """What is still ours runs again under the same claim; the rest is another's."""
        here = holding()
        script = Script(answers(finish=Turns(GuardFailed("x"), []), still_claimed=[(6,)]))
        script.run(handle(here, batch(5, 6)))
        assert called(script) == [5, 6, 6]
        assert finished(script) == [[5, 6], [6]]
        assert script.params("still_claimed") == [{"worker": WORKER, "tokens": [1]}] * 2
        assert here.finished == 1

    def test_taken_over_while_some_wait_to_run_alone(self) -> None:
        """Those are checked too."""
        here = holding(handler(group=2))

        def finish(request: Any) -> Any:
            return GuardFailed("x") if request.params["seqs"] == [3, 4] else []

        alone = Outcome(error=NeedsAlone())
        script = Script(answers(call=outcomes(m2=[alone, FINE]), finish=finish, still_claimed=[(3,)]))
        script.run(handle(here, batch(1, 2, 3, 4, by=handler(group=2))))
        assert finished(script) == [[1], [3, 4], [3]]
        assert called(script) == [1, 2, 3, 4, 3]

    def test_with_all_claims_in_place_the_handler_ended_the_transaction(self) -> None:
        """A broken contract: dead, with a text that says what to remove."""
        here = holding()
        script = Script(answers(finish=GuardFailed("x"), still_claimed=[(5,)]))
        script.run(handle(here, batch(5)))
        assert script.params("settle")[0]["state"] == "dead"
        assert "the handler ended the transaction" in script.params("add_attempt")[0]["error"]
        assert here.open_tokens == set()

    def test_in_a_group_the_one_that_ended_it_is_found_alone(self) -> None:
        """Each runs again by itself; only the culprit dies."""
        here = holding()

        def finish(request: Any) -> Any:
            return GuardFailed("x") if 2 in request.params["seqs"] else []

        def still_claimed(_: Any) -> list[tuple[int]]:
            done = {1} if len(finished(script)) > 2 else set()
            return [(seq,) for seq in (1, 2, 3) if seq not in done]

        script = Script(answers(finish=finish, still_claimed=still_claimed))
        script.run(handle(here, batch(1, 2, 3)))
        assert finished(script) == [[1, 2, 3], [1], [2], [3]]
        assert [(one["seq"], one["state"]) for one in script.params("settle")] == [(2, "dead")]
        assert here.finished == 2


class TestUnknownOutcome:
    """The connection breaks while the finish is on its way."""

    @pytest.mark.parametrize("place", ["finish", "commit"])
    def test_it_was_not_committed(self, place: str) -> None:
        """Reconnect, read: the claims are there, so each runs again by itself, uncharged."""
        here = holding()
        script = Script(answers(**{place: Turns(Lost(), [])}, still_claimed=[(5,), (6,)]))
        script.run(handle(here, batch(5, 6)))
        assert script.transactions[0].startswith("begin call call finish")
        assert script.transactions[1] == "reconnect"
        assert script.transactions[2] == "begin still_claimed commit"
        assert called(script) == [5, 6, 5, 6]
        assert finished(script)[1:] == [[5], [6]]
        assert script.params("settle") == script.params("add_attempt") == []
        assert here.finished == 2
        assert here.open_tokens == set()

    def test_alone_it_is_postponed(self) -> None:
        """Tried again after a moment, not in a hot loop, and nobody is charged."""
        here = holding()
        script = Script(answers(commit=Turns(Lost(), []), still_claimed=[(5,)]))
        script.run(handle(here, batch(5)))
        assert called(script) == [5]
        assert script.transactions[-1] == "begin postpone commit"
        assert script.params("add_attempt") == []
        assert here.open_tokens == set()

    def test_it_was_committed(self) -> None:
        """The claims are gone, so it is finished: nothing runs again."""
        here = holding()
        script = Script(answers(commit=Turns(Lost(), []), still_claimed=[]))
        assert script.run(handle(here, batch(5, 6))) == []
        assert called(script) == [5, 6]
        assert here.finished == 2

    def test_the_claim_that_rode_along_is_let_go(self) -> None:
        """Perhaps it was committed too: its rows are unclaimed, whatever they are."""
        here = holding()
        script = Script(answers(claim=[claim_row(9)], commit=Turns(Lost(), []), still_claimed=[]))
        assert script.run(handle(here, batch(5))) == []
        assert script.params("unclaim_tokens") == [{"worker": WORKER, "tokens": [2]}]
        assert here.open_tokens == set()

    def test_a_part_of_a_group_can_be_gone(self) -> None:
        """Taken over meanwhile: what is still ours runs again."""
        here = holding()
        script = Script(answers(commit=Turns(Lost(), []), still_claimed=[(6,)]))
        script.run(handle(here, batch(5, 6)))
        assert called(script) == [5, 6, 6]

    def test_a_group_that_was_cut_short_goes_on(self) -> None:
        """The messages that had not run yet come next, whatever became of the first ones."""
        here = holding(settings=Settings(group_time=timedelta(0)))
        here.context.clock = Clock(step=0.001)
        script = Script(answers(commit=Turns(Lost(), []), still_claimed=[(6,)]))
        script.run(handle(here, batch(5, 6)))
        assert called(script) == [5, 6]
        assert finished(script) == [[5], [6]]
        assert here.finished == 2

    def test_a_statement_that_took_too_long(self) -> None:
        """The connection still works: rolled back, read, postponed."""
        here = holding()
        script = Script(answers(finish=Turns(StoreUnavailable("lock timeout"), []), still_claimed=[(5,)]))
        script.run(handle(here, batch(5)))
        assert script.transactions[0].endswith("finish rollback")
        assert "reconnect" not in script.transactions
        assert called(script) == [5]
        assert script.transactions[-1] == "begin postpone commit"

    def test_the_database_stays_away(self) -> None:
        """It asks again and again, more and more slowly, and does nothing else."""
        here = holding()
        script = Script(answers(commit=Turns(Lost(), []), still_claimed=[], reconnect=Turns(*[False] * 8, *[True])))
        script.run(handle(here, batch(5)))
        assert script.transactions[1:18] == ["reconnect", "wait"] * 8 + ["reconnect"]
        waits = [request.seconds for request in script.requests if type(request).__name__ == "Wait"]
        assert waits == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]

    def test_a_stop_ends_the_wait(self) -> None:
        """The messages in hand come back by themselves; nothing is guessed about them."""
        here = holding(stop=Stop(after=3))
        script = Script(answers(commit=Lost(), reconnect=False))
        with pytest.raises(StoreUnavailable, match="stopped while the database was away"):
            script.run(handle(here, batch(5)))
        assert 1 in here.open_tokens


class TestStop:
    """The worker stops."""

    def test_what_has_not_begun_is_given_back(self) -> None:
        """The running group is finished, the rest is unclaimed, uncharged."""
        small = handler(group=2)
        here = holding(small, stop=Stop(after=1))
        script = Script(answers())
        assert script.run(handle(here, batch(1, 2, 3, 4, by=small))) == []
        assert script.transactions == ["begin call call finish commit", "begin unclaim commit"]
        assert script.params("unclaim")[0]["seqs"] == [3, 4]
        assert here.open_tokens == set()

    def test_those_that_run_alone_are_given_back_too(self) -> None:
        """Uncharged: they were to run alone."""
        here = holding(stop=Stop(after=1))
        script = Script(answers(call=outcomes(m2=Outcome(error=NeedsAlone()))))
        script.run(handle(here, batch(1, 2, 3, keys={2: 70, 3: 70})))
        assert script.params("unclaim")[0]["seqs"] == [2, 3]
        assert script.params("settle") == []


class TestPlaces:
    """Order within a key is by place, not by arrival."""

    def test_those_that_run_alone_run_by_place(self) -> None:
        """A late arrival with an earlier place runs before what follows it, also one by one."""
        here, script = holding(), Script(answers(finish=Turns(StoreConflict("deadlock"), [])))
        early, late = claimed(9, BY, key=70, place=1), claimed(4, BY, key=70, place=2)
        script.run(handle(here, [early, late]))
        assert finished(script)[1:] == [[9], [4]]

    def test_what_follows_by_place_is_unclaimed(self) -> None:
        """A later place does not run when the earlier one is settled, whatever their numbers."""
        here, script = holding(), Script(answers(call=outcomes(m9=FAILED)))
        script.run(handle(here, [claimed(9, BY, key=70, place=1), claimed(4, BY, key=70, place=2)]))
        assert [one["seq"] for one in script.params("settle")] == [9]
        assert script.params("unclaim")[0]["seqs"] == [4]


class TestNumbers:
    """Messages that are counted within their key."""

    COUNTING = handler(key="order", sequence="n")

    def test_a_number_that_ran_is_applied(self) -> None:
        """In the same commit as its effects."""
        here, script = holding(self.COUNTING), Script(answers())
        some = [claimed(5, self.COUNTING, key=70, sequence=1), claimed(6, self.COUNTING, key=70, sequence=2)]
        script.run(handle(here, some))
        assert script.transactions == ["begin call call lock_keys advance finish promote claim park commit"]
        assert script.params("advance") == [{"seqs": [5, 6]}]

    def test_a_stale_number_is_finished_without_running(self) -> None:
        """The audit says that it was skipped, and why; it applies nothing and has no result."""
        here, script = holding(self.COUNTING), Script(answers(call=Outcome(value=1)))
        some = [
            claimed(5, self.COUNTING, key=70, sequence=1, stale=True),
            claimed(6, self.COUNTING, key=70, sequence=4),
        ]
        script.run(handle(here, some))
        assert called(script) == [6]
        assert finished(script) == [[5, 6]]
        assert script.params("advance") == [{"seqs": [6]}]
        assert [one["seq"] for one in script.params("store_results")] == [6]
        reason = "number 1 came after a later one of its key was applied"
        assert script.params("add_audit") == [{"action": "skip", "seq": 5, "actor": "onceward", "reason": reason}]


class TestBatch:
    """A handler that takes a list."""

    TOGETHER = handler("many", batch=True, group=3)

    def some(self, *seqs: int, stale: tuple[int, ...] = ()) -> list[Claimed]:
        return [claimed(seq, self.TOGETHER, sequence=0 if seq in stale else None, stale=seq in stale) for seq in seqs]

    def test_one_call_for_all(self) -> None:
        """As many as its group allows, in order, with one result for each."""
        here, script = holding(self.TOGETHER), Script(answers(call=Turns(Outcome(value=["a", None, 3]), Outcome())))
        script.run(handle(here, self.some(1, 2, 3, 4)))
        calls = [[one.seq for one in request.message] for request in script.all(Call)]
        assert calls == [[1, 2, 3], [4]]
        assert script.params("store_results") == [{"seq": 1, "result": '"a"'}, {"seq": 3, "result": "3"}]

    def test_stale_ones_are_left_out(self) -> None:
        """The handler sees the others, and results are theirs."""
        here, script = holding(self.TOGETHER), Script(answers(call=Outcome(value=["b"])))
        script.run(handle(here, self.some(1, 2, stale=(1,))))
        assert [[one.seq for one in request.message] for request in script.all(Call)] == [[2]]
        assert script.params("store_results") == [{"seq": 2, "result": '"b"'}]
        assert finished(script) == [[1, 2]]

    @pytest.mark.parametrize("value", ["ab", ["a"], ["a", "b", "c"], {"a": 1}, 7])
    def test_a_wrong_number_of_results_breaks_the_contract(self, value: Any) -> None:
        """Nothing is stored under the wrong message: undone, tried one by one, and then dead with the reason."""
        here, script = holding(self.TOGETHER), Script(answers(call=Outcome(value=value, touched=True)))
        script.run(handle(here, self.some(1, 2)))
        assert script.transactions[0].startswith("begin call rollback_to_savepoint call")
        for attempt in script.params("add_attempt"):
            assert "a list with one result for each" in attempt["error"]

    def test_a_failure_is_found_one_by_one(self) -> None:
        """Nobody can say which of them it was: each gets a list of its own, in the same transaction."""
        here, script = holding(self.TOGETHER), Script(answers(call=Turns(FAILED, FINE, FAILED, FINE)))
        script.run(handle(here, self.some(1, 2, 3)))
        calls = [[one.seq for one in request.message] for request in script.all(Call)]
        assert calls == [[1, 2, 3], [1], [2], [3]]
        assert finished(script) == [[1, 3]]
        assert [one["seq"] for one in script.params("settle")] == [2]

    def test_one_that_takes_too_long_together_is_not_tried_together_again(self) -> None:
        """The group's time is over when it fails; its messages run alone, each as a list of one."""
        here = holding(self.TOGETHER, settings=Settings(group_time=timedelta(0)))
        here.context.clock = Clock(step=0.001)
        late = Outcome(error=HandlerTimeout("too long"), touched=True)
        script = Script(answers(call=Turns(late, FINE)))
        script.run(handle(here, self.some(1, 2, 3)))
        calls = [[one.seq for one in request.message] for request in script.all(Call)]
        assert calls == [[1, 2, 3], [1], [2], [3]]
        assert script.params("settle") == []

    def test_nobody_is_blamed_for_a_transaction_that_several_have_lost(self) -> None:
        """Each runs alone, and only the one that does it again is charged."""
        lost = Outcome(error=ContractViolation("ended"), touched=True, lost=True)
        here, script = holding(self.TOGETHER), Script(answers(call=Turns(lost, FINE, lost, FINE)))
        script.run(handle(here, self.some(1, 2, 3)))
        assert finished(script) == [[1], [3]]
        assert [one["seq"] for one in script.params("settle")] == [2]

    def test_it_does_not_share_with_others(self) -> None:
        """A transaction of its own kind."""
        here, script = holding(BY, self.TOGETHER), Script(answers())
        script.run(handle(here, [claimed(1, BY), *self.some(2, 3), claimed(4, BY)]))
        assert finished(script) == [[1], [2, 3], [4]]


class TestSent:
    """What handlers send."""

    def sending(self, *types: str) -> Any:
        def call(request: Call) -> Outcome:
            for kind in types:
                request.message.send(kind, key="k", to="sink")
            return Outcome()

        return call

    def test_it_is_written_in_the_same_commit(self) -> None:
        """A row for each, for the relay, ready, without a guard by the catalog; before the key locks and the finish."""
        here, script = holding(), Script(answers(call=self.sending("shipped", "mailed"), receive=[]))
        script.run(handle(here, batch(5, keys={5: 70})))
        assert script.transactions == ["begin call receive lock_keys finish promote claim park commit"]
        rows = script.params("receive")
        assert [(row["ordinal"], row["type"], row["consumer"], row["subscription"]) for row in rows] == [
            (0, "shipped", 100, 100),
            (1, "mailed", 100, 100),
        ]
        first = rows[0]
        assert (first["source"], first["cause"], first["destination"], first["key"]) == (1, 5, "sink", "k")
        assert (first["outgoing"], first["catalog"], first["state"]) == (True, None, "ready")
        assert len({row["stored_id"] for row in rows}) == 2

    def test_order_is_per_destination_and_key(self) -> None:
        """Different sinks do not wait for each other; without a key nothing is ordered."""
        one = outgoing_key_hash("p_", "a", "k")
        assert len({one, outgoing_key_hash("p_", "b", "k"), outgoing_key_hash("p_", None, "k")}) == 3
        assert outgoing_key_hash("p_", "a", "k") == one

        def call(request: Call) -> Outcome:
            request.message.send("shipped")
            return Outcome()

        here, script = holding(), Script(answers(call=call, receive=[]))
        script.run(handle(here, batch(5)))
        assert script.params("receive")[0]["key_hash"] is None

    def test_a_failed_attempt_sends_nothing(self) -> None:
        """What it had sent is forgotten; the next attempt begins with nothing, under the same ids."""
        attempts = [0]

        def call(request: Call) -> Outcome:
            attempts[0] += 1
            request.message.send("shipped")
            return FAILED if attempts[0] == 2 else FINE

        here, script = holding(), Script(answers(call=call, receive=[]))
        script.run(handle(here, batch(5, 6, 7)))
        assert called(script) == [5, 6, 5, 7]
        assert [row["cause"] for row in script.params("receive")] == [5, 7]

    def test_sending_is_over_when_the_handler_is(self) -> None:
        """Whoever keeps the message cannot send through it later."""
        here, script = holding(), Script(answers())
        script.run(handle(here, batch(5)))
        (kept,) = script.all(Call)
        with pytest.raises(ContractViolation, match="its transaction is over"):
            kept.message.send("shipped")

    def test_a_message_that_cannot_send_runs_all_the_same(self) -> None:
        """Without an outbox there is nothing to write."""
        here, script = holding(), Script(answers())
        mute = replace(claimed(5, BY), call=Call(BY, message(seq=5)))
        script.run(handle(here, [mute]))
        assert finished(script) == [[5]]

    def test_a_process_that_sends_has_introduced_itself(self) -> None:
        """Without the relay's subscription nothing can be written, and that is a mistake of ours."""
        here = holding()
        here.context.cache.catalog = here.context.cache.catalog._replace(relay=None)
        with pytest.raises(AssertionError, match="introduced itself"):
            Script(answers(call=self.sending("shipped"))).run(handle(here, batch(5)))


class TestRelay:
    """A handler whose effects are outside of the transaction."""

    OUT = relay(group=10)

    def some(self, *seqs: int) -> list[Claimed]:
        return [claimed(seq, self.OUT) for seq in seqs]

    def test_what_was_published_before_a_failure_stays_published(self) -> None:
        """And what comes after it is published all the same; all of it is one commit."""
        here, script = holding(self.OUT), Script(answers(call=outcomes(m1=PUBLISHED, m2=PUBLISHED, m3=UNTOUCHED)))
        script.run(handle(here, self.some(1, 2, 3, 4)))
        assert finished(script) == [[1, 2, 4]]
        assert called(script) == [1, 2, 3, 4]
        assert [one["seq"] for one in script.params("settle")] == [3]
        assert here.finished == 3

    def test_the_first_to_fail_is_undone(self) -> None:
        """There is nothing before it to keep."""
        here, script = holding(self.OUT), Script(answers(call=FAILED))
        script.run(handle(here, self.some(1)))
        assert script.transactions[0] == "begin call rollback"

    def test_it_claims_from_its_own_index(self) -> None:
        """The next outgoing messages, not incoming ones."""
        here = holding(self.OUT, destination="default")
        script = Script(answers(claim_outgoing=[]))
        script.run(handle(here, self.some(1)))
        assert script.transactions == ["begin call finish claim_outgoing park commit"]


class TestOnce:
    """A handler that makes external calls."""

    def test_it_knows_whether_it_runs_alone(self) -> None:
        """In a group it is told to come again alone, and that is not a failure of anybody."""
        here = holding()

        def call(request: Call) -> Outcome:
            needs = request.message.seq == 2 and not here.alone
            return Outcome(error=NeedsAlone()) if needs else FINE

        script = Script(answers(call=call))
        script.run(handle(here, batch(1, 2, 3)))
        assert finished(script) == [[1, 3], [2]]
        assert script.params("settle") == []

    def test_an_unknown_outcome_counts_though_it_was_swallowed(self) -> None:
        """Dead until a person says what happened, also where the handler returned."""
        here = holding()

        def call(_: Call) -> Outcome:
            here.unknown = "whether it happened is unknown"
            return FINE

        script = Script(answers(call=call))
        script.run(handle(here, batch(5)))
        assert finished(script) == []
        assert script.params("settle")[0]["state"] == "dead"
        assert "OutcomeUnknown: whether it happened is unknown" in script.params("add_attempt")[0]["error"]


class TestCircuit:
    """A handler with a circuit."""

    def breaking(self, failures: int = 2) -> Handler:
        return handler("fragile", breaker=Breaker(Circuit(failures, timedelta(seconds=60))), group=1)

    def breaker(self, by: Handler) -> Breaker:
        assert by.breaker is not None
        return by.breaker

    def test_after_enough_failures_the_rest_is_given_back(self) -> None:
        """Uncharged: what has not run keeps its attempts; other handlers go on."""
        by = self.breaking()
        here, script = holding(by, BY), Script(answers(call=outcomes(m1=FAILED, m2=FAILED, m3=FAILED)))
        script.run(handle(here, [claimed(1, by), claimed(2, by), claimed(3, by), claimed(4, BY)]))
        assert [one["seq"] for one in script.params("settle")] == [1, 2]
        assert script.params("unclaim")[0]["seqs"] == [3]
        assert finished(script) == [[4]]
        assert self.breaker(by).is_open

    def test_what_was_claimed_during_the_pause_is_put_off(self) -> None:
        """A claim goes by type and brings all versions: those that pause wait uncharged, their keys behind them."""
        by = self.breaking(1)
        self.breaker(by).failed(ConnectionError())
        here, script = holding(by, BY), Script(answers())
        script.run(handle(here, [claimed(1, by, key=70), claimed(2, BY, key=70), claimed(3, BY), claimed(4, by)]))
        (put_off,) = script.params("put_off")
        assert put_off["seqs"] == [1, 4]
        assert 0 < put_off["delay"] <= 60
        assert script.params("unclaim")[0]["seqs"] == [2]
        assert finished(script) == [[3]]
        assert script.params("settle") == []

    def test_a_success_closes_the_count(self) -> None:
        """Only failures in a row open it."""
        by = self.breaking()
        here, script = holding(by), Script(answers(call=outcomes(m1=FAILED, m3=FAILED)))
        script.run(handle(here, [claimed(seq, by) for seq in (1, 2, 3)]))
        assert not self.breaker(by).is_open

    def test_a_rejected_message_says_nothing_about_the_other_side(self) -> None:
        """Nor does the database; only a failure of the handler counts."""
        by = self.breaking(1)
        for outcome in (Outcome(error=Reject("no")), INFRASTRUCTURE):
            here, script = holding(by), Script(answers(call=outcome))
            script.run(handle(here, [claimed(1, by)]))
            assert not self.breaker(by).is_open

    def test_a_message_that_was_never_shown_says_nothing_either(self) -> None:
        """A body that cannot be read is no failure of whatever is behind the handler."""
        by = self.breaking(1)
        here, script = holding(by), Script(answers())
        script.run(handle(here, [claimed(1, by, problem=InvalidMessage("no JSON"))]))
        assert not self.breaker(by).is_open

    def test_one_without_a_handler_has_no_circuit(self) -> None:
        """A version nobody handles is settled by the default policy."""
        here, script = holding(), Script(answers())
        nobody = replace(claimed(1, BY, problem=HandlerNotFound("nobody")), handler=None)
        script.run(handle(here, [nobody]))
        assert script.params("settle")[0]["state"] == "dead"


def test_undo_and_reconnect_by_themselves() -> None:
    """A rollback that works needs no new connection; one that does not, does."""
    here = holding()
    script = Script({"rollback": Turns([], Lost())})
    script.transactions.append("begin")
    script.run(undo(here))
    assert script.transactions == ["begin rollback"]
    script.run(undo(here))
    assert script.transactions == ["begin rollback rollback", "reconnect"]
    script.run(reconnect(here))
    assert script.transactions[-1] == "reconnect"
