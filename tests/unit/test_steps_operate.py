"""What people do is guarded, repeatable, and written down in the same commit."""

from __future__ import annotations

from typing import Any

import pytest

from onceward import identity
from onceward.errors import StoreConflict, StoreUnavailable
from onceward.flow import Each
from onceward.registry import Handler
from onceward.steps.context import Context
from onceward.steps.operate import Resolution, discard, redrive, resolve
from tests.unit.builders import NOW, SERVICE, catalog, catalog_answers, context, delivery, handler
from tests.unit.script import Lost, Script, Turns

WHO = {"actor": "ann", "reason": "fixed"}


class TestRedrive:
    """A dead message gets a new budget."""

    def test_the_change_and_its_audit_line_are_one_commit(self) -> None:
        """No action without its line."""
        script = Script({"redrive": [(5,)]})
        assert script.run(redrive(context(), 5, **WHO)) is True
        assert script.story == ["begin redrive add_audit commit"]
        assert script.params("add_audit") == [{"action": "redrive", "seq": 5, **WHO}]

    def test_the_second_click_changes_nothing(self) -> None:
        """Not dead any more: no line, and the answer says so."""
        script = Script({"redrive": []})
        assert script.run(redrive(context(), 5, **WHO)) is False
        assert script.story == ["begin redrive commit"]


class TestDiscard:
    """A message is taken out for good."""

    def test_without_a_key(self) -> None:
        """Removed and written down."""
        script = Script({"key_of": [(None,)], "discard": [(5,)]})
        assert script.run(discard(context(), 5, **WHO)) is True
        assert script.story == ["begin key_of discard add_audit commit"]
        assert script.params("add_audit") == [{"action": "discard", "seq": 5, **WHO}]

    def test_with_a_key_the_next_one_goes_on(self) -> None:
        """The key lock before the removal, the promotion after it."""
        script = Script({"key_of": [(77,)], "discard": [(5,)]})
        assert script.run(discard(context(), 5, **WHO)) is True
        assert script.story == ["begin key_of lock_keys discard promote add_audit commit"]
        assert script.params("lock_keys") == script.params("promote") == [{"key_hashes": [77]}]

    def test_a_running_or_finished_message_stays(self) -> None:
        """Nothing removed: nothing promoted, nothing written down."""
        for found in ([], [(77,)]):
            script = Script({"key_of": found, "discard": []})
            assert script.run(discard(context(), 5, **WHO)) is False
            assert "promote" not in script.story[0]
            assert "add_audit" not in script.story[0]


@pytest.mark.parametrize("failure", [Lost(), StoreConflict("deadlock")])
@pytest.mark.parametrize("place", ["redrive", "key_of", "discard", "add_audit", "commit"])
def test_without_a_commit_nothing_was_done(place: str, failure: Any) -> None:
    """A failure comes out; nothing more is sent."""
    for step in (redrive, discard):
        script = Script({"redrive": [(5,)], "key_of": [(77,)], "discard": [(5,)], place: failure})
        if place in ("key_of", "discard") and step is redrive or place == "redrive" and step is discard:
            continue
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
        assert script.story == ["begin quarantined resolve_quarantine add_audit commit"]
        assert script.params("quarantined") == [{"case_id": 3, "limit": 1}]
        assert script.params("resolve_quarantine") == [{"case_id": 3, "resolution": "keep-first", "accepted_seq": None}]
        assert script.params("add_audit") == [{"action": "keep-first", "seq": 7, **WHO}]

    def test_discard_the_second(self) -> None:
        """The case goes, with its line."""
        script = Script({"quarantined": [case()], "drop_quarantine": [(3,)]})
        assert decide(context(handler()), script, "discard") == 7
        assert script.story == ["begin quarantined drop_quarantine add_audit commit"]

    def test_accept_the_second_as_new(self) -> None:
        """A message of its own, with an id made of the first id and the hash of its bytes, in the same commit."""
        script = Script({"quarantined": [case(headers='{"a":"b"}')], "receive": [(0, 9, NOW)], "resolve_quarantine": [(3,)]})
        assert decide(context(handler(key="order")), script, "accept-as-new") == 9
        assert script.story == ["begin quarantined receive resolve_quarantine add_audit commit"]
        (row,) = script.params("receive")
        one = delivery(data={"order": 8})
        assert row["id"] == f"e1#{one.hash.hex()}"
        assert (row["body"], row["hash"], row["key"], row["headers"], row["state"]) == (
            one.body,
            one.hash,
            "8",
            '{"a":"b"}',
            "ready",
        )
        assert script.params("resolve_quarantine")[0]["accepted_seq"] == 9

    def test_every_consumer_gets_the_new_message(self) -> None:
        """Whoever wants the type gets a row; the answer is the first one's number."""
        here = context(handler(), handler(consumer="mail"))
        script = Script(
            {"quarantined": [case()], "receive": Turns([(0, 9, NOW)], [(0, 10, NOW)]), "resolve_quarantine": [(3,)]}
        )
        assert decide(here, script, "accept-as-new") == 9
        assert [row["consumer"] for row in script.params("receive")] == [1, 3]

    def test_a_case_that_is_not_open_is_left_alone(self) -> None:
        """Decided before: nothing happens."""
        script = Script({"quarantined": []})
        assert decide(context(handler()), script, "keep-first") is None
        assert script.story == ["begin quarantined rollback"]

    @pytest.mark.parametrize("resolution", ["keep-first", "discard", "accept-as-new"])
    def test_two_people_cannot_decide_differently(self, resolution: Resolution) -> None:
        """Whoever comes second finds the case closed, and everything of this decision is undone."""
        script = Script(
            {"quarantined": [case()], "receive": [(0, 9, NOW)], "resolve_quarantine": [], "drop_quarantine": []}
        )
        assert decide(context(handler()), script, resolution) is None
        assert script.story[0].endswith("quarantine rollback")
        assert "add_audit" not in script.story[0]

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
        assert script.story == ["begin catalog names subscriptions commit", "begin quarantined rollback"]
