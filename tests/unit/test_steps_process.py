"""Ledger row, effects and result are one commit; a handler that raises is undone, its message stored and charged."""

from __future__ import annotations

from typing import Any

import pytest

from onceward.domain import identity
from onceward.errors import (
    GuardFailed,
    StoreConflict,
    StoreError,
    StoreUnavailable,
    TransactionAborted,
)
from onceward.flow import Begin, Call, Each, Outcome, Wait
from onceward.message import Delivery, Failure, Message, Receipt
from onceward.registry import Handler
from onceward.retry import Reject, Retry, RetryPolicy
from onceward.steps.isolated import APART
from onceward.steps.lane import Lane
from onceward.steps.process import process, process_many
from onceward.stores.statements import load
from tests.unit.builders import (
    NOW,
    SERVICE,
    WORKER,
    Clock,
    catalog,
    catalog_answers,
    context,
    delivery,
    do_nothing_async,
    handler,
    lane,
)
from tests.unit.script import Lost, Script, Turns

STORED = [(0, 5, NOW)]
RELOADED = "begin catalog names subscriptions unhandled_types pauses commit"
HASH = identity.key_hash("p_", SERVICE, "7")


def working(*handlers: Handler, after_crash: bool = False, strangers: tuple[Handler, ...] = ()) -> Lane:
    """An inline lane that has entered; with `after_crash`, a process has died while it worked inline."""
    here = lane(context(*handlers, strangers=strangers))
    here.serve([])
    here.isolation.enter(here)
    if after_crash:
        until = here.context.clock() + 60
        here.context.cache.catalog = here.context.cache.catalog._replace(store_first_until=until)
    return here


def listened(here: Lane) -> list[str]:
    """The notifications from now on."""
    notified: list[str] = []
    here.notify = lambda: notified.append("notify")
    return notified


def run(here: Lane, script: Script, one: Delivery | None = None, *, is_async: bool = False) -> dict[str, Receipt]:
    return script.run(process(here, one or delivery(), is_async=is_async))


def answers(**more: Any) -> dict[str, Any]:
    """A new message, stored as number 5; whatever comes again is not in the ledger."""
    return {
        "receive": STORED,
        "receive_direct": STORED,
        "lock_free_keys": [(HASH,)],
        "busy_keys": [],
        **more,
    }


def known(one: Delivery, **changes: Any) -> list[tuple[Any, ...]]:
    """The message in the ledger."""
    fields = {"ordinal": 0, "seq": 5, "hash": one.hash, "type_hash": one.type_hash}
    fields |= {"finished": 1, "result": None, "age": 0.0, **changes}
    return [tuple(fields.values())]


