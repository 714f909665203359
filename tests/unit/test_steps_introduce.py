"""A process says what it handles: it reads first, writes only what is missing, and never waits for long."""

from __future__ import annotations

from typing import Any

import pytest

from onceward.errors import StoreConflict, StoreUnavailable
from onceward.flow import Begin, Do, Query
from onceward.message import Message
from onceward.steps.context import Cache
from onceward.steps.introduce import introduce, stay_introduced, subscribe
from onceward.steps.join import join
from tests.unit.builders import NOW, catalog, catalog_answers, context, delivery, handler
from tests.unit.script import Lost, Script, Turns

RELOADED = "begin catalog names subscriptions unhandled_types pauses commit"
WRITTEN = "begin lock_catalog {} touch_catalog commit"


def by_order(message: Message) -> Any:
    return message.data["order"]


class TestSubscribe:
    """Subscriptions as they are wanted."""

    def test_what_is_there_is_only_read(self) -> None:
        """Nothing is locked, nothing is touched."""
        mine = [handler("paid", key="order"), handler("sent", key=by_order), handler(consumer="mail")]
        here = context(*mine)
        script = Script(catalog_answers(here.cache.catalog))
        script.run(subscribe(here, here.cache))
        assert script.transactions == [RELOADED]

    def test_what_is_missing_or_different_is_written(self) -> None:
        """In a fixed order, and the catalog's version moves with it, so nobody stores under the old one afterwards."""
        mine = [handler("sent", consumer="mail", key=by_order), handler("paid", key="order", on_dead="continue")]
        here = context(*mine)
        there = catalog(handler("sent", consumer="mail", key="order"), handler("paid", key="order", on_dead="continue"))
        script = Script({"subscribe": [], **catalog_answers(there)})
        script.run(subscribe(here, here.cache))
        assert script.transactions == [RELOADED, WRITTEN.format("subscribe"), RELOADED]
        plain = {"key_path": None, "sequence": None, "on_dead": "block", "aggregate": None}
        assert script.params("subscribe") == [
            {"consumer": there.names["mail"], "type": "sent", **plain, "key_function": True}
        ]
        assert script.params("touch_catalog") == [{"crash": False}]

    def test_names_come_first(self) -> None:
        """Consumers have their numbers before subscriptions refer to them; the result is what the database says."""
        here, cache = context(handler(consumer="mail")), Cache()
        empty = catalog()._replace(names={}, numbers={}, subscriptions={}, by_type={}, relay=None)
        known = catalog(handler(consumer="mail"), version=4)
        now, later = catalog_answers(empty), catalog_answers(known)
        script = Script(
            {name: Turns(now[name], later[name], later[name]) for name in now} | {"add_name": [], "subscribe": []}
        )
        script.run(subscribe(here, cache))
        assert script.transactions[:2] == [RELOADED, "begin add_name add_name add_name touch_catalog commit"]
        assert cache.catalog.version == 4

    @pytest.mark.parametrize("place", ["subscribe", "touch_catalog", "commit"])
    def test_a_failure_comes_out(self, place: str) -> None:
        """Nothing is believed that was not committed."""
        here = context(handler())
        script = Script({**catalog_answers(catalog()), "subscribe": [], place: Lost()})
        with pytest.raises(StoreUnavailable):
            script.run(introduce(here))
        assert not here.introduction.declared

    def test_open_transactions_are_waited_for_in_steps(self) -> None:
        """D06: first a moment, then longer and less often, and what waits is known; when they end it is written."""
        here = context(handler())
        busy = StoreUnavailable("lock timeout")
        script = Script(
            {
                **catalog_answers(catalog()),
                "subscribe": [],
                "lock_catalog": Turns(busy, busy, []),
                "catalog_holders": [(7, "web", 3.0)],
                "latest_source": [],
            }
        )
        for _ in range(3):
            script.run(introduce(here))  # the second and third are too early to try again
        assert here.introduction.pending == {("service", "paid")}
        script.run(subscribe(here, here.cache))
        script.run(subscribe(here, here.cache))
        assert not here.introduction.pending
        waits = [
            trip.lock_limit
            for trip, following in zip(script.trips, script.trips[1:], strict=False)
            if isinstance(trip, Begin) and following == Query("lock_catalog")
        ]
        assert waits == [0.05, 0.1, 0.2]

    def test_a_message_that_only_others_would_get_is_refused(self) -> None:
        """D06: while a consumer of this process is not subscribed; what nobody wants yet is stored for it."""
        here = context(handler(), strangers=(handler(consumer="mail"),))
        here.introduction.declared, here.introduction.again_at = here.registry.declared, 1e12
        here.introduction.pending = frozenset({("service", "paid"), ("service", "new")})
        Script().run(introduce(here, {"new", "another"}))
        with pytest.raises(StoreUnavailable, match="'service' is not subscribed to 'paid' yet"):
            Script().run(introduce(here, {"paid"}))


