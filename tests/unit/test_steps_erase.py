"""Erasing: everything that holds what is looked for is found, and the erasure and its audit line are one commit."""

from __future__ import annotations

from typing import Any

import pytest

from onceward.blobs.bodies import LargeBodies
from onceward.domain import identity
from onceward.domain.reference import Reference, stored_headers
from onceward.errors import BlobsUnavailable, StoreUnavailable
from onceward.steps import erase as module
from onceward.steps.context import Context
from onceward.steps.erase import Match, erase, has_field, has_key, same_id, search
from tests.unit.builders import SERVICE, SOURCE, context
from tests.unit.script import Lost, Script, Turns

WHO: dict[str, Any] = {"actor": "ann", "reason": "a request"}
FREE = (None, None, None, SERVICE, 0, None, None)
BODY = b'{"mail":"ann"}'
AWAY = Reference("box/1", len(BODY), identity.body_hash(BODY).hex())


class Blobs:
    """A blob store with one body, or none, or away."""

    def __init__(self, body: bytes | None, error: Exception | None = None) -> None:
        self.body, self.error, self.deleted = body, error, list[str]()

    def get(self, _name: str) -> bytes | None:
        if self.error:
            raise self.error
        return self.body

    def delete(self, name: str) -> None:
        if self.error:
            raise self.error
        self.deleted.append(name)


def with_blobs(blobs: Blobs) -> Context:
    here = context()
    here.large = LargeBodies(blobs, 100, "box")  # type: ignore[arg-type] # as much of one as is used
    return here


def row(number: int, **changes: Any) -> tuple[Any, ...]:
    """A body, or a case of message 9, as the search reads it."""
    fields = {"type": "paid", "source": SOURCE, "key": None, "headers": None, "body": b"{}", "status": "finished"}
    return (number, *{**fields, **changes}.values())


class TestSearch:
    """Live, finished, dead, outgoing, in quarantine."""

    @pytest.mark.parametrize(
        ("test", "found"),
        [
            (has_key("ann"), [1]),
            (has_field("mail", "ann"), [2]),
            (has_field("header:mail", "ann"), [3]),
            (has_field("person.age", "7"), [4]),
        ],
    )
    def test_by_key_field_or_header(self, test: module.Test, found: list[int]) -> None:
        """Compared as text; what is no JSON has no fields."""
        bodies = [
            row(1, key="ann"),
            row(2, body=memoryview(BODY)),
            row(3, headers='{"mail":"ann"}'),
            row(4, body=b'{"person":{"age":7}}'),
            row(5, body=b"ann"),
            row(6, body=None),
        ]
        script = Script({"bodies_after": bodies, "cases_after": []})
        assert [one.seq for one in script.run(search(context(), test))] == found

    def test_it_goes_on_to_the_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """In pieces: of bodies by message, of mismatches by case."""
        monkeypatch.setattr(module, "CHUNK", 2)
        bodies = Turns([row(1), row(4, key="ann")], [row(6), row(8, key="ann")], [])
        cases = Turns([(1, *row(9)), (2, *row(7, key="ann"))], [(5, *row(8, key="ann"))])
        script = Script({"bodies_after": bodies, "cases_after": cases})
        assert script.run(search(context(), has_key("ann"))) == [
            Match(4, "paid", SOURCE, "finished"),
            Match(7, "paid", SOURCE, "finished", quarantined=True),
            Match(8, "paid", SOURCE, "finished"),
        ]
        assert [one["after"] for one in script.params("bodies_after")] == [0, 4, 8]
        assert [one["after"] for one in script.params("cases_after")] == [0, 2]

    def test_a_body_that_is_elsewhere_is_read(self) -> None:
        """Only for a field of it."""
        answers = {"bodies_after": [row(1, headers=stored_headers({}, AWAY), body=b"")], "cases_after": []}
        assert [one.seq for one in Script(answers).run(search(with_blobs(Blobs(BODY)), has_field("mail", "ann")))] == [
            1
        ]
        broken = with_blobs(Blobs(None, BlobsUnavailable("away")))
        assert Script(answers).run(search(broken, has_field("header:mail", "ann"))) == []
        with pytest.raises(BlobsUnavailable):
            Script(answers).run(search(broken, has_field("mail", "ann")))

    def test_a_body_that_is_lost_holds_nothing(self) -> None:
        """The search goes on: there is nothing left to erase of it."""
        answers = {
            "bodies_after": [row(1, headers=stored_headers({}, AWAY), body=b""), row(2, body=BODY)],
            "cases_after": [],
        }
        found = Script(answers).run(search(with_blobs(Blobs(None)), has_field("mail", "ann")))
        assert [one.seq for one in found] == [2]


