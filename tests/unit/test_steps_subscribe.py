"""Messages that came before anybody knew their type are kept, and taken up exactly once."""

from __future__ import annotations

from typing import Any

import pytest

from onceward.domain import identity
from onceward.errors import StoreConflict, StoreUnavailable
from onceward.flow import Each, Query
from onceward.message import Message
from onceward.registry import Handler
from onceward.steps.context import Context
from onceward.steps.subscribe import fan_out
from tests.unit.builders import NOW, SERVICE, catalog, catalog_answers, context, delivery, handler, stored_headers
from tests.unit.script import Lost, Script, Turns

RELOADED = "begin catalog names subscriptions unhandled_types pauses commit"


def by_order(message: Message) -> Any:
    return message.data["order"]


def waiting_row(
    seq: int = 1, *, consumer: int = 1, owner: str = SERVICE, key: str | None = None, **changes: Any
) -> tuple[Any, ...]:
    """An unhandled row, as it is read."""
    one = delivery(**changes)
    headers = stored_headers(dict(one.headers))
    return (
        seq,
        2,
        one.id,
        one.type,
        one.version,
        key,
        headers,
        one.body,
        consumer,
        b"re1",
        one.hash,
        seq,
        None,
        one.position,
        None if key is None else identity.key_hash("p_", owner, key),
        None,
    )


def look(*types: str) -> dict[str, Any]:
    """There is something to do, under the current catalog, and nothing more afterwards."""
    waiting = Turns([(name, None) for name in types or ("paid",)], [])
    return {"unhandled_types": waiting, "receive": [(0, 5, NOW)], "catalog": [(1, 1e9)], "known": []}


def done(script: Script) -> str:
    """The first transaction of a script, without looks at the catalog's version; the next finds nothing more."""
    line = script.transactions[0]
    return " ".join(name for name in line.split() if name != "catalog")