class TestStay:
    """A process that runs looks now and then whether the database still knows what it was told."""

    @staticmethod
    def introduced(*handlers: Any) -> Any:
        here = context(*handlers)
        here.introduction.declared = here.registry.declared
        return here

    def test_what_is_as_it_was_is_one_look(self) -> None:
        here = self.introduced(handler())
        script = Script(catalog_answers(here.cache.catalog))
        assert script.run(stay_introduced(here)) == 0
        assert script.transactions == ["begin catalog commit"]

    @pytest.mark.parametrize("reloaded", [True, False], ids=["a receive has read it already", "nobody has"])
    def test_what_a_failover_took_back_is_told_again(self, *, reloaded: bool) -> None:
        """Also where the process has read the catalog since then; with its sources, which may be gone as well."""
        here = self.introduced(handler("paid"), handler("sent", consumer="mail"))
        before = catalog(handler("sent", consumer="mail"), version=7)
        if reloaded:
            here.cache.catalog = before
        script = Script({**catalog_answers(before), "add_name": [], "subscribe": [], "latest_source": []})
        assert script.run(stay_introduced(here)) == 1
        assert [row["type"] for row in script.params("subscribe")] == ["paid"]
        assert script.transactions[-3:] == [WRITTEN.format("subscribe"), RELOADED, "begin latest_source commit"]

    def test_a_change_that_a_failover_took_back_is_made_again(self) -> None:
        """The catalog has the version of before: it can only have gone back, for a version is never given again."""
        here = context(handler("paid", key="order"))
        before, after = (catalog(handler("paid", key=key), version=n) for n, key in ((6, "customer"), (7, "order")))
        one, two = catalog_answers(before), catalog_answers(after)
        answers = {name: Turns(one[name], two[name], *[one[name]] * 9) for name in one}
        script = Script({**answers, "subscribe": [], "latest_source": []})
        script.run(introduce(here))
        assert here.cache.catalog.version == 7
        assert script.run(stay_introduced(here)) == 2
        assert [row["key_path"] for row in script.params("subscribe")] == ["order", "order"]

    def test_what_others_have_changed_or_retired_stays_so(self) -> None:
        """Else two versions that differ would each take it back for ever, and an operator could retire nothing."""
        here = self.introduced(handler("paid", key="order"), handler("sent"))
        there = catalog(handler("paid", key="customer"), handler("sent"), version=7)
        known = {n: one._replace(retired=one.type == "sent") for n, one in there.subscriptions.items()}
        script = Script(catalog_answers(there._replace(subscriptions=known)))
        assert script.run(stay_introduced(here)) == 0
        assert script.transactions == ["begin catalog commit", RELOADED]


class TestJoin:
    """A receive in a caller's transaction."""

    @staticmethod
    def joined(script: Script, here: Any, *, apart: bool = True) -> Any:
        beside = (lambda step: script.run(step())) if apart else None
        return script.run(join(here, [delivery()], beside))

    def test_it_holds_the_catalog_before_it_stores(self) -> None:
        """The lock is in a statement of its own, so that the next one sees whatever was committed before it."""
        here = context(handler())
        here.introduction.declared = here.registry.declared
        script = Script({"hold_catalog": [(False,)], "receive": [(0, 1, NOW)]})
        self.joined(script, here)
        assert script.transactions == ["begin hold_catalog commit", "begin receive commit"]

    def test_a_new_source_is_written_beside_it(self) -> None:
        """D30: on a connection of its own, before the caller's transaction is used."""
        here = context(handler())
        here.introduction.declared = here.registry.declared
        known = here.cache.catalog
        here.cache.catalog = known._replace(names={"service": 1}, numbers={1: "service"})
        script = Script(
            {"hold_catalog": [(False,)], "receive": [(0, 1, NOW)], "add_name": [], **catalog_answers(known)}
        )
        self.joined(script, here)
        assert isinstance(script.trips[0], Do)
        assert script.transactions[-2:] == ["begin hold_catalog commit", "begin receive commit"]

    def test_where_the_caller_is_the_only_writer_nothing_is_remembered(self) -> None:
        """D18: what is missing is written in its transaction, and may be rolled back with it."""
        here = context(handler())
        before = here.cache.catalog
        script = Script(
            {
                "hold_catalog": [(0,)],
                "receive": [(0, 1, NOW)],
                "subscribe": [],
                "latest_source": [],
                **catalog_answers(catalog(version=5)),
            }
        )
        self.joined(script, here, apart=False)
        assert script.transactions[0] == "begin hold_catalog commit"
        assert here.cache.catalog is before
        assert not here.introduction.declared

    @pytest.mark.parametrize("changed", [False, True])
    def test_a_view_of_its_own_is_compared(self, changed: bool) -> None:  # noqa: FBT001
        """D06: names that are newer than the view are fine, a consumer that is newer is not."""
        here = context(handler(), handler(consumer="mail"))
        here.introduction.declared = here.registry.declared
        seen = catalog(handler(), *(() if changed else (handler(consumer="mail"),)), version=9)
        now, then = catalog_answers(here.cache.catalog), catalog_answers(seen)
        script = Script(
            {name: Turns(now[name], then[name]) for name in now}
            | {"hold_catalog": [(True,)], "receive": [(0, 1, NOW), (1, 2, NOW)]}
        )
        if changed:
            with pytest.raises(StoreConflict, match="Roll back and repeat"):
                self.joined(script, here)
            return
        self.joined(script, here)
        assert {row["catalog"] for row in script.params("receive")} == {9}
