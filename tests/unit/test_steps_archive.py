"""What goes to the archive stands there as anything can read it; bodies leave by their numbers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from onceward.domain.reference import Reference, stored_headers
from onceward.errors import StoreUnavailable
from onceward.settings import Settings
from onceward.steps.archive import drop_archived, next_archivable
from tests.unit.builders import NOW, SERVICE, SOURCE, context
from tests.unit.script import Lost, Script

HERE = context(settings=Settings(body_retention=timedelta(days=2)))
AWAY = Reference("box/1", 900, "ab" * 32)


def row(**changes: Any) -> tuple[Any, ...]:
    fields = {
        "seq": 5,
        "source": SOURCE,
        "consumer": SERVICE,
        "id": "e1",
        "type": "paid",
        "version": 1,
        "key": "k",
        "key_from": "caller",
        "position": None,
        "headers": '{"h":"1"}',
        "body": memoryview(b"{}"),
        "sha256": "ab",
        "destination": None,
        "cause": None,
        "received_at": NOW,
        "result": '{"n":1}',
    }
    assert changes.keys() <= fields.keys()
    return tuple({**fields, **changes}.values())


def test_a_message_as_it_will_stand_in_the_file() -> None:
    """Everything about it, in words of JSON."""
    script = Script({"archivable": [row()]})
    ((record, reference),) = script.run(next_archivable(HERE, 4, 10))
    assert script.params("archivable") == [{"after": 4, "keep": 172_800.0, "limit": 10}]
    assert reference is None
    assert record == {
        "seq": 5,
        "source": SOURCE,
        "id": "e1",
        "type": "paid",
        "version": 1,
        "key": "k",
        "key_given": True,
        "position": None,
        "consumer": SERVICE,
        "received_at": "2023-11-14T22:13:20+00:00",
        "sha256": "ab",
        "headers": {"h": "1"},
        "to": None,
        "cause": None,
        "result": {"n": 1},
        "body": "{}",
    }


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"body": None}, {"body": None}),
        ({"body": b"\xff"}, {"body_base64": "/w=="}),
        ({"result": None}, {"result": None}),
        ({"key_from": "path"}, {"key_given": False}),
        ({"headers": None}, {"headers": {}}),
    ],
)
def test_what_is_not_there_or_no_text(changes: dict[str, Any], shown: dict[str, Any]) -> None:
    ((record, _),) = Script({"archivable": [row(**changes)]}).run(next_archivable(HERE, 0, 10))
    assert record.items() >= shown.items()


def test_a_body_that_is_elsewhere_is_named() -> None:
    """Its reference is no header of the message, and its empty row is no body."""
    rows = [row(headers=stored_headers({"h": "1"}, AWAY), body=b"")]
    ((record, reference),) = Script({"archivable": rows}).run(next_archivable(HERE, 0, 10))
    assert (record["headers"], record["body"], reference) == ({"h": "1"}, None, AWAY)


def test_bodies_leave_by_their_numbers() -> None:
    """Of those that are still there; rows are locked first, so that a copy that comes now waits."""
    script = Script({"lock_ledger": [(5,), (7,)], "drop_bodies": [(5,), (7,)]})
    assert script.run(drop_archived(HERE, [5, 6, 7])) == 2
    assert script.transactions == ["begin lock_ledger drop_bodies commit"]
    assert script.params("drop_bodies") == [{"seqs": [5, 7]}]


@pytest.mark.parametrize("place", ["lock_ledger", "drop_bodies", "commit"])
def test_nothing_is_counted_that_is_not_committed(place: str) -> None:
    answers: dict[str, Any] = {"lock_ledger": [(5,)], "drop_bodies": [(5,)], "reconnect": False}
    with pytest.raises(StoreUnavailable):
        Script({**answers, place: Lost()}).run(drop_archived(HERE, [5]))