class TestSuccess:
    """All goes well."""

    def test_everything_is_one_commit(self) -> None:
        """The ledger row first, the handler inside, the guarded finish, the commit; then the receipt."""
        script = Script(answers(call=Outcome(value={"a": 1})))
        assert run(working(handler()), script) == {SERVICE: Receipt("accepted", 5, finished=True, result={"a": 1})}
        assert script.transactions == ["begin receive_direct call store_results finish_direct commit"]
        assert script.params("finish_direct") == [
            {
                "worker": WORKER,
                "code_version": "v1",
                "fence": f"{WORKER}.inline.1",
                "seqs": [5],
                "first": 5,
                "last": 5,
                "expected": 1,
            }
        ]
        assert script.params("store_results") == [{"seq": 5, "result": '{"a":1}'}]
        (begin,) = script.all(Begin)
        assert begin == Begin(65, 2, 75, f"{WORKER}.inline.1")  # a copy waits for `lock_wait`

    def test_no_queue_row_is_left(self) -> None:
        """It is inserted without a state: only ledger and body."""
        script = Script(answers())
        run(working(handler()), script)
        assert script.transactions == ["begin receive_direct call finish_direct commit"]

    def test_the_handler_sees_the_message(self) -> None:
        """With its number, its first attempt, and what was sent."""
        script = Script(answers())
        run(working(handler()), script, delivery(headers={"a": "b"}))
        (call,) = script.all(Call)
        seen: Message = call.message
        assert (seen.seq, seen.attempt, seen.id, seen.data) == (5, 1, "e1", {"order": 7})
        assert int(seen.received_at.timestamp() * 1e6) == NOW

    def test_every_consumer_has_its_own_transaction(self) -> None:
        """One receipt each; handlers of the other kind are left to the other kind of caller."""
        here = working(handler(), handler(consumer="mail"), handler(consumer="late", function=do_nothing_async))
        script = Script(answers())
        assert set(run(here, script)) == {SERVICE, "mail"}
        assert script.transactions == ["begin receive_direct call finish_direct commit"] * 2
        script = Script(answers())
        assert set(run(here, script, is_async=True)) == {"late"}

    def test_consumers_elsewhere_are_not_handled_here(self) -> None:
        """Nor is a type that nobody wants."""
        script = Script()
        assert run(working(strangers=(handler(),)), script) == {}
        assert run(working(), script) == {}
        assert script.trips == []

    def test_a_body_that_is_not_kept(self) -> None:
        """After success only its hash is there."""
        one = delivery()
        script = Script(answers())
        run(working(handler(keep_body=False)), script, one)
        (row,) = script.params("receive_direct")
        forgotten = [params["seqs"] for params in script.params("forget_bodies")]
        assert row["body"] is None or forgotten == [[5]]
        assert row["hash"] == one.hash

    def test_what_it_sends_is_in_the_same_commit(self) -> None:
        """Rows for the relay, caused by this message."""

        def call(request: Call) -> Outcome:
            request.message.send("shipped", {"order": 7}, to="sink")
            return Outcome()

        script = Script(answers(call=call))
        run(working(handler()), script)
        assert script.transactions == ["begin receive_direct call receive finish_direct commit"]
        sent = script.params("receive")[0]
        assert (sent["type"], sent["destination"], sent["cause"], sent["outgoing"]) == ("shipped", "sink", 5, True)


class TestKeys:
    """Order per key."""

    BY = handler(key="order")

    def test_with_a_free_key_it_runs(self) -> None:
        """The key lock is tried first; a new statement then sees that nothing of the key is unfinished."""
        script = Script(answers())
        assert run(working(self.BY), script)[SERVICE].finished
        assert script.all(Call)[0].message.key == "7"
        assert script.transactions == ["begin lock_free_keys receive_direct busy_keys call finish_direct commit"]
        assert script.params("lock_free_keys") == [{"key_hash": HASH, "consumer": 1}]
        assert script.params("busy_keys") == [{"key_hash": HASH, "consumer": 1}]

    @pytest.mark.parametrize("busy", [{"lock_free_keys": []}, {"busy_keys": [(HASH,)]}])
    def test_behind_others_it_is_queued(self, busy: dict[str, Any]) -> None:
        """Stored ready for the workers, in one commit, and they are told; accepted, not finished."""
        here, script = working(self.BY), Script(answers(**busy))
        notified = listened(here)
        assert run(here, script) == {SERVICE: Receipt("accepted", 5)}
        assert notified == ["notify"]
        assert script.transactions[0].endswith("enqueue commit")
        assert script.params("enqueue")[0]["state"] == "ready"
        assert script.all(Call) == []

    def test_a_duplicate_behind_others_is_a_duplicate(self) -> None:
        """Nothing was inserted: what is known is answered, with its result."""
        one = delivery()
        script = Script(answers(receive_direct=[], known=known(one, result="1")))
        assert run(working(self.BY), script, one) == {SERVICE: Receipt("duplicate", 5, finished=True, result=1)}

    def test_a_key_function_that_fails_is_a_failed_attempt(self) -> None:
        """As at a worker: a message whose key cannot be found must not run unordered."""

        def key(_: Message) -> Any:
            raise LookupError("no key")

        script = Script(answers())
        receipt = run(working(handler(key=key)), script)[SERVICE]
        assert script.all(Call) == []
        assert not receipt.finished


