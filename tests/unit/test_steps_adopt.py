"""Ids that were handled elsewhere are remembered in one transaction, in the order in which receives insert."""

from __future__ import annotations

import pytest

from onceward.domain import identity
from onceward.errors import ConfigurationError, StoreUnavailable
from onceward.registry import OUTBOX
from onceward.steps.adopt import HandledId, adopt, check_consumers, consumers_of, known_ids
from tests.unit.builders import SERVICE, SOURCE, catalog_answers, context, handler
from tests.unit.script import Lost, Script

IDS = [HandledId("b", 5), HandledId("a", 7)]


def test_who_may_get_a_copy() -> None:
    """The service, and every consumer that this program or the database knows; never the relay."""
    here = context(handler(consumer="ours"), strangers=(handler("other", consumer="theirs"),))
    script = Script(catalog_answers(here.cache.catalog))
    assert script.run(consumers_of(here)) == sorted(["ours", SERVICE, "theirs"])


def test_all_of_them_are_one_transaction() -> None:
    """For each consumer, sorted, so that what overlaps cannot deadlock; what was known already is not new."""
    here = context(handler(consumer="ours"))
    script = Script({"import_ids": [(0,), (2,)]})
    assert script.run(adopt(here, SOURCE, [SERVICE, "ours"], IDS)) == 2
    assert script.transactions == ["begin import_ids commit"]
    rows = script.params("import_ids")
    assert [(row["ordinal"], row["consumer"], row["stored_id"], row["age"]) for row in rows] == [
        (0, 1, identity.stored_id("a"), 7),
        (1, 1, identity.stored_id("b"), 5),
        (2, 3, identity.stored_id("a"), 7),
        (3, 3, identity.stored_id("b"), 5),
    ]
    assert {row["source"] for row in rows} == {2}


def test_without_ids_nothing_is_asked() -> None:
    script = Script({})
    assert script.run(adopt(context(handler()), SOURCE, [SERVICE], [])) == 0
    assert script.transactions == []


@pytest.mark.parametrize("place", ["import_ids", "commit"])
def test_what_is_not_committed_is_not_counted(place: str) -> None:
    """The import is repeated: what is there already stays as it is."""
    with pytest.raises(StoreUnavailable):
        Script({"import_ids": [(0,)], "reconnect": False, place: Lost()}).run(
            adopt(context(handler()), SOURCE, [SERVICE], IDS)
        )


def test_counting_writes_nothing() -> None:
    """Not even names: those that are not there have no ids."""
    here = context(handler())
    script = Script({"known": [(0, 9, b"", b"", 1, None, 0.0)]})
    assert script.run(known_ids(here, SOURCE, [SERVICE, "unknown"], IDS)) == 1
    assert script.transactions == ["begin known commit"]
    assert [row["consumer"] for row in script.params("known")] == [1, 1]
    for source, consumers in (("nowhere", [SERVICE]), (SOURCE, ["unknown"])):
        assert Script({}).run(known_ids(here, source, consumers, IDS)) == 0


def test_the_relay_is_no_consumer_of_imports() -> None:
    check_consumers([SERVICE])
    with pytest.raises(ConfigurationError, match="relay"):
        check_consumers([OUTBOX])
