"""What people do is guarded, repeatable, and written down in the same commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from onceward.domain import identity
from onceward.errors import ConfigurationError, StoreConflict, StoreUnavailable
from onceward.flow import Each, Flow
from onceward.registry import Handler
from onceward.steps.context import Context
from onceward.steps.operate import discard, redrive, resolve, settle_effect, unblock
from onceward.stores.moves.operations import Resolution
from tests.unit.builders import NOW, SERVICE, catalog, catalog_answers, context, delivery, handler
from tests.unit.script import Lost, Script

WHO: dict[str, Any] = {"actor": "ann", "reason": "fixed"}


FREE = (None, None, None, SERVICE, 0, None, None)
HASH = identity.key_hash("p_", SERVICE, "k")
KEYED = (HASH, "k", None, SERVICE, 0, None, None)
LEFT_BEHIND = (None, "k", None, SERVICE, 0, None, None)
COUNTED = (None, "k", None, SERVICE, 0, None, 3)


class TestRedrive:
    """A dead message gets a new budget."""

    @pytest.mark.parametrize(("found", "key_hash"), [(FREE, None), (KEYED, HASH)])
    def test_the_change_and_its_audit_line_are_one_commit(self, found: Any, key_hash: int | None) -> None:
        """No action without its line; the message keeps its key."""
        script = Script({"key_of": [found], "redrive": [(5,)]})
        assert script.run(redrive(context(), 5, **WHO)) is True
        assert script.transactions == ["begin key_of commit", "begin redrive add_audit commit"]
        assert script.params("redrive") == [{"seq": 5, "key_hash": key_hash, "seen_key": key_hash}]
        assert script.params("add_audit") == [{"action": "redrive", "seq": 5, **WHO}]

    @pytest.mark.parametrize("found", [[FREE], [KEYED], []])
    def test_the_second_click_changes_nothing(self, found: list[Any]) -> None:
        """Not dead any more, or finished: no line, and the answer says so."""
        script = Script({"key_of": found, "redrive": []})
        assert script.run(redrive(context(), 5, **WHO)) is False
        assert script.transactions == ["begin key_of commit", *(["begin redrive rollback"] if found else [])]

    def test_one_that_was_left_behind_is_refused(self) -> None:
        """Its key went on without it: running it now is out of order, and somebody must mean that."""
        script = Script({"key_of": [LEFT_BEHIND], "redrive": [(5,)]})
        with pytest.raises(ConfigurationError, match=r"left behind by its key 'k'.*out_of_order=True"):
            script.run(redrive(context(), 5, **WHO))
        assert script.transactions == ["begin key_of commit"]

    def test_out_of_order_it_takes_its_old_place(self) -> None:
        """Under the key it had."""
        script = Script({"key_of": [LEFT_BEHIND], "redrive": [(5,)]})
        assert script.run(redrive(context(), 5, **WHO, out_of_order=True)) is True
        assert script.params("redrive") == [{"seq": 5, "key_hash": HASH, "seen_key": None}]

    def test_its_number_counts_as_not_applied_again(self) -> None:
        """Or it would be stale, and only skipped."""
        script = Script({"key_of": [COUNTED], "redrive": [(5,)], "retreat": [(2,)]})
        assert script.run(redrive(context(), 5, **WHO, out_of_order=True)) is True
        assert script.transactions == ["begin key_of commit", "begin lock_keys redrive retreat add_audit commit"]
        assert script.params("retreat") == [{"seq": 5, "key_hash": HASH}]

    def test_a_number_that_was_passed_is_refused(self) -> None:
        """A later one is applied: running this one now would break what numbers are for."""
        script = Script({"key_of": [COUNTED], "redrive": [(5,)], "retreat": []})
        with pytest.raises(ConfigurationError, match=r"number 3 of its key 'k'.*would only be skipped"):
            script.run(redrive(context(), 5, **WHO, out_of_order=True))
        assert script.transactions == ["begin key_of commit", "begin lock_keys redrive retreat rollback"]

    def test_outgoing_messages_have_keys_per_destination(self) -> None:
        """The same key to another sink is another key."""
        hashes = set()
        for destination in (None, "a", "b"):
            script = Script({"key_of": [(None, "k", None, "onceward.outbox", 1, destination, None)], "redrive": [(5,)]})
            script.run(redrive(context(), 5, **WHO, out_of_order=True))
            hashes.add(script.params("redrive")[0]["key_hash"])
        assert len(hashes - {HASH}) == 3


class TestDiscard:
    """A message is taken out for good."""

    def test_without_a_key(self) -> None:
        """Removed and written down."""
        script = Script({"key_of": [FREE], "discard": [(5,)]})
        assert script.run(discard(context(), 5, **WHO)) is True
        assert script.transactions == ["begin key_of discard add_audit commit"]
        assert script.params("add_audit") == [{"action": "discard", "seq": 5, **WHO}]

    def test_with_a_key_the_next_one_goes_on(self) -> None:
        """The key lock before the removal, its number given up, the promotion after it."""
        script = Script({"key_of": [KEYED], "discard": [(5,)]})
        assert script.run(discard(context(), 5, **WHO)) is True
        assert script.transactions == ["begin key_of lock_keys advance discard promote add_audit commit"]
        assert script.params("lock_keys") == script.params("promote") == [{"key_hashes": [HASH]}]
        assert script.params("advance") == [{"seqs": [5]}]

    @pytest.mark.parametrize("found", [[], [FREE], [KEYED]])
    def test_a_running_or_finished_message_stays(self, found: list[Any]) -> None:
        """Nothing removed: everything undone, also the number that was given up; nothing written down."""
        script = Script({"key_of": found, "discard": []})
        assert script.run(discard(context(), 5, **WHO)) is False
        assert script.transactions[0].endswith(("discard rollback", "discard promote rollback"))


class TestUnblock:
    """A key goes on without its dead message."""

    def test_the_dead_message_leaves_its_key(self) -> None:
        """Under the key lock: number given up, detached, the next promoted, the line written."""
        script = Script({"key_of": [KEYED], "detach": [(5,)]})
        assert script.run(unblock(context(), 5, **WHO)) is True
        assert script.transactions == ["begin key_of lock_keys detach advance promote add_audit commit"]
        assert script.params("add_audit") == [{"action": "unblock", "seq": 5, **WHO}]

    @pytest.mark.parametrize("found", [[], [FREE], [KEYED]])
    def test_one_that_holds_no_key_is_left_alone(self, found: list[Any]) -> None:
        """Not there, without a key, or not dead: everything is undone."""
        script = Script({"key_of": found, "detach": []})
        assert script.run(unblock(context(), 5, **WHO)) is False
        assert script.transactions[0].endswith("rollback")
        assert "promote" not in script.transactions[0]


class TestSettleEffect:
    """A person says what became of an external call."""

    def say(self, script: Script, *, happened: bool, result: Any = None) -> bool:
        return script.run(settle_effect(context(), "key", 5, happened=happened, result=result, **WHO))

    def test_it_happened(self) -> None:
        """Recorded as done with its result, and written down."""
        script = Script({"lock_effect": [("key",)], "effect_held": [], "effect_done": [("key",)]})
        assert self.say(script, happened=True, result={"id": 1}) is True
        assert script.transactions == ["begin lock_effect effect_held effect_done add_audit commit"]
        assert script.params("effect_done") == [{"key": "key", "result": '{"id":1}'}]
        assert script.params("add_audit")[0]["action"] == "effect happened"

    def test_it_did_not_happen(self) -> None:
        """Forgotten, so that it may be made, and written down."""
        script = Script({"lock_effect": [("key",)], "effect_held": [], "effect_undone": [("key",)]})
        assert self.say(script, happened=False) is True
        assert script.transactions == ["begin lock_effect effect_held effect_undone add_audit commit"]
        assert script.params("add_audit")[0]["action"] == "effect did not happen"

    @pytest.mark.parametrize("happened", [True, False])
    def test_what_is_known_stays(self, happened: bool) -> None:  # noqa: FBT001 - a parameter
        """No line for a decision that changed nothing."""
        script = Script({"lock_effect": [("key",)], "effect_held": [], "effect_done": [], "effect_undone": []})
        assert self.say(script, happened=happened) is False
        assert "add_audit" not in script.transactions[0]

    @pytest.mark.parametrize("happened", [True, False])
    def test_nothing_is_said_about_what_runs(self, happened: bool) -> None:  # noqa: FBT001 - a parameter
        """An attempt has it in hand, and would go on without its intent."""
        script = Script({"lock_effect": [("key",)], "effect_held": [(5,)]})
        assert self.say(script, happened=happened) is False
        assert script.transactions == ["begin lock_effect effect_held rollback"]


@pytest.mark.parametrize("failure", [Lost(), StoreConflict("deadlock")])
@pytest.mark.parametrize(
    ("step", "place"),
    [
        *((redrive, place) for place in ("key_of", "redrive", "add_audit", "commit")),
        *(
            (discard, place)
            for place in ("key_of", "lock_keys", "advance", "discard", "promote", "add_audit", "commit")
        ),
        *((unblock, place) for place in ("key_of", "lock_keys", "advance", "detach", "promote", "add_audit", "commit")),
    ],
)
def test_without_a_commit_nothing_was_done(step: Callable[..., Flow[bool]], place: str, failure: Any) -> None:
    """A failure comes out; nothing more is sent."""
    script = Script({"key_of": [KEYED], "redrive": [(5,)], "discard": [(5,)], "detach": [(5,)], place: failure})
    with pytest.raises((StoreUnavailable, StoreConflict)):
        script.run(step(context(), 5, **WHO))


def case(seq: int = 7, **changes: Any) -> tuple[Any, ...]:
    """An open case, as it is read."""
    one = delivery(data={"order": 8})
    fields: dict[str, Any] = {
        "id": 3,
        "seq": seq,
        "hash": one.hash,
        "type": "paid",
        "version": 1,
        "headers": None,
        "body": one.body,
        "copies": 1,
        "first_at": NOW,
        "last_at": NOW,
        "source": "shop",
        "stored_id": b"re1",
        "first_hash": b"x" * 32,
        "first_body": b"{}",
        "consumer": SERVICE,
        "first_id": "e1",
        "key": None,
        "first_headers": None,
        "first_type": "paid",
        "first_version": 1,
        "position": None,
        "due_at": None,
    }
    return tuple({**fields, **changes}.values())


def decide(here: Context, script: Script, resolution: Resolution) -> int | None:
    return script.run(resolve(here, 3, resolution, **WHO))


class TestResolve:
    """A person decides about an id that came again with other bytes."""

    def test_keep_the_first(self) -> None:
        """The case is closed and the line written in one commit; nothing new is stored."""
        script = Script({"quarantined": [case()], "resolve_quarantine": [(3,)]})
        assert decide(context(handler()), script, "keep-first") == 7
        assert script.transactions == ["begin quarantined commit", "begin resolve_quarantine add_audit commit"]
        assert script.params("quarantined") == [{"case_id": 3, "limit": 1}]
        assert script.params("resolve_quarantine") == [{"case_id": 3, "resolution": "keep-first", "accepted_seq": None}]
        assert script.params("add_audit") == [{"action": "keep-first", "seq": 7, **WHO}]

    def test_discard_the_second(self) -> None:
        """The case goes, with its line."""
        script = Script({"quarantined": [case()], "drop_quarantine": [(3,)]})
        assert decide(context(handler()), script, "discard") == 7
        assert script.transactions == ["begin quarantined commit", "begin drop_quarantine add_audit commit"]
        assert script.params("add_audit") == [{"action": "discard-mismatch", "seq": 7, **WHO}]

    def test_accept_the_second_as_new(self) -> None:
        """A message of its own, its id made of the first id and the hashes of bytes and type, in the same commit."""
        script = Script(
            {"quarantined": [case(headers='{"a":"b"}')], "receive": [(0, 9, NOW)], "resolve_quarantine": [(3,)]}
        )
        assert decide(context(handler(key="order")), script, "accept-as-new") == 9
        assert script.transactions == ["begin quarantined commit", "begin receive resolve_quarantine add_audit commit"]
        (row,) = script.params("receive")
        one = delivery(data={"order": 8})
        assert row["id"] == f"e1#{one.hash.hex()}.{one.type_hash % 2**64:016x}"
        assert (row["body"], row["hash"], row["key"], row["headers"], row["state"]) == (
            one.body,
            one.hash,
            "8",
            '{"a":"b"}',
            "ready",
        )
        assert script.params("resolve_quarantine")[0]["accepted_seq"] == 9

    def test_the_consumer_of_the_case_gets_the_new_message(self) -> None:
        """Every consumer has a case of its own, and each is decided by itself."""
        here = context(handler(), handler(consumer="mail"))
        script = Script(
            {"quarantined": [case(consumer="mail")], "receive": [(0, 10, NOW)], "resolve_quarantine": [(3,)]}
        )
        assert decide(here, script, "accept-as-new") == 10
        assert [row["consumer"] for row in script.params("receive")] == [3]

    def test_an_explicit_key_is_kept(self) -> None:
        """The caller gave it with the second body."""
        script = Script({"quarantined": [case(key="k")], "receive": [(0, 9, NOW)], "resolve_quarantine": [(3,)]})
        assert decide(context(handler()), script, "accept-as-new") == 9
        assert script.params("receive")[0]["key"] == "k"

    def test_a_case_that_is_not_open_is_left_alone(self) -> None:
        """Decided before: nothing happens."""
        script = Script({"quarantined": []})
        assert decide(context(handler()), script, "keep-first") is None
        assert script.transactions == ["begin quarantined commit"]

    @pytest.mark.parametrize("resolution", ["keep-first", "discard", "accept-as-new"])
    def test_two_people_cannot_decide_differently(self, resolution: Resolution) -> None:
        """Whoever comes second finds the case closed, and everything of this decision is undone."""
        script = Script(
            {"quarantined": [case()], "receive": [(0, 9, NOW)], "resolve_quarantine": [], "drop_quarantine": []}
        )
        assert decide(context(handler()), script, resolution) is None
        assert script.transactions[1].endswith("quarantine rollback")
        assert "add_audit" not in script.transactions[1]

    @pytest.mark.parametrize("first_id", [None, ""])
    def test_an_id_without_a_body_is_read_from_the_ledger(self, first_id: str | None) -> None:
        """Where the first body is gone, the id comes from its stored form."""
        script = Script(
            {"quarantined": [case(first_id=first_id)], "receive": [(0, 9, NOW)], "resolve_quarantine": [(3,)]}
        )
        decide(context(handler()), script, "accept-as-new")
        assert script.params("receive")[0]["id"].startswith("e1#")

    @pytest.mark.parametrize("original", ["x" * 1024, "ü" * 512, "ü" * 480, "\U0001f600" * 256])
    def test_a_long_id_can_be_accepted_too(self, original: str) -> None:
        """Whatever id was accepted once, the new id made from it is acceptable as well."""
        here = context(handler())
        row = case(first_id=original, stored_id=identity.stored_id(original))
        script = Script({"quarantined": [row], "receive": [(0, 9, NOW)], "resolve_quarantine": [(3,)]})
        assert decide(here, script, "accept-as-new") == 9

    def test_long_ids_that_begin_alike_stay_apart(self) -> None:
        """Two cases of different long ids with the same second body become two messages."""
        new = set()
        for tail in "ab":
            original = "x" * 1000 + tail
            row = case(first_id=original, stored_id=identity.stored_id(original))
            script = Script({"quarantined": [row], "receive": [(0, 9, NOW)], "resolve_quarantine": [(3,)]})
            decide(context(handler()), script, "accept-as-new")
            new.add(script.params("receive")[0]["stored_id"])
        assert len(new) == 2

    def test_a_source_that_another_process_added_is_looked_up(self) -> None:
        """The case names its source; this process may not have read its number yet."""
        here = context(handler())
        later = catalog(handler())
        names = [(1, SERVICE), (2, "shop"), (9, "new")]
        script = Script(
            {
                "quarantined": [case(source="new")],
                "receive": [(0, 9, NOW)],
                "resolve_quarantine": [(3,)],
                **catalog_answers(later),
                "names": names,
            }
        )
        assert decide(here, script, "accept-as-new") == 9
        assert script.params("receive")[-1]["source"] == 9

    def test_a_message_is_not_lost_under_an_old_catalog(self) -> None:
        """An insert refused by its guard is not an acceptance: the catalog is read again, or the case stays open."""
        here, current = context(handler()), catalog(handler(), handler("sent"), version=2)

        def guarded(request: Each) -> list[Any]:
            return [(0, 9, NOW)] if request.shared["catalog"] == current.version else []

        script = Script(
            {
                "quarantined": [case()],
                "receive": guarded,
                "known": [],
                "resolve_quarantine": [(3,)],
                **catalog_answers(current),
            }
        )
        try:
            answer = decide(here, script, "accept-as-new")
        except StoreConflict:
            return  # the caller runs the step again
        assert answer in (None, 9)
        closed = [one["accepted_seq"] for one in script.params("resolve_quarantine")]
        assert answer is None or closed[-1:] == [9]

    def test_it_gives_up_in_the_end(self) -> None:
        """Where the catalog changes again and again nothing is decided, and the caller hears of it."""
        here = context(handler())
        script = Script(
            {"quarantined": [case()], "receive": [], "known": [], **catalog_answers(catalog(handler(), version=2))}
        )
        with pytest.raises(StoreConflict, match="try again"):
            decide(here, script, "accept-as-new")
        assert script.params("resolve_quarantine") == script.params("add_audit") == []

    def test_what_is_there_already_is_not_stored_twice(self) -> None:
        """A second case of the same bytes, for another consumer, leads to the message that the first one made."""
        one = delivery(data={"order": 8})
        script = Script(
            {
                "quarantined": [case()],
                "receive": [],
                "known": [(0, 9, one.hash, one.type_hash, 0, None, 0.0)],
                "resolve_quarantine": [(3,)],
            }
        )
        assert decide(context(handler()), script, "accept-as-new") == 9
        assert script.params("resolve_quarantine")[0]["accepted_seq"] == 9

    @pytest.mark.parametrize("failure", [Lost(), StoreConflict("deadlock")])
    @pytest.mark.parametrize("place", ["quarantined", "receive", "resolve_quarantine", "add_audit", "commit"])
    def test_without_a_commit_nothing_was_decided(self, place: str, failure: Any) -> None:
        """A failure comes out; nothing more is sent."""
        script = Script(
            {"quarantined": [case()], "receive": [(0, 9, NOW)], "resolve_quarantine": [(3,)], place: failure}
        )
        with pytest.raises((StoreUnavailable, StoreConflict)):
            decide(context(handler()), script, "accept-as-new")

    def test_a_process_that_never_looked_reads_the_catalog_first(self) -> None:
        """The command line begins with an empty cache."""
        mine: Handler = handler()
        here = context(mine)
        here.cache.catalog = type(here.cache.catalog)()
        script = Script({**catalog_answers(catalog(mine)), "quarantined": []})
        assert decide(here, script, "keep-first") is None
        assert script.transactions == [
            "begin catalog names subscriptions unhandled_types pauses commit",
            "begin quarantined commit",
        ]