class TestNumbers:
    """A message that is counted within its key."""

    BY = handler(key="order", sequence="n")

    def run(self, number: Any, applied: list[Any], **more: Any) -> tuple[Script, Receipt]:
        script = Script(answers(progress_of=applied, **more))
        one = delivery(data={"order": 7, "n": number})
        return script, run(working(self.BY), script, one)[SERVICE]

    @pytest.mark.parametrize(("number", "applied"), [(1, []), (4, [(3,)])])
    def test_the_next_number_runs_and_is_applied(self, number: int, applied: list[Any]) -> None:
        """In the same commit."""
        script, receipt = self.run(number, applied)
        assert receipt.finished
        assert script.transactions == [
            "begin lock_free_keys receive_direct busy_keys progress_of call advance_inline finish_direct commit"
        ]
        assert script.params("advance_inline") == [{"consumer": 1, "aggregate": "", "key": "7", "sequence": number}]

    def test_a_number_after_a_gap_is_queued(self) -> None:
        """It waits for the one before it."""
        script, receipt = self.run(5, [(3,)])
        assert receipt == Receipt("accepted", 5)
        assert script.params("enqueue")[0]["state"] == "ready"

    def test_a_stale_number_is_skipped(self) -> None:
        """Finished without running; the audit says so; nothing is applied."""
        script, receipt = self.run(2, [(3,)])
        assert receipt == Receipt("accepted", 5, finished=True)
        assert script.all(Call) == []
        assert script.params("add_audit")[0]["action"] == "skip"
        assert script.params("advance_inline") == []

    def test_without_a_number_it_cannot_be_placed(self) -> None:
        """Stored dead, with the reason; the handler is not called."""
        script, receipt = self.run("x", [])
        assert not receipt.finished
        assert script.all(Call) == []
        assert "no whole number at 'n'" in script.params("add_attempt")[0]["error"]


class TestAgain:
    """A message that is known."""

    def test_it_is_not_run_again(self) -> None:
        """Nothing inserted: looked up, counted."""
        one = delivery()
        script = Script(answers(receive_direct=[], known=known(one, result='{"a":1}')))
        assert run(working(handler()), script, one) == {
            SERVICE: Receipt("duplicate", 5, finished=True, result={"a": 1})
        }
        assert script.transactions == [
            "begin receive_direct commit",
            "begin known commit",
            "begin count_duplicates commit",
        ]

    def test_other_bytes_go_to_quarantine(self) -> None:
        """Never run, never overwritten."""
        script = Script(answers(receive_direct=[], known=known(delivery(), hash=b"x" * 32), quarantine=[(None, None)]))
        assert run(working(handler()), script) == {SERVICE: Receipt("mismatch", 5)}
        assert script.params("count_duplicates") == []

    def test_an_old_catalog_is_read_again(self) -> None:
        """Neither inserted nor known: under the new catalog it is tried again."""
        later = catalog(handler(), handler("sent"), version=2)
        script = Script(answers(receive_direct=Turns([], STORED), known=[], **catalog_answers(later)))
        assert run(working(handler()), script)[SERVICE].finished
        assert script.transactions[2] == RELOADED
        assert [row["catalog"] for row in script.params("receive_direct")] == [1, 2]

    def test_under_a_new_catalog_the_key_is_found_anew(self) -> None:
        """A changed subscription decides under which key it runs; the old one is not used."""
        later = catalog(handler(key="order"), version=2)
        script = Script(answers(receive_direct=Turns([], STORED), known=[], **catalog_answers(later)))
        run(working(handler()), script)
        assert script.params("receive_direct")[-1]["key"] == "7"
        assert script.params("lock_free_keys") == [{"key_hash": HASH, "consumer": 1}]

    def test_it_gives_up_in_the_end(self) -> None:
        """The caller hears of it and must not acknowledge."""
        script = Script(answers(receive_direct=[], known=[], **catalog_answers(catalog(handler()))))
        with pytest.raises(StoreConflict, match="try again"):
            run(working(handler()), script)

    def test_a_new_source_gets_its_number_first(self) -> None:
        """Names are known before rows refer to them."""
        names = [(1, SERVICE), (2, "shop"), (9, "new"), (100, "onceward.outbox")]
        script = Script({**answers(), **catalog_answers(catalog(handler())), "names": names})
        run(working(handler()), script, delivery(source="new"))
        assert script.transactions[:2] == ["begin add_name touch_catalog commit", RELOADED]
        assert script.params("receive_direct")[0]["source"] == 9