def test_an_id_is_found_for_every_consumer() -> None:
    """In the order of their numbers, whatever the database's."""
    script = Script({"same_id": [(9,), (3,)]})
    assert script.run(same_id(context(), SOURCE, "e1")) == [3, 9]
    assert script.params("same_id") == [{"source": SOURCE, **identity.stored_range("e1")}]


class TestErase:
    """Discarded first, so nothing without a body can run."""

    def test_the_erasure_and_its_line_are_one_commit(self) -> None:
        script = Script({"key_of": [FREE], "discard": [(5,)], "lock_finished": [(5, None, None)]})
        assert script.run(erase(context(), 5, **WHO)) is True
        assert script.transactions == [
            "begin key_of discard add_audit commit",
            "begin lock_finished erase add_audit commit",
        ]
        assert script.params("add_audit")[-1] == {"action": "erase", "seq": 5, **WHO}

    def test_what_is_finished_is_only_erased(self) -> None:
        script = Script({"key_of": [], "discard": [], "lock_finished": [(5, None, None)]})
        assert script.run(erase(context(), 5, **WHO)) is True
        assert script.transactions == ["begin key_of discard rollback", "begin lock_finished erase add_audit commit"]

    def test_what_runs_is_left_alone(self) -> None:
        """No line, no erasure: it is not finished, or not there."""
        script = Script({"key_of": [FREE], "discard": [], "lock_finished": []})
        assert script.run(erase(context(), 5, **WHO)) is False
        assert script.transactions[-1] == "begin lock_finished rollback"
        assert script.params("add_audit") == []

    def test_its_blob_goes_after_its_row(self) -> None:
        """Unless another consumer's row refers to it."""
        blobs = Blobs(BODY)
        answers = {"key_of": [], "discard": [], "lock_finished": [(5, "box/1", "box/2")], "referred": [("box/2",)]}
        script = Script(answers)
        assert script.run(erase(with_blobs(blobs), 5, **WHO)) is True
        assert blobs.deleted == ["box/1"]
        assert script.transactions[1:] == [
            "begin lock_finished erase add_audit commit",
            "begin referred commit",
            "do",
        ]

    def test_a_blob_store_that_is_away_leaves_it_to_the_collector(self, caplog: pytest.LogCaptureFixture) -> None:
        """The row is blanked and committed."""
        answers = {"key_of": [], "discard": [], "lock_finished": [(5, "box/1", None)], "referred": []}
        assert Script(answers).run(erase(with_blobs(Blobs(None, BlobsUnavailable("away"))), 5, **WHO)) is True
        assert "the collector will remove them: away" in caplog.text

    @pytest.mark.parametrize("place", ["lock_finished", "erase", "add_audit", "commit"])
    def test_nothing_is_removed_before_the_commit(self, place: str) -> None:
        blobs = Blobs(BODY)
        answers = {"key_of": [], "discard": [], "lock_finished": [(5, "box/1", None)], "reconnect": False}
        with pytest.raises(StoreUnavailable):
            Script({**answers, place: Lost()}).run(erase(with_blobs(blobs), 5, **WHO))
        assert blobs.deleted == []
