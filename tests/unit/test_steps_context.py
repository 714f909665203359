"""Steps begin from what was last read, and read again what they do not know."""

from __future__ import annotations

from datetime import timedelta

import pytest

from onceward.errors import StoreConflict, StoreUnavailable
from onceward.flow import COMMIT, Begin, Query
from onceward.settings import Settings
from onceward.steps.context import Cache, in_transaction, know_names, load_catalog
from tests.unit.builders import catalog, catalog_answers, context, handler
from tests.unit.script import Lost, Script


def test_a_short_transaction_has_short_limits() -> None:
    """Onceward's own statements are bounded by the settings."""
    here = context(
        settings=Settings(statement_limit=timedelta(seconds=4), lock_wait=timedelta(seconds=1)),
    )
    assert here.short() == Begin(statement_limit=4, lock_limit=1, idle_limit=8, fence="", by_index=True)


def test_a_long_transaction_outlives_its_handler() -> None:
    """The watch over the handler comes first, then the limits of the server; the transaction carries its fence."""
    assert context().long(60, "7.1.5") == Begin(statement_limit=65, lock_limit=65, idle_limit=75, fence="7.1.5")


def test_once_is_one_trip() -> None:
    """Begin, statements and commit travel together; the answer is that of the statements."""
    here, one, two = context(), Query("names"), Query("subscriptions")
    script = Script({"names": [(1, "a")], "subscriptions": []})
    assert script.run(in_transaction(here, one, two)) == ([(1, "a")], [])
    assert script.trips == [(here.short(), one, two, COMMIT)]


@pytest.mark.parametrize("failure", [Lost(), StoreUnavailable("busy"), StoreConflict("deadlock")])
@pytest.mark.parametrize("place", ["names", "commit"])
def test_once_answers_only_what_is_committed(failure: object, place: str) -> None:
    """Where a statement or the commit fails there is no answer, and nothing more is sent."""
    script = Script({"names": [(1, "a")], place: failure})
    with pytest.raises((StoreUnavailable, StoreConflict)):
        script.run(in_transaction(context(), Query("names")))
    assert len(script.trips) == 1


def test_the_catalog_is_read_as_a_whole() -> None:
    """Version, names and subscriptions come from one transaction and replace what was known."""
    here = context()
    before = here.cache.catalog
    known = catalog(handler(key="order"), handler(consumer="mail", key=lambda message: message.id), version=5)
    script = Script(catalog_answers(known))
    script.run(load_catalog(here, here.cache))
    assert script.transactions == ["begin catalog names subscriptions unhandled_types pauses commit"]
    now = here.cache.catalog
    assert now is not before
    assert (now.version, now.names, now.numbers) == (5, known.names, known.numbers)
    assert (now.subscriptions, now.by_type) == (known.subscriptions, known.by_type)
    assert [one.consumer for one in now.by_type["paid"]] == ["service", "mail"]
    assert now.by_type["paid"][1].key_function is True
    assert before.version == 1, "whoever holds the old catalog keeps one version of everything"


@pytest.mark.parametrize(("since_crash", "left"), [(0.0, 600.0), (599.0, 1.0), (600.0, 0.0), (1e9, 600 - 1e9)])
def test_care_lasts_for_a_while_after_a_crash(since_crash: float, left: float) -> None:
    """How long inline work stores first is counted from the crash, by this process's own clock."""
    here = context()
    Script(catalog_answers(catalog(), since_crash=since_crash)).run(load_catalog(here, here.cache))
    assert here.cache.catalog.store_first_until == pytest.approx(here.clock() + left)


def test_known_names_cost_nothing() -> None:
    """Without anything new there is no trip."""
    here, script = context(), Script()
    script.run(know_names(here, here.cache, ["service", "shop"]))
    assert script.trips == []


def test_a_first_look_reads_the_catalog() -> None:
    """A process that has never looked reads before it adds anything."""
    here, cache = context(), Cache()
    script = Script(catalog_answers(catalog()))
    script.run(know_names(here, cache, ["service"]))
    assert script.transactions == ["begin catalog names subscriptions unhandled_types pauses commit"]
    assert cache.catalog.names["service"] == 1


def test_new_names_are_added_sorted_and_read_back() -> None:
    """Sorted, so that two processes cannot deadlock; read back, because another may have been first."""
    here, cache = context(), Cache()
    known = catalog(handler(consumer="a"), handler(consumer="b"))
    script = Script(catalog_answers(known) | {"names": [(1, "service"), (2, "shop")]})
    script.run(know_names(here, cache, ["b", "service", "a"]))
    assert script.transactions == [
        "begin catalog names subscriptions unhandled_types pauses commit",
        "begin add_name add_name touch_catalog commit",
        "begin catalog names subscriptions unhandled_types pauses commit",
    ]
    assert [one["name"] for one in script.params("add_name")] == ["a", "b"]


def test_a_read_that_began_earlier_and_ends_later_loses_nothing() -> None:
    """Threads read beside each other: what one has added since is not taken away by the other."""
    here = context()
    slow = load_catalog(here, here.cache)
    asked = next(slow)
    script = Script(catalog_answers(catalog(handler(consumer="bank"))))
    script.run(know_names(here, here.cache, ["bank"]))
    assert "bank" in here.cache.catalog.names
    before = Script(catalog_answers(catalog()))
    with pytest.raises(StopIteration):
        slow.send(before.perform(asked))
    assert "bank" in here.cache.catalog.names


def test_names_that_were_read_by_themselves_take_none_away() -> None:
    here = context()
    here.cache.learn({7: "bank"})
    here.cache.learn({8: "shop"})
    assert {"bank", "shop"} <= here.cache.catalog.names.keys()