class TestFanOut:
    """Rows that nobody wanted become one row for each consumer."""

    def test_nothing_to_do(self) -> None:
        """Without unhandled rows, or with types that are still unknown, there is one short look."""
        for types in ([], [("unknown", None)]):
            script = Script({"unhandled_types": types, "catalog": [(1, 1e9)]})
            assert script.run(fan_out(context(handler()))) == 0
            assert script.transactions == ["begin catalog unhandled_types commit"]

    def test_the_services_own_row_is_adopted(self) -> None:
        """It keeps its number, and so its place in the order."""
        here = context(handler(key="order"))
        script = Script({**look("paid", "unknown"), "unhandled": [waiting_row(4)]})
        assert script.run(fan_out(here)) == 1
        assert done(script) == "begin unhandled_types unhandled lock_keys adopt set_body_key promote commit"
        assert script.params("unhandled") == [{"types": ["paid"], "subscriptions": [], "passed": [], "limit": 100}]
        number = identity.key_hash("p_", SERVICE, "7")
        assert script.params("adopt") == [
            {
                "seq": 4,
                "subscription": 1,
                "unplaced": None,
                "key_hash": number,
                "slot": identity.slot("7"),
                "sequence": None,
                "place": None,
                "due_at": None,
            }
        ]
        assert script.params("set_body_key") == [{"seq": 4, "key": "7", "aggregate": None, "key_from": None}]

    def test_others_get_copies(self) -> None:
        """Another consumer gets a row of its own with the same identity, bytes and hash."""
        here = context(handler(), handler(consumer="mail"))
        script = Script({**look(), "unhandled": [waiting_row(4, headers={"a": "b"})]})
        assert script.run(fan_out(here)) == 1
        assert done(script) == "begin unhandled_types unhandled receive adopt set_body_key commit"
        (copy,) = script.params("receive")
        one = delivery()
        assert (copy["consumer"], copy["subscription"], copy["state"], copy["catalog"]) == (3, 2, "ready", 1)
        assert copy["place"] == 4
        assert (copy["stored_id"], copy["hash"], copy["body"], copy["headers"]) == (
            b"re1",
            one.hash,
            one.body,
            '{"a":"b"}',
        )

    def test_a_row_that_only_others_want_goes(self) -> None:
        """Copies first, then the removal, in one transaction; without a key there is nobody to promote."""
        here = context(handler(consumer="mail"))
        script = Script({**look(), "unhandled": [waiting_row(4)]})
        assert script.run(fan_out(here)) == 1
        assert done(script) == "begin unhandled_types unhandled receive hand_on remove_unhandled commit"
        assert script.params("hand_on") == [{"seq": 4, "heir": 5}]
        assert script.params("remove_unhandled") == [{"seq": 4}]

    def test_whoever_waits_behind_a_removed_row_goes_on(self) -> None:
        """With a key: its lock before the removal, the promotion after it."""
        here = context(handler(consumer="mail"))
        script = Script({**look(), "unhandled": [waiting_row(4, key="k")]})
        script.run(fan_out(here))
        assert done(script).endswith("lock_keys receive hand_on remove_unhandled promote commit")
        number = identity.key_hash("p_", SERVICE, "k")
        assert script.params("lock_keys") == script.params("promote") == [{"key_hashes": [number]}]

    def test_the_key_is_that_of_the_rows_own_consumer(self) -> None:
        """Where two services share the tables, what waits behind the other's row is promoted under its key."""
        other = handler("other", consumer="another service")
        here = context(handler(consumer="mail"), strangers=(other,))
        number = here.cache.catalog.names["another service"]
        script = Script({**look(), "unhandled": [waiting_row(4, key="k", consumer=number, owner="another service")]})
        script.run(fan_out(here))
        assert script.params("promote") == [{"key_hashes": [identity.key_hash("p_", "another service", "k")]}]

    def test_all_keys_are_locked_together_and_in_order(self) -> None:
        """Whoever finishes a group locks its keys in order too: neither waits for the other in a circle."""
        here = context(handler(key="order"))
        rows = [waiting_row(seq, data={"order": seq}) for seq in range(1, 9)]
        script = Script({**look(), "unhandled": rows})
        assert script.run(fan_out(here)) == 8
        assert script.transactions[0].split().count("lock_keys") == 1
        numbers = sorted(identity.key_hash("p_", SERVICE, str(seq)) for seq in range(1, 9))
        assert script.params("lock_keys") == script.params("promote") == [{"key_hashes": numbers}]

    @pytest.mark.parametrize("first", [{"hash": b"x" * 32}, {"type_hash": 1}])
    def test_other_bytes_or_types_that_came_first_are_no_copy(self, first: dict[str, Any]) -> None:
        """Since the type is known, its id came again otherwise: what waited goes to quarantine, not away (D05)."""
        here = context(handler(consumer="mail"))
        same = {"hash": delivery().hash, "type_hash": delivery().type_hash, **first}
        known = [(0, 9, *same.values(), 0, None, 0.0)]
        script = Script(
            {**look(), "unhandled": [waiting_row(4)], "receive": [], "known": known, "quarantine": [(None, None)]}
        )
        assert script.run(fan_out(here)) == 1
        assert (
            done(script) == "begin unhandled_types unhandled receive known quarantine hand_on remove_unhandled commit"
        )
        (case,) = script.params("quarantine")
        assert (case["seq"], case["body"], case["hash"]) == (9, delivery().body, delivery().hash)

    def test_names_of_new_sources_are_read_in_between(self) -> None:
        """A source that another process has added is looked up in the same transaction."""
        here = context(handler())
        row = list(waiting_row(4))
        row[1] = 9
        names = [(1, SERVICE), (2, "shop"), (9, "new")]
        script = Script({**look(), "unhandled": [tuple(row)], "names": names})
        script.run(fan_out(here))
        assert done(script) == "begin unhandled_types unhandled names adopt set_body_key commit"

    @pytest.mark.parametrize("failure", [Lost(), StoreConflict("deadlock")])
    @pytest.mark.parametrize("place", ["unhandled", "adopt", "receive", "commit"])
    def test_a_failure_leaves_everything_as_it_was(self, place: str, failure: Any) -> None:
        """One transaction: what is not committed has not happened, and nothing more is sent."""
        here = context(handler(), handler(consumer="mail"))
        script = Script({**look(), "unhandled": [waiting_row()], place: failure})
        with pytest.raises((StoreUnavailable, StoreConflict)):
            script.run(fan_out(here))

    def test_one_that_is_too_much_is_made_smaller(self) -> None:
        """D19: what it brings takes longer than a statement may; the same again would for ever."""
        here, limits = context(handler()), []
        late = StoreUnavailable("canceling statement due to statement timeout")
        for _ in range(2):
            script = Script({**look(), "unhandled": late})
            with pytest.raises(StoreUnavailable):
                script.run(fan_out(here))
            limits += [one["limit"] for one in script.params("unhandled")]
        script = Script({**look(), "unhandled": [waiting_row(4)]})
        assert script.run(fan_out(here)) == 1
        assert [*limits, *(one["limit"] for one in script.params("unhandled"))] == [100, 50, 25]


