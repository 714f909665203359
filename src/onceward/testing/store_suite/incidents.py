"""What operators do in an incident: try now what waits, take out what nothing will run, correct what fails."""

from __future__ import annotations

import threading
from datetime import timedelta
from functools import partial

import pytest

from onceward import Circuit, ConfigurationError, Message, Retry, RetryPolicy
from onceward.admin.overview import Failing
from onceward.testing.store_suite.behaviour import Behaviour, Steps, Until, raising, wrote
from onceward.testing.store_suite.shop import Shop, in_threads

ONCE = RetryPolicy(attempts=1)


def paying() -> Behaviour:
    """One effect, with the amount; without one the message fails."""

    def behaviour(message: Message) -> Steps:
        yield wrote(message, str(message.data.get("amount")))
        if "amount" not in message.data:
            raise KeyError("amount")

    return behaviour


def is_running(shop: Shop, seq: int) -> bool:
    """Whether a worker has a message in hand."""
    return shop.status(seq) == "running"


class Incidents:
    """Messages that wait are tried at once, or never again; one by one, and by what they have in common."""

    def test_a_retrying_message_is_tried_now(self, shop: Shop) -> None:
        """It does not wait for the end of its delay, keeps its attempts, and the audit says who wanted it."""
        shop.handle(behaviour=raising(lambda: RuntimeError("the bank is away"), attempts=1))
        seq = shop.receive("m1").seq
        shop.drain()
        assert (shop.status(seq), shop.drain()) == ("retrying", 0)
        assert shop.call(shop.inbox.admin, "retry_now", seq, reason="it is back", actor="ann") == 1
        assert (shop.status(seq), shop.detail(seq).attempts) == ("due", 1)
        assert shop.call(shop.inbox.admin, "retry_now", seq) == 0, "it is due already"
        assert (shop.drain(), shop.effects()) == (1, ["m1"])
        assert [(one.actor, one.action, one.reason) for one in shop.detail(seq).actions] == [
            ("ann", "hasten", "it is back")
        ]

    def test_retrying_messages_are_chosen_by_how_they_failed(self, shop: Shop) -> None:
        """By type and by fingerprint; what is dead, scheduled or due is another matter."""
        shop.handle("bank", behaviour=raising(lambda: RuntimeError("the bank is away")))
        shop.handle("post", behaviour=raising(lambda: KeyError("zip")))
        for message_id, message_type in (("b1", "bank"), ("b2", "bank"), ("p1", "post")):
            shop.receive(message_id, message_type)
        shop.drain()
        shop.receive("later", "bank", delay=3600)
        shop.receive("due", "bank")
        cause = shop.detail("b1").history[-1].fingerprint
        found = shop.call(shop.inbox.admin, "select", status="retrying", fingerprint=cause)
        assert found.seqs == (shop.seqs["b1"], shop.seqs["b2"])
        assert shop.call(shop.inbox.admin, "retry_now", fingerprint=cause, reason="it is back") == 2
        told = ("b1", "b2", "p1", "later", "due")
        assert [shop.status(one) for one in told] == ["due", "due", "retrying", "scheduled", "due"]
        assert shop.call(shop.inbox.admin, "retry_now", type="post") == 1
        assert shop.status("p1") == "due"

    def test_many_operators_try_a_message_at_once(self, shop: Shop) -> None:
        """Of many clicks one changes it; of a click and a discard, what came last is true."""
        shop.handle(behaviour=raising(lambda: RuntimeError("not yet")))
        seqs = [shop.receive(f"m{number}").seq for number in range(4)]
        shop.drain()
        admin = shop.inbox.admin
        assert sum(in_threads(*(partial(admin.retry_now, seqs[0]) for _ in range(8)))) == 1
        assert len(shop.detail(seqs[0]).actions) == 1
        for seq in seqs[1:]:
            in_threads(partial(admin.retry_now, seq), partial(admin.discard, seq))
            assert shop.status(seq) == "discarded", "what is due may be discarded, and what is gone is not tried"

    def test_what_waits_is_discarded_by_its_status(self, shop: Shop) -> None:
        """Retrying, scheduled, waiting, unhandled and due ones; each by its own word, and no other."""
        shop.handle("keyed", behaviour=raising(lambda: RuntimeError("not yet")), key="order")
        shop.receive("retrying", "keyed", data={"order": 1})
        shop.receive("waiting", "keyed", data={"order": 1})
        shop.receive("unhandled", "unknown")
        shop.receive("scheduled", "keyed", data={"order": 2}, delay=3600)
        shop.drain()
        shop.receive("due", "keyed", data={"order": 3})
        left = ["waiting", "unhandled", "scheduled", "due", "retrying"]
        assert {one: shop.status(one) for one in left} == {one: one for one in left}
        assert shop.call(shop.inbox.admin, "discard", type="keyed") == 0, "none is dead"
        while left:
            status = left.pop(0)
            assert shop.call(shop.inbox.admin, "discard", status=status, reason="a test") == 1
            assert shop.status(status) == "discarded"
            assert {one: shop.status(one) for one in left} == {one: one for one in left}
        with pytest.raises(ConfigurationError, match="status"):
            shop.call(shop.inbox.admin, "discard", status="running")

    def test_a_discarded_head_lets_its_key_go_on(self, shop: Shop) -> None:
        """What waits behind a retrying message runs when that is discarded."""
        shop.handle(behaviour=raising(lambda: RuntimeError("not yet"), attempts=1), key="order")
        shop.receive("m1", data={"order": 1})
        shop.drain()
        shop.receive("m2", data={"order": 1})
        shop.drain()
        assert [shop.status(one) for one in ("m1", "m2")] == ["retrying", "waiting"]
        assert shop.call(shop.inbox.admin, "discard", status="retrying", key="1", reason="wrong") == 1
        shop.drain()
        assert [shop.status(one) for one in ("m1", "m2")] == ["discarded", "retrying"]

    def test_numbered_messages_are_discarded_from_the_first_on(self, shop: Shop) -> None:
        """A later number of a key is left alone, and the answer says why; the first one may go."""
        shop.handle(behaviour=raising(lambda: RuntimeError("not yet")), key="order", sequence="n")
        for number in (1, 2):
            shop.receive(f"m{number}", data={"order": 1, "n": number})
        shop.drain()
        first, second = shop.seqs["m1"], shop.seqs["m2"]
        applied = shop.call(shop.inbox.admin, "apply", "discard", [second], reason="a test")
        assert (applied.changed, "an earlier number of its key" in applied.left[second]) == ([], True)
        applied = shop.call(shop.inbox.admin, "apply", "discard", [first, second], reason="a test")
        assert (applied.changed, applied.left) == ([first, second], {})

    def test_a_corrected_body_runs(self, shop: Shop) -> None:
        """It is dead, gets another body and a new budget; what it was and is stays known, and no copy is a mismatch."""
        shop.handle(behaviour=paying(), retry=ONCE)
        seq = shop.receive("m1", data={"order": 1}).seq
        shop.drain()
        first = shop.detail(seq)
        assert first.status == "dead"
        found = shop.call(shop.inbox.admin, "revision", seq, data={"order": 1, "amount": 7})
        assert (found.differences, found.effects, found.is_possible) == ((("amount", "(missing)", 7),), (), True)
        assert shop.call(
            shop.inbox.admin, "edit", seq, data={"order": 1, "amount": 7}, reason="it was missing", actor="ann"
        )
        assert (shop.status(seq), shop.detail(seq).attempts, len(shop.detail(seq).history)) == ("due", 0, 1)
        assert not shop.call(shop.inbox.admin, "edit", seq, data={"order": 2}), "it is due"
        assert (shop.drain(), shop.notes()) == (1, [("m1", "7")])
        detail = shop.detail(seq)
        assert (detail.status, detail.body, detail.hash) == ("done", b'{"amount":7,"order":1}', first.hash)
        assert [(one.actor, one.action, one.reason) for one in detail.actions] == [("ann", "edit", "it was missing")]
        assert [(case.resolution, case.copies) for case in detail.cases] == [("revision", 0)] * 2
        for data in ({"order": 1}, {"order": 1, "amount": 7}):
            assert shop.receive("m1", data=data).status == "duplicate"
            assert shop.process("m1", data=data).status == "duplicate"
        assert shop.receive("m1", data={"order": 9}).status == "mismatch"
        assert (shop.inbox.admin.stats().quarantined, shop.drain()) == (1, 0)

    def test_a_retrying_message_is_corrected(self, shop: Shop) -> None:
        """It does not wait for its next try; edited again, the first body is still the one it came with."""
        shop.handle(behaviour=paying())
        shop.receive("m1", data={"order": 1})
        shop.drain()
        assert shop.status("m1") == "retrying"
        seq = shop.seqs["m1"]
        assert shop.call(shop.inbox.admin, "edit", seq, data={"order": 1, "total": 7}, reason="a test")
        shop.drain()
        assert (shop.status("m1"), shop.detail("m1").attempts) == ("retrying", 1)
        assert shop.call(shop.inbox.admin, "edit", seq, data={"order": 1, "amount": 8}, reason="a test")
        shop.drain()
        assert (shop.status("m1"), shop.notes()) == ("done", [("m1", "8")])
        for data in ({"order": 1}, {"order": 1, "total": 7}, {"order": 1, "amount": 8}):
            assert shop.receive("m1", data=data).status == "duplicate"

    def test_an_open_case_with_the_corrected_bytes_is_decided(self, shop: Shop) -> None:
        """The sender has corrected it under the same id: its body is taken, and the case is closed."""
        shop.handle(behaviour=paying(), retry=ONCE)
        shop.receive("m1", data={"order": 1})
        shop.drain()
        assert shop.receive("m1", data={"order": 1, "amount": 7}).status == "mismatch"
        assert shop.call(shop.inbox.admin, "edit", shop.seqs["m1"], data={"order": 1, "amount": 7}, reason="as resent")
        assert shop.inbox.admin.quarantine() == []
        assert (shop.drain(), shop.notes()) == (1, [("m1", "7")])
        assert shop.receive("m1", data={"order": 1, "amount": 7}).status == "duplicate"

    def test_key_and_number_of_a_message_stay(self, shop: Shop) -> None:
        """A body that belongs elsewhere in the order is refused; one that belongs there keeps its place."""
        shop.handle(behaviour=paying(), key="order", sequence="n", retry=ONCE)
        shop.receive("m1", data={"order": 1, "n": 1})
        shop.drain()
        shop.receive("m2", data={"order": 1, "n": 2, "amount": 2})
        shop.drain()
        assert [shop.status(one) for one in ("m1", "m2")] == ["dead", "waiting"]
        seq = shop.seqs["m1"]
        for data in ({"order": 2, "n": 1, "amount": 1}, {"order": 1, "n": 3, "amount": 1}):
            with pytest.raises(ConfigurationError, match="type, key and sequence stay"):
                shop.call(shop.inbox.admin, "edit", seq, data=data, reason="a test")
        assert (shop.status("m1"), shop.detail("m1").cases) == ("dead", ())
        assert shop.call(shop.inbox.admin, "edit", seq, data={"order": 1, "n": 1, "amount": 1}, reason="a test")
        shop.drain()
        assert [one for one, _ in shop.journal()] == ["m1", "m2"]

    def test_what_was_called_already_is_shown_before_an_edit(self, shop: Shop) -> None:
        """A result of message.once is on record: it is shown, and the call is not made again."""
        calls: list[object] = []

        def call(message: Message) -> str:
            calls.append(message.data)
            return "ch_1"

        def charge(message: Message) -> Steps:
            message.once("charge", lambda: call(message))
            yield from paying()(message)

        async def charge_async(message: Message, tx: object) -> None:
            await message.once("charge", lambda: call(message))
            if "amount" not in message.data:
                raise KeyError("amount")
            step = wrote(message, str(message.data["amount"]))
            await step.take_async(tx, shop.place)

        if shop.kind == "def":
            shop.handle(behaviour=charge, retry=ONCE)
        else:
            shop.inbox.on("order.paid", retry=ONCE)(charge_async)
        seq = shop.receive("m1", data={"order": 1}).seq
        shop.drain()
        found = shop.call(shop.inbox.admin, "revision", seq, data={"order": 1, "amount": 7})
        assert [(one.name, one.result) for one in found.effects] == [("charge", "ch_1")]
        assert shop.call(shop.inbox.admin, "edit", seq, data={"order": 1, "amount": 7}, reason="a test")
        assert (shop.drain(), shop.notes(), calls) == (1, [("m1", "7")], [{"order": 1}])

    def test_of_many_operators_one_edits(self, shop: Shop) -> None:
        """The first one wins; the others change nothing, whatever they have seen."""
        shop.handle(behaviour=paying(), retry=ONCE)
        seq = shop.receive("m1", data={"order": 1}).seq
        shop.drain()
        admin = shop.inbox.admin

        def edit(amount: int) -> bool:
            try:
                return admin.edit(seq, data={"order": 1, "amount": amount}, reason="a test")
            except ConfigurationError:
                return False

        assert sum(in_threads(*(partial(edit, number) for number in range(8)))) == 1
        assert [line.action for line in admin.audit()] == ["edit"]
        assert shop.drain() == 1
        assert len(shop.detail(seq).cases) == 2

    def test_what_cannot_be_edited_is_refused(self, shop: Shop) -> None:
        """What is due, done or unknown; a body that changes nothing; no body at all."""
        shop.handle("doomed", behaviour=paying(), retry=ONCE)
        doomed = shop.receive("m2", "doomed", data={"order": 1}).seq
        shop.drain()
        with pytest.raises(ConfigurationError, match="has this body already"):
            shop.call(shop.inbox.admin, "edit", doomed, data={"order": 1}, reason="a test")
        shop.handle(behaviour=paying(), retry=ONCE)
        seq = shop.receive("m1", data={"amount": 1}).seq
        admin = shop.inbox.admin
        assert not shop.call(admin, "edit", seq, data={"amount": 2}, reason="a test")
        shop.drain()
        assert not shop.call(admin, "edit", seq, data={"amount": 2}, reason="a test")
        assert not shop.call(admin, "edit", 999_999, data={"amount": 2}, reason="a test")
        assert shop.call(admin, "revision", 999_999, data={}) is None
        assert not shop.call(admin, "revision", seq, data={}).is_possible
        for wrong in ({}, {"data": {}, "body": b"{}"}, {"body": "{}"}):
            with pytest.raises(ConfigurationError):
                shop.call(admin, "edit", seq, **wrong, reason="a test")
        assert [line.action for line in admin.audit()] == []

    def test_what_is_paused_is_no_backlog(self, shop: Shop) -> None:
        """It is due, or tried again, because an operator wants it so; the rest is counted as ever."""

        def failing(message: Message) -> Steps:
            yield wrote(message)
            raise Retry("not yet", after=3600)

        for message_type in ("stopped", "goes"):
            shop.handle(message_type, behaviour=failing, key="order")
            for number in (1, 2):
                shop.receive(f"{message_type}{number}", message_type, data={"order": message_type})
        shop.drain()
        for message_type in ("stopped", "goes"):
            shop.receive(f"{message_type}3", message_type, data={"order": f"another {message_type}"})
        admin, none = shop.inbox.admin, timedelta(0)
        assert (admin.backlog().due, admin.backlog().retrying) == (2, 2)
        assert admin.failing(times=1, held_for=none) == Failing(2, 2)
        assert shop.call(admin, "pause", type="stopped", reason="a test")
        assert (admin.backlog().due, admin.backlog().retrying, admin.stats().due) == (1, 1, 2)
        assert admin.failing(times=1, held_for=none) == Failing(1, 1)
        assert shop.call(admin, "pause", everything=True, reason="a test")
        assert (admin.backlog()[:3], admin.failing(times=1, held_for=none)) == ((0, 0.0, 0), Failing(0, 0))

    def test_open_circuits_are_told_with_the_heartbeat(self, shop: Shop) -> None:
        """Each process has its own; an operator elsewhere sees in which they are open."""

        def down(message: Message) -> Steps:
            yield wrote(message)
            raise ConnectionError

        shop.handle("down", behaviour=down, circuit=Circuit(failures=1, pause=timedelta(hours=1)))
        shop.handle("calm")
        with shop.running():
            assert [one.circuit_open_in for one in shop.inbox.admin.handlers()] == [0, 0]
            shop.receive("m1", "down")
            shop.wait(lambda: any(one.open_circuits for one in shop.inbox.admin.workers()))
            handlers = {one.type: one for one in shop.inbox.admin.handlers()}
            assert (handlers["down"].circuit_open_in, handlers["calm"].circuit_open_in) == (1, 0)
            assert 3000 < handlers["down"].circuit_open_seconds <= 3600