class TestFailure:
    """The handler raises."""

    def test_it_is_undone_then_stored_and_charged(self) -> None:
        """In a second transaction, as a failed first attempt; the caller may acknowledge."""
        call = Outcome(error=Retry("busy", after=9), touched=True)
        script = Script(answers(call=call, receive_direct=Turns(STORED, [(0, 6, NOW)])))
        assert run(working(handler()), script) == {SERVICE: Receipt("accepted", 6, error=Failure("Retry", "busy"))}
        assert script.transactions == [
            "begin receive_direct call rollback",
            "begin receive_direct enqueue add_attempt keep_effects commit",
        ]
        (row,) = script.params("enqueue")
        assert (row["seq"], row["state"], row["after"], row["attempts"]) == (6, "retry", 9_000_000, 1)
        assert script.params("receive_direct")[1]["body"] == delivery().body
        assert script.params("keep_effects") == [{"seq": 5, "stored": 6}]
        (attempt,) = script.params("add_attempt")
        assert (attempt["seq"], attempt["attempt"], attempt["error"], attempt["worker"]) == (
            6,
            1,
            "Retry: busy",
            WORKER,
        )

    def test_a_rejected_message_is_stored_dead(self) -> None:
        """With its body, also where the handler does not keep bodies, so that a person can look at it."""
        one = delivery()
        script = Script(answers(call=Outcome(error=Reject("no"), touched=True)))
        run(working(handler(keep_body=False)), script, one)
        assert script.params("enqueue")[0]["state"] == "dead"
        assert script.params("receive_direct")[-1]["body"] == one.body
        assert script.params("forget_bodies") == []

    def test_a_dead_message_leaves_its_key_where_the_handler_says_so(self) -> None:
        """on_dead="continue" holds for inline work too: what comes after it is not held up."""
        script = Script(answers(call=Outcome(error=Reject("no"), touched=True)))
        run(working(handler(key="order", on_dead="continue")), script)
        assert script.params("enqueue")[0]["key_hash"] is None
        assert script.transactions[1].endswith("lock_keys enqueue promote add_attempt keep_effects commit")

    def test_its_number_is_given_up_with_it(self) -> None:
        """So that the next number of its key does not wait for one that will not come."""
        counting = handler(key="order", sequence="n", on_dead="continue")
        script = Script(answers(call=Outcome(error=Reject("no"), touched=True), progress_of=[]))
        run(working(counting), script, delivery(data={"order": 7, "n": 1}))
        given_up = [one for one in script.transactions if "lock_keys advance_inline enqueue promote" in one]
        assert given_up == [script.transactions[-1]]

    def test_the_policy_is_the_handlers(self) -> None:
        """One attempt may be the whole budget."""
        script = Script(answers(call=Outcome(error=ValueError("x"), touched=True)))
        run(working(handler(retry=RetryPolicy(attempts=1))), script)
        assert script.params("enqueue")[0]["state"] == "dead"

    def test_a_version_nobody_handles_is_stored_dead(self) -> None:
        """It is somebody's type, so it is kept; the attempt lists the versions."""
        script = Script(answers())
        receipt = run(working(handler()), script, delivery(version=0))[SERVICE]
        assert (receipt.seq, receipt.outcome, receipt.error and receipt.error.kind) == (5, "dead", "VersionUnknown")
        assert script.transactions == ["begin receive_direct enqueue add_attempt commit"]
        assert "handled versions: 1" in script.params("add_attempt")[0]["error"]

    def test_a_body_that_cannot_be_read_is_stored_dead(self) -> None:
        """Without a call."""
        script = Script(answers())
        run(working(handler()), script, delivery(data=None, body=b"{"))
        assert script.all(Call) == []
        assert script.params("enqueue")[0]["state"] == "dead"

    @pytest.mark.parametrize("value", [object(), float("nan"), {object()}])
    def test_a_result_that_cannot_be_stored_breaks_the_contract(self, value: Any) -> None:
        """Undone and dead."""
        script = Script(answers(call=Outcome(value=value)))
        assert not run(working(handler()), script)[SERVICE].finished
        assert script.transactions == ["begin receive_direct call enqueue add_attempt commit"]
        assert script.params("enqueue")[0]["state"] == "dead"

    @pytest.mark.parametrize("value", ["\x00", {"a": ["\x00"]}, {1: "a", "1": "b"}])
    def test_a_result_that_is_stored_can_be_read(self, value: Any) -> None:
        """The duplicate that comes next is answered with it."""
        one, script = delivery(), Script(answers(call=Outcome(value=value)))
        run(working(handler()), script, one)
        for stored in script.params("store_results"):
            again = Script(answers(receive_direct=[], known=known(one, result=stored["result"])))
            assert run(working(handler()), again, one)[SERVICE].status == "duplicate"

    @pytest.mark.parametrize("error", [StoreError("a deferred constraint"), TransactionAborted("swallowed")])
    def test_a_refused_finish_is_charged(self, error: Exception) -> None:
        """The database says no to what the handler did: undone, stored for a retry."""
        script = Script(answers(finish_direct=error))
        assert not run(working(handler()), script)[SERVICE].finished
        assert script.transactions[0].endswith("finish_direct rollback")
        assert script.params("enqueue")[0]["state"] == "retry"

    def test_an_unknown_effect_counts_though_it_was_swallowed(self) -> None:
        """Dead until a person says what happened."""
        here = working(handler())

        def call(_: Call) -> Outcome:
            here.unknown = "nobody knows"
            return Outcome()

        script = Script(answers(call=call))
        assert not run(here, script)[SERVICE].finished
        assert script.params("enqueue")[0]["state"] == "dead"

    def test_somebody_else_was_faster(self) -> None:
        """Between the undo and the storing another copy was received: that one counts."""
        one = delivery()
        script = Script(
            answers(
                call=Outcome(error=ValueError("x"), touched=True),
                receive_direct=Turns(STORED, []),
                requeue_own=[],
                known=known(one, finished=0),
            )
        )
        assert run(working(handler()), script, one) == {SERVICE: Receipt("duplicate", 5, finished=False)}
        assert script.params("add_attempt") == []

    def test_a_stale_catalog_while_storing_is_read_again(self) -> None:
        """Not stored and not known: the whole is tried again, the message is not lost."""
        later = catalog(handler(), handler("sent"), version=2)

        asked: list[int] = []

        def receive(request: Each) -> list[Any]:
            asked.append(request.shared["catalog"])
            return [] if asked == [1, 1] else STORED

        script = Script(
            answers(
                call=Outcome(error=ValueError("x"), touched=True),
                receive=receive,
                requeue_own=[],
                known=[],
                **catalog_answers(later),
            )
        )
        assert run(working(handler()), script) == {SERVICE: Receipt("accepted", 5, error=Failure("ValueError", "x"))}
        assert script.params("enqueue")[-1]["state"] == "retry"

    @pytest.mark.parametrize("error", [ValueError("x"), Reject("no")])
    def test_only_its_own_row_is_ever_given_back(self, error: Exception) -> None:
        """Another process may have finished it meanwhile, or its rolled-back number may be another message's by now.

        So where it is given back at all, it is named by its identity, and only if no run has finished it.
        """
        one = delivery()
        script = Script(
            answers(
                call=Outcome(error=error, touched=True),
                receive_direct=Turns(STORED, []),
                requeue_own=[],
                known=known(one),
            )
        )
        run(working(handler()), script, one)
        for params in script.params("requeue_own"):
            assert {"consumer", "source", "stored_id"} <= params.keys()
            for dialect in ("postgres", "sqlite"):
                assert any("p_run" in statement for statement in load(dialect, "p_")["requeue_own"])