class Ledger:
    """Just enough of a database: unhandled rows, copies, and a catalog whose version guards every insert."""

    def __init__(self, now: Context, *rows: tuple[Any, ...]) -> None:
        self.catalog = now.cache.catalog
        self.unhandled = {row[0]: row for row in rows}
        self.copies: set[tuple[int, bytes]] = set()
        self.adopted: set[int] = set()
        self._saved: Any = None
        self.script = Script(
            {
                **catalog_answers(self.catalog),
                "begin": self._begin,
                "rollback": self._rollback,
                "unhandled_types": lambda _: sorted({(row[3], row[12]) for row in self.unhandled.values()}),
                "unhandled": lambda request: [
                    row for row in self.unhandled.values() if row[3] in request.params["types"]
                ],
                "receive": self._receive,
                "known": lambda request: [
                    (record["ordinal"], 1, delivery().hash, delivery().type_hash, 0, None, 0.0)
                    for record in request.records
                    if (record["consumer"], record["stored_id"]) in self.copies
                ],
                "adopt": self._adopt,
                "remove_unhandled": lambda request: [self.unhandled.pop(request.params["seq"])][:0],
            }
        )

    def _begin(self, _: Any) -> list[Any]:
        self._saved = (dict(self.unhandled), set(self.copies), set(self.adopted))
        return []

    def _rollback(self, _: Any) -> list[Any]:
        self.unhandled, self.copies, self.adopted = self._saved
        return []

    def drop_connection(self) -> None:
        """What a pool does with a session whose step failed: everything uncommitted is undone."""
        self._rollback(None)
        self.script.is_open = self.script.is_failed = False

    def _receive(self, request: Each) -> list[Any]:
        fresh = []
        for record in request.records:
            identity_of = (record["consumer"], record["stored_id"])
            if request.shared["catalog"] == self.catalog.version and identity_of not in self.copies:
                self.copies.add(identity_of)
                fresh.append((record["ordinal"], 100 + len(self.copies), NOW))
        return fresh

    def _adopt(self, request: Query) -> list[Any]:
        self.adopted.add(request.params["seq"])
        return [self.unhandled.pop(request.params["seq"])][:0]


def fan_out_all(here: Context, ledger: Ledger) -> None:
    """As a worker does: again and again, until there is nothing left or nothing changes."""
    for _ in range(5):
        try:
            if not ledger.script.run(fan_out(here)):
                return
        except StoreConflict:
            ledger.drop_connection()


def stale_and_new(*old: Handler, new: tuple[Handler, ...]) -> tuple[Context, Context]:
    """What this process has read, and what the database says by now."""
    here = context(*old)
    now = context(*old, *new)
    now.cache.catalog = catalog(*old, *new, version=2)
    return here, now