class Interrupting:
    """A running message is taken from its worker."""

    def test_what_an_interrupted_message_does_is_not_committed(self, shop: Shop) -> None:
        """It is dead at once; its handler comes to its end in vain, and the worker goes on with others."""
        enough = threading.Event()

        def waiting(message: Message) -> Steps:
            yield Until(enough.is_set)
            yield wrote(message)

        shop.handle("slow", behaviour=waiting)
        shop.handle("calm")
        with shop.running():
            seq = shop.receive("m1", "slow").seq
            shop.wait(lambda: shop.status(seq) == "running")
            admin = shop.inbox.admin
            assert (
                sum(in_threads(*(partial(admin.interrupt, seq, reason="too slow", actor="ann") for _ in range(8)))) == 1
            )
            assert shop.status(seq) == "dead"
            enough.set()
            shop.receive("m2", "calm")
            shop.wait(lambda: shop.status("m2") == "done")
        detail = shop.detail(seq)
        assert (shop.effects(), detail.status, detail.attempts) == (["m2"], "dead", 1)
        assert [one.error for one in detail.history] == ["Interrupted: by ann: too slow"]
        assert [(one.actor, one.action, one.reason) for one in detail.actions] == [("ann", "interrupt", "too slow")]
        assert shop.call(admin, "redrive", seq) == 1
        assert (shop.drain(), shop.effects()) == (1, ["m1", "m2"])

    def test_a_key_waits_behind_an_interrupted_message_unless_it_goes_on_without(self, shop: Shop) -> None:
        """As behind any dead one, by what its handler says."""
        enough = threading.Event()

        def waiting(message: Message) -> Steps:
            yield Until(enough.is_set)
            yield wrote(message)

        for message_type, on_dead in (("blocks", "block"), ("continues", "continue")):
            enough.clear()
            shop.handle(message_type, behaviour=waiting, key="order", aggregate=message_type, on_dead=on_dead)
            with shop.running():
                first = shop.receive(f"{message_type}1", message_type, data={"order": 1}).seq
                shop.wait(partial(is_running, shop, first))
                second = shop.receive(f"{message_type}2", message_type, data={"order": 1}).seq
                assert shop.call(shop.inbox.admin, "interrupt", first, reason="a test") == 1
                enough.set()
            shop.drain()
            statuses = [shop.status(first), shop.status(second)]
            assert statuses == ["dead", "waiting" if on_dead == "block" else "done"]