class TestContract:
    """The handler ended its transaction."""

    def test_what_it_committed_is_queued_dead(self) -> None:
        """The ledger row is there already: it gets its queue row back, with the attempt."""
        script = Script(answers(finish_direct=GuardFailed("x"), receive_direct=Turns(STORED, []), requeue_own=[(5,)]))
        receipt = run(working(handler()), script)[SERVICE]
        assert (receipt.seq, receipt.outcome) == (5, "dead")
        assert script.transactions == [
            "begin receive_direct call finish_direct rollback",
            "begin receive_direct commit",
            "begin requeue_own add_attempt commit",
        ]
        (own,) = script.params("requeue_own")
        assert (own["subscription"], own["state"], own["attempts"]) == (1, "dead", 1)
        assert "ended the transaction" in script.params("add_attempt")[0]["error"]

    def test_what_it_rolled_back_is_stored_anew(self) -> None:
        """The ledger row went with it."""
        script = Script(answers(finish_direct=GuardFailed("x"), receive_direct=Turns(STORED, [(0, 6, NOW)])))
        receipt = run(working(handler()), script)[SERVICE]
        assert (receipt.seq, receipt.outcome) == (6, "dead")

    def test_its_body_is_not_lost(self) -> None:
        """What it committed may be the row without a body: a dead message must have one, to be redriven."""
        script = Script(answers(finish_direct=GuardFailed("x"), receive_direct=Turns(STORED, []), requeue_own=[(5,)]))
        one = delivery()
        run(working(handler(keep_body=False)), script, one)
        assert script.params("receive_direct")[0]["body"] == one.body