class TestFanOutUnderAnOldCatalog:
    """Another process has subscribed since this one looked: its inserts are refused by their guard."""

    def test_no_message_is_lost(self) -> None:
        """A row is removed only when its copies are there: an insert that inserted nothing is not a copy."""
        here, now = stale_and_new(handler(consumer="mail"), new=(handler("sent", consumer="news"),))
        ledger = Ledger(now, waiting_row(4))
        fan_out_all(here, ledger)
        mail = now.cache.catalog.names["mail"]
        assert 4 in ledger.unhandled or (mail, b"re1") in ledger.copies

    def test_no_consumer_is_left_out(self) -> None:
        """Where the service adopts its row, the others have theirs in the same commit."""
        here, now = stale_and_new(handler(), handler(consumer="mail"), new=(handler("sent"),))
        ledger = Ledger(now, waiting_row(4))
        fan_out_all(here, ledger)
        mail = now.cache.catalog.names["mail"]
        assert 4 not in ledger.adopted or (mail, b"re1") in ledger.copies

    def test_a_copy_that_is_there_already_is_enough(self) -> None:
        """A consumer that has the message has it: the service's own row may go."""
        here = context(handler(consumer="mail"))
        ledger = Ledger(here, waiting_row(4))
        ledger.copies.add((here.cache.catalog.names["mail"], b"re1"))
        fan_out_all(here, ledger)
        assert not ledger.unhandled


class TestFanOutOfOddMessages:
    """One message that cannot be placed does not keep the others, or the worker, waiting."""

    def test_a_header_with_a_nul_holds_up_nobody(self) -> None:
        """Headers that were accepted are taken up again, whatever characters they hold."""
        here = context(handler())
        row = list(waiting_row(4))
        row[6] = stored_headers({"trace": "a\x00b"})
        ledger = Ledger(here, tuple(row), waiting_row(5))
        fan_out_all(here, ledger)
        assert ledger.adopted >= {5}

    @pytest.mark.parametrize("has_a_path", [False, True])
    def test_a_key_function_of_another_process_holds_up_nobody(self, has_a_path: bool) -> None:  # noqa: FBT001
        """D21: a consumer whose key only another process can find is served by that one; the others have theirs.

        Also while a release that turns a path into a function is half deployed: this process still has the path.
        """
        mine = (handler(consumer="mail", key="order"),) if has_a_path else ()
        here = context(handler(), handler("sent"), *mine, strangers=(handler(consumer="mail", key=by_order),))
        ledger = Ledger(here, waiting_row(4), waiting_row(5, type="sent"))
        fan_out_all(here, ledger)
        assert ledger.adopted == {4, 5}
        (copy,) = (row for row in ledger.script.params("receive") if row["type"] == "paid")
        assert (copy["consumer"], copy["unplaced"]) == (here.cache.catalog.names["mail"], "paid")
        assert copy["sequence"] == 4, "when it came"

    def test_the_process_with_the_function_places_what_waits_for_it(self) -> None:
        """D21: the consumer's own row is adopted under its key; nobody else gets another."""
        here = context(handler(), handler(consumer="mail", key=by_order))
        (mail,) = (s for s in here.cache.catalog.subscriptions.values() if s.consumer == "mail")
        row = (*waiting_row(9, consumer=mail.consumer_id)[:-4], mail.id, None, None, None)
        script = Script({**look(), "unhandled_types": Turns([("paid", mail.id)], []), "unhandled": [row]})
        assert script.run(fan_out(here)) == 1
        assert script.params("unhandled") == [{"types": [], "subscriptions": [mail.id], "passed": [], "limit": 100}]
        (adopted,) = script.params("adopt")
        assert (adopted["unplaced"], adopted["key_hash"]) == (None, identity.key_hash("p_", "mail", "7"))
        assert script.params("receive") == []