class TestInfrastructure:
    """The database is at fault."""

    def test_the_caller_hears_of_it(self) -> None:
        """Nothing is stored, nobody is charged, nothing may be acknowledged."""
        script = Script(answers(call=Outcome(error=OSError("reset"), infrastructure=True)))
        with pytest.raises(StoreUnavailable, match="'e1' was processed: reset") as caught:
            run(working(handler()), script)
        assert isinstance(caught.value.__cause__, OSError)
        assert script.transactions == ["begin receive_direct call rollback"]

    @pytest.mark.parametrize("error", [StoreConflict("deadlock"), StoreUnavailable("busy")])
    @pytest.mark.parametrize("place", ["finish_direct", "commit"])
    def test_a_failed_commit_is_not_a_failure_of_the_message(self, place: str, error: Exception) -> None:
        """Undone, and the caller may try the same again."""
        script = Script(answers(**{place: error}))
        with pytest.raises(StoreUnavailable):
            run(working(handler()), script)
        assert script.transactions[0].endswith("rollback")
        assert script.params("add_attempt") == []

    @pytest.mark.parametrize("place", ["receive_direct", "finish_direct", "commit"])
    def test_a_lost_connection_comes_out(self, place: str) -> None:
        """Nothing more is sent over it; a repeated call finds what was committed."""
        script = Script(answers(**{place: Lost()}))
        with pytest.raises(StoreUnavailable):
            run(working(handler()), script)
        assert len(script.transactions) == 1

    @pytest.mark.parametrize(
        ("fault", "status"),
        [
            ({"receive_direct": StoreConflict("deadlock")}, "duplicate"),
            ({"finish_direct": StoreConflict("deadlock")}, "duplicate"),
            ({"call": Outcome(error=OSError("deadlock"), infrastructure=True)}, "duplicate"),
            ({"receive_direct": Lost()}, "duplicate"),
            ({"commit": Lost()}, "accepted"),
        ],
    )
    def test_only_what_may_have_been_committed_is_its_own(self, fault: dict[str, Any], status: str) -> None:
        """D51: a try that was undone has stored nothing; what is there by then another process has stored meanwhile."""
        here, one = working(handler()), delivery()
        with pytest.raises((StoreUnavailable, StoreConflict)):
            run(here, Script(answers(**fault)), one)
        again = Script({"receive_direct": [], "known": known(one), "ages": [(5, 0.0)]})
        assert run(here, again, one)[SERVICE].status == status
        assert bool(again.params("count_duplicates")) == (status == "duplicate")

    def test_what_was_known_to_a_try_is_not_its_own(self) -> None:
        """D51: another process had stored it while that try was under way, before its answer was lost."""
        here, ours, theirs = working(handler()), delivery(id="e1"), delivery(id="e2")
        with pytest.raises(StoreUnavailable):
            Script(answers(finish_direct=Lost())).run(process_many(here, [ours, theirs], is_async=False, rest=True))
        again = Script(answers(known=known(theirs, seq=6, ordinal=1), ages=[(6, 0.0)]))
        (mine,), (other,) = again.run(process_many(here, [ours, theirs], is_async=False, rest=True))
        assert (mine.status, other.status) == ("accepted", "duplicate")

    def test_what_was_committed_before_a_conflict_is_its_own(self) -> None:
        """The first consumer's row is committed when the second's transaction meets another."""
        here, one = working(handler(), handler(consumer="other")), delivery()
        script = Script(answers(receive_direct=Turns(STORED, StoreConflict("deadlock"))))
        with pytest.raises(StoreConflict):
            run(here, script, one)
        again = Script(answers(receive_direct=Turns([], [(0, 6, NOW)]), known=known(one)))
        receipts = run(here, again, one)
        assert [receipt.status for receipt in receipts.values()] == ["accepted", "accepted"]
        assert again.params("count_duplicates") == []

    def test_a_handler_that_fails_on_a_lost_connection(self) -> None:
        """The rollback finds it broken; where there is no other connection the caller hears of it."""
        lost = {"call": Outcome(error=ValueError("x"), touched=True), "rollback": Lost()}
        script = Script(answers(**lost, reconnect=False))
        with pytest.raises(StoreUnavailable):
            run(working(handler()), script)
        assert script.params("add_attempt") == []
        script = Script(answers(**lost))
        run(working(handler()), script)
        assert len(script.params("add_attempt")) == 1  # on the next one; it was the handler's doing


class TestBatch:
    """A handler that takes a list."""

    BY = handler(batch=True)

    def test_it_gets_a_list_of_one(self) -> None:
        """And its one result is the message's."""
        script = Script(answers(call=Outcome(value=["r"])))
        assert run(working(self.BY), script)[SERVICE].result == "r"
        (call,) = script.all(Call)
        assert [one.seq for one in call.message] == [5]
        assert script.params("store_results") == [{"seq": 5, "result": '"r"'}]

    def test_nothing_is_a_result_too(self) -> None:
        """It need not return anything."""
        script = Script(answers())
        assert run(working(self.BY), script) == {SERVICE: Receipt("accepted", 5, finished=True)}

    @pytest.mark.parametrize("value", [["a", "b"], [], {"a": 1}, "r"])
    def test_a_wrong_number_of_results_breaks_the_contract(self, value: Any) -> None:
        """As at a worker: one result for each message, or none."""
        script = Script(answers(call=Outcome(value=value)))
        assert not run(working(self.BY), script)[SERVICE].finished

    def test_after_a_crash_it_gets_a_list_too(self) -> None:
        """Stored first, then handled like a worker's message."""
        one = delivery()
        script = Script(answers(call=Outcome(value=["r"]), known=known(one, result='"r"')))
        receipt = run(working(self.BY, after_crash=True), script, one)[SERVICE]
        assert receipt == Receipt("accepted", 5, finished=True, result="r")
        (call,) = script.all(Call)
        assert [each.seq for each in call.message] == [5]


class TestStoreFirst:
    """After a process died while it worked inline."""

    def test_it_is_stored_and_claimed_before_it_runs(self) -> None:
        """So that a message that kills its process is counted."""
        one = delivery()
        here = working(handler(), after_crash=True)
        script = Script(answers(known=known(one, result="1")))
        assert run(here, script, one) == {SERVICE: Receipt("accepted", 5, finished=True, result=1)}
        assert script.transactions == ["begin receive commit", "begin call finish commit", "begin known commit"]
        (row,) = script.params("receive")
        assert (row["state"], row["worker"], row["token"], row["isolation"]) == ("ready", WORKER, 1, APART)
        assert script.params("finish")[0]["seqs"] == [5]
        assert here.open_tokens == set()

    def test_a_failure_is_settled_under_its_claim(self) -> None:
        """Accepted, not finished."""
        one = delivery()
        script = Script(answers(call=Outcome(error=ValueError("x")), settle=[(5,)], known=known(one, finished=0)))
        receipt = run(working(handler(), after_crash=True), script, one)[SERVICE]
        assert receipt == Receipt("accepted", 5, error=Failure("ValueError", "x"))
        assert "begin settle add_attempt commit" in script.transactions

    def test_a_message_that_cannot_be_read_is_settled_too(self) -> None:
        """Dead, without a call."""
        for one in (delivery(data=None, body=b"{"), delivery(version=0)):
            script = Script(answers(settle=[(5,)], known=[], handled_elsewhere=[(False,)]))
            receipt = run(working(handler(), after_crash=True), script, one)[SERVICE]
            assert (receipt.seq, receipt.outcome) == (5, "dead")
            assert script.all(Call) == []
            assert script.params("settle")[0]["state"] == "dead"

    def test_with_a_key_a_worker_takes_it(self) -> None:
        """Order needs the claim's own rules: it is only stored, unnoted, and the workers are told."""
        here = working(handler(key="order"), after_crash=True)
        script = Script(answers())
        notified = listened(here)
        assert run(here, script) == {SERVICE: Receipt("accepted", 5)}
        assert notified == ["notify"]
        assert script.transactions == ["begin receive commit"]
        (row,) = script.params("receive")
        assert (row["worker"], row["token"], row["isolation"]) == (None, None, 0)
        assert here.open_tokens == set()

    @pytest.mark.parametrize("key", [None, "order"])
    def test_a_duplicate_is_a_duplicate(self, key: str | None) -> None:
        """Not run again; no claim is left open."""
        one = delivery()
        here = working(handler(key=key), after_crash=True)
        script = Script(answers(receive=[], known=known(one)))
        assert run(here, script, one) == {SERVICE: Receipt("duplicate", 5, finished=True)}
        assert here.open_tokens == set()

    def test_care_ends_with_its_time(self) -> None:
        """Then it is one transaction again."""
        here = working(handler(), after_crash=True)
        assert isinstance(here.context.clock, Clock)
        here.context.clock.now += 60
        script = Script(answers())
        run(here, script)
        assert script.transactions == ["begin receive_direct call finish_direct commit"]

    @pytest.mark.parametrize("place", ["receive", "commit"])
    def test_a_lost_answer_keeps_the_claim_open(self, place: str) -> None:
        """Perhaps it is claimed: whoever ends the lane lets its rows go."""
        here = working(handler(), after_crash=True)
        script = Script(answers(**{place: Lost()}))
        with pytest.raises(StoreUnavailable):
            run(here, script)
        assert here.open_tokens == {1}

    def test_it_waits_while_another_is_isolated(self) -> None:
        """While an isolated message is alone in this process no claim is written."""
        here, one = working(handler(), after_crash=True), delivery()
        here.isolation.leave(here)
        here.isolation.enter_alone("an isolated one")

        def wait(_: Wait) -> None:
            assert script.params("receive") == []
            here.isolation.leave("an isolated one")

        script = Script(answers(wait=wait, known=known(one)))
        assert run(here, script, one)[SERVICE].finished
        assert script.transactions[0] == "wait"

    def test_every_claim_is_inside(self) -> None:
        """With two consumers the second message is claimed too: nobody may believe to be alone meanwhile."""
        here = working(handler(), handler(consumer="mail"), after_crash=True)
        seen: list[bool] = []

        def call(_: Call) -> Outcome:
            seen.append(here.isolation.enter_alone("an isolated one"))
            here.isolation.leave("an isolated one")
            return Outcome()

        run(here, Script(answers(call=call, known=known(delivery()))))
        assert seen == [False, False]
