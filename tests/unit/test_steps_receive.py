"""A receipt is given only for what is committed; what was not inserted is looked up, never guessed."""

from __future__ import annotations

from typing import Any

import pytest

from onceward.domain import identity
from onceward.errors import InvalidMessage, StoreConflict, StoreUnavailable
from onceward.flow import Begin
from onceward.message import Delivery, Failure, Message, Receipt
from onceward.registry import Handler
from onceward.steps.context import Cache, Context, Try
from onceward.steps.read import message_of
from onceward.steps.receive import merged, receive, receive_apart, stored_by
from onceward.steps.rows import targets
from onceward.stores.moves.ledger import Known
from onceward.stores.relational.ledger import READY
from tests.unit.builders import NOW, SERVICE, catalog, catalog_answers, context, delivery, handler
from tests.unit.script import Lost, Script, Turns

STORED = "begin receive commit"
LOOKED_UP = "begin known commit"
COUNTED = "begin count_duplicates commit"
RELOADED = "begin catalog names subscriptions unhandled_types pauses commit"


def accept(first: int = 1) -> Any:
    """Insert every record, with numbers from `first`."""
    numbers = iter(range(first, 1000))
    return lambda request: [(record["ordinal"], next(numbers), NOW) for record in request.records]


def known(
    one: Delivery, *, seq: int = 1, ordinal: int = 0, finished: int = 0, result: str | None = None
) -> tuple[Any, ...]:
    """A row of the ledger, as it is looked up."""
    return (ordinal, seq, one.hash, one.type_hash, finished, result, 0.0)


def take(here: Context, script: Script, *deliveries: Delivery) -> list[Receipt]:
    return script.run(receive(here, here.cache, deliveries))


def key_of(one: Delivery, *handlers: Handler, strangers: tuple[Handler, ...] = ()) -> str | None:
    """The key under which a delivery would be stored for the first consumer."""
    here = context(*handlers, strangers=strangers)
    return targets(here, here.cache.catalog, one)[0].key


class TestNew:
    """A message nobody has seen."""

    def test_it_is_stored_in_one_trip(self) -> None:
        """One transaction, one trip, and only then the receipt."""
        script = Script({"receive": accept(41)})
        assert take(context(handler()), script, delivery()) == [Receipt("accepted", 41)]
        assert script.transactions == [STORED]
        assert len(script.trips) == 1

    def test_its_row_holds_everything(self) -> None:
        """Identity, hash, subscription, key, bytes; ready, unnoted, guarded by the catalog's version."""
        here = context(handler(key="order"))
        one = delivery(headers={"trace": "t"}, version=1)
        script = Script({"receive": accept()})
        take(here, script, one)
        (row,) = script.params("receive")
        assert row == {
            **READY,
            "catalog": 1,
            "ordinal": 0,
            "consumer": 1,
            "source": 2,
            "stored_id": b"re1",
            "hash": one.hash,
            "type_hash": one.type_hash,
            "subscription": 1,
            "key_hash": identity.key_hash("p_", SERVICE, "7"),
            "slot": identity.slot("7"),
            "id": "e1",
            "type": "paid",
            "version": 1,
            "key": "7",
            "key_from": None,
            "aggregate": None,
            "position": None,
            "headers": '{"trace":"t"}',
            "body": b'{"order":7}',
            "place": None,
            "sequence": None,
            "destination": None,
            "cause": None,
            "unplaced": None,
            "due_at": None,
            "due_in": None,
        }
        assert (row["state"], row["worker"], row["token"], row["attempts"], row["isolation"]) == (
            "ready",
            None,
            None,
            0,
            0,
        )

    def test_every_consumer_gets_a_row(self) -> None:
        """Each with its own number and key; one receipt for the delivery."""
        here = context(handler(key="order"), handler(consumer="mail"))
        script = Script({"receive": accept(5)})
        assert take(here, script, delivery()) == [Receipt("accepted", 5)]
        rows = script.params("receive")
        assert [(row["ordinal"], row["consumer"], row["subscription"], row["key"]) for row in rows] == [
            (0, 1, 1, "7"),
            (1, 3, 2, None),
        ]

    def test_a_type_nobody_wants_is_kept_for_the_service(self) -> None:
        """Unknown types are stored without a subscription, with the key their caller gave."""
        script = Script({"receive": accept()})
        assert take(context(), script, delivery(key="k")) == [Receipt("accepted", 1)]
        (row,) = script.params("receive")
        assert (row["consumer"], row["subscription"], row["key"]) == (1, None, "k")
        assert row["key_hash"] == identity.key_hash("p_", SERVICE, "k")

    def test_a_new_source_gets_its_number_first(self) -> None:
        """Names are known before rows refer to them."""
        here = context(handler())
        later = catalog(handler())
        names = [(1, SERVICE), (2, "shop"), (9, "new")]
        script = Script({"receive": accept(), **catalog_answers(later), "names": names})
        take(here, script, delivery(source="new"))
        assert script.transactions == ["begin add_name touch_catalog commit", RELOADED, STORED]
        assert script.params("receive")[0]["source"] == 9

    def test_a_batch_is_one_transaction(self) -> None:
        """Many deliveries, one trip, receipts in their order."""
        script = Script({"receive": accept(10)})
        got = take(context(handler()), script, *(delivery(id=f"e{n}") for n in range(3)))
        assert [one.seq for one in got] == [10, 11, 12]
        assert script.transactions == [STORED]


class TestAgain:
    """A message that is known."""

    def test_equal_bytes_are_a_duplicate(self) -> None:
        """It is looked up after the insert, counted, and answered with what became of the first."""
        one = delivery()
        script = Script({"receive": [], "known": [known(one, seq=7, finished=1, result='{"shipping": 7}')]})
        assert take(context(handler()), script, one) == [Receipt("duplicate", 7, finished=True, result={"shipping": 7})]
        assert script.transactions == [STORED, LOOKED_UP, COUNTED]
        assert script.params("known") == [{"ordinal": 0, "consumer": 1, "source": 2, "stored_id": b"re1"}]
        assert script.params("count_duplicates") == [{"seq": 7, "copies": 1}]
        assert [one.durable for one in script.all(Begin)] == [True, True, False], "a count is not worth a wait"

    def test_an_unfinished_duplicate_says_so(self) -> None:
        """The receipt promises no effect that is not committed."""
        one = delivery()
        script = Script({"receive": [], "known": [known(one)]})
        assert take(context(handler()), script, one) == [Receipt("duplicate", 1, finished=False)]

    def test_other_bytes_go_to_quarantine(self) -> None:
        """The first body is not touched, the second is kept, and nothing is counted as a copy."""
        one = delivery(headers={"a": "b"}, version=2)
        script = Script(
            {"receive": [], "known": [(0, 7, b"x" * 32, one.type_hash, 1, None, 0.0)], "quarantine": [(None, None)]}
        )
        assert take(context(handler(), handler(version=2)), script, one) == [Receipt("mismatch", 7)]
        assert script.transactions == [STORED, LOOKED_UP, "begin quarantine commit"]
        assert script.params("quarantine") == [
            {
                "seq": 7,
                "hash": one.hash,
                "type_hash": one.type_hash,
                "type": "paid",
                "version": 2,
                "key": None,
                "position": None,
                "headers": '{"a":"b"}',
                "body": one.body,
                "due_at": None,
                "due_in": None,
            }
        ]

    @pytest.mark.parametrize(
        ("decided", "expected"),
        [
            (("keep-first", None), Receipt("duplicate", 7, finished=True)),
            (("accept-as-new", 9), Receipt("duplicate", 9, finished=False)),
        ],
    )
    def test_what_a_person_decided_holds(self, decided: tuple[str, int | None], expected: Receipt) -> None:
        """Bytes that were decided about are a duplicate of whatever the decision was."""
        known = [(0, 7, b"x" * 32, delivery().type_hash, 1, None, 0.0)]
        script = Script({"receive": [], "known": known, "quarantine": [decided], "outcome": [(0, None)]})
        assert take(context(handler()), script, delivery()) == [expected]
        assert script.params("count_duplicates") == [{"seq": expected.seq, "copies": 1}]

    def test_copies_in_one_batch_come_after_their_first(self) -> None:
        """The insert sees each identity once; the copies are looked up in a second round and counted together."""
        one, other = delivery(id="a"), delivery(id="b")
        script = Script(
            {
                "receive": Turns(lambda _: [(0, 1, NOW), (1, 2, NOW)], []),
                "known": [known(one, seq=1, ordinal=0), known(other, seq=2, ordinal=1), known(one, seq=1, ordinal=2)],
            }
        )
        got = take(context(handler()), script, one, other, one, other, one)
        # The last three are copies: ordinals 0, 1, 2 of the second round.
        assert [(each.status, each.seq) for each in got] == [
            ("accepted", 1),
            ("accepted", 2),
            ("duplicate", 1),
            ("duplicate", 2),
            ("duplicate", 1),
        ]
        assert script.transactions == ["begin receive commit", STORED, LOOKED_UP, COUNTED]
        assert script.params("count_duplicates") == [{"seq": 1, "copies": 2}, {"seq": 2, "copies": 1}]

    def test_duplicates_are_counted_in_order(self) -> None:
        """Sorted by number, so that batches which overlap cannot deadlock."""
        some = [delivery(id=each) for each in "abc"]
        rows = [
            known(one, seq=seq, ordinal=ordinal) for ordinal, (one, seq) in enumerate(zip(some, (9, 3, 5), strict=True))
        ]
        script = Script({"receive": [], "known": rows})
        take(context(handler()), script, *some)
        assert [one["seq"] for one in script.params("count_duplicates")] == [3, 5, 9]

    def test_one_consumer_new_and_one_known(self) -> None:
        """New to any consumer is accepted; finished is only what is finished for all."""
        one = delivery()
        script = Script({"receive": [(1, 8, NOW)], "known": [known(one, seq=7, finished=1, result="1")]})
        got = take(context(handler(), handler(consumer="mail")), script, one)
        assert got == [Receipt("accepted", 7, finished=False, result=1)]
        assert [row["ordinal"] for row in script.params("known")] == [0]


class TestStale:
    """The catalog has changed since it was read."""

    def test_what_is_neither_there_is_tried_again(self) -> None:
        """Nothing inserted and nothing found: the catalog is read again, and the new one decides."""
        here = context()
        later = catalog(handler(), version=2)
        script = Script({"receive": Turns([], [(0, 3, NOW)]), "known": [], **catalog_answers(later)})
        assert take(here, script, delivery()) == [Receipt("accepted", 3)]
        assert script.transactions == ["begin hold_catalog receive commit", LOOKED_UP, RELOADED, STORED]
        before, after = script.params("receive")
        assert (before["catalog"], before["subscription"]) == (1, None)
        assert (after["catalog"], after["subscription"]) == (2, 1)

    def test_own_rows_of_an_earlier_round_are_not_duplicates(self) -> None:
        """What this very call inserted is accepted, though a later round finds it in the ledger."""
        one, two = delivery(id="a"), delivery(id="b")
        script = Script(
            {
                "receive": Turns([(0, 1, NOW)], [(1, 2, NOW)]),
                "known": Turns([], [known(one, seq=1, finished=1)]),
                **catalog_answers(catalog(handler(), version=2)),
            }
        )
        assert take(context(handler()), script, one, two) == [
            Receipt("accepted", 1, finished=True),
            Receipt("accepted", 2),
        ]
        assert script.params("count_duplicates") == []

    def test_a_source_that_a_failover_took_back_gets_its_number_again(self) -> None:
        """The database has gone back to before the name was there: what was read of it is worth nothing."""
        here, before = context(handler()), catalog(handler(), version=9)
        numbers = [(1, SERVICE), (2, "another")]
        answers = {**catalog_answers(before), "names": Turns(numbers, [*numbers, (3, "shop")])}
        script = Script({"receive": Turns([], [(0, 3, NOW)]), "known": [], **answers})
        assert take(here, script, delivery()) == [Receipt("accepted", 3)]
        assert script.transactions == [
            STORED,
            LOOKED_UP,
            RELOADED,
            "begin add_name touch_catalog commit",
            RELOADED,
            STORED,
        ]
        assert script.params("receive")[-1]["source"] == 3

    def test_it_gives_up_in_the_end(self) -> None:
        """Five catalogs in a row is not staleness any more: the caller hears of it and stores nothing."""
        script = Script({"receive": [], "known": [], **catalog_answers(catalog(handler()))})
        with pytest.raises(StoreConflict, match="try again"):
            take(context(handler()), script, delivery())
        assert script.transactions == [STORED, LOOKED_UP, RELOADED] * 5

    def test_a_private_cache_leaves_the_shared_one_alone(self) -> None:
        """What is read inside a caller's transaction may be rolled back, so it is not remembered."""
        here = context()
        private = Cache(here.cache.catalog)
        later = catalog(handler(), version=2)
        script = Script({"receive": Turns([], [(0, 3, NOW)]), "known": [], **catalog_answers(later)})
        script.run(receive(here, private, [delivery()], joined=True))
        assert private.catalog.version == 2
        assert here.cache.catalog.version == 1


class TestTrouble:
    """The database fails."""

    @pytest.mark.parametrize("failure", [Lost(), StoreUnavailable("busy"), StoreConflict("deadlock")])
    @pytest.mark.parametrize("place", ["receive", "commit", "known", "count_duplicates"])
    def test_without_a_commit_there_is_no_receipt(self, place: str, failure: Any) -> None:
        """Whatever fails, the error comes out and nothing more is sent: the caller must not acknowledge."""
        one = delivery()
        script = Script({"receive": [], "known": [known(one)], place: failure})
        with pytest.raises((StoreUnavailable, StoreConflict)):
            take(context(handler()), script, one)
        assert script.is_failed
        assert script.transactions[-1].split()[-1] in (place, "commit")

    def test_a_repeated_receive_finds_its_own_row(self) -> None:
        """After an answer was lost, the same again is a duplicate at worst: the message is there once."""
        one = delivery()
        script = Script({"receive": Turns([(0, 1, NOW)], []), "known": [known(one)], "commit": Turns(Lost(), [])})
        here = context(handler())
        with pytest.raises(StoreUnavailable):
            take(here, script, one)
        again = Script({"receive": [], "known": [known(one)]})
        assert take(here, again, one) == [Receipt("duplicate", 1)]


class TestKeys:
    """Under which key a delivery is ordered."""

    def test_the_callers_key_wins(self) -> None:
        """An explicit key is taken for every consumer."""
        assert key_of(delivery(key="mine"), handler(key="order")) == "mine"

    @pytest.mark.parametrize(
        ("path", "expected"),
        [("order", "7"), ("missing", None), ("header:tenant", "t1"), ("header:none", None), (None, None)],
    )
    def test_a_path_is_looked_up(self, path: str | None, expected: str | None) -> None:
        """A field, a header, or nothing."""
        assert key_of(delivery(headers={"tenant": "t1"}), handler(key=path)) == expected

    def test_a_path_works_without_the_handlers(self) -> None:
        """A process that only receives finds the key by the path that the database knows."""
        assert key_of(delivery(), strangers=(handler(key="order"),)) == "7"

    def test_a_body_that_cannot_be_read_has_no_key(self) -> None:
        """It is stored all the same: its worker will say what is wrong with it. A header needs no body."""
        broken = delivery(data=None, body=b"{", headers={"tenant": "t1"})
        assert key_of(broken, handler(key="order")) is None
        assert key_of(broken, handler(key="header:tenant")) == "t1"

    def test_a_function_is_called(self) -> None:
        """With the message as the handler will see it."""

        def key(message: Message) -> Any:
            assert (message.consumer, message.attempt) == (SERVICE, 1)
            return message.data["order"] + 1

        assert key_of(delivery(), handler(key=key)) == "8"

    def test_a_function_that_fails_gives_no_key(self) -> None:
        """Receiving does not fail for it: the worker calls it again and records what it raises."""

        def key(message: Message) -> Any:
            raise LookupError(message.id)

        assert key_of(delivery(), handler(key=key)) is None
        assert key_of(delivery(data=None, body=b"{"), handler(key=key)) is None

    def test_a_function_in_another_process_places_it(self) -> None:
        """D21: it is stored for that consumer, without a key, and waits for a process that has the function."""
        here = context(handler(), strangers=(handler(consumer="mail", key=lambda _: "k"),))
        script = Script({"receive": accept()})
        take(here, script, delivery())
        own, mail = script.params("receive")
        assert (own["unplaced"], mail["unplaced"], mail["key_hash"]) == (None, "paid", None)
        assert mail["subscription"] is not None
        (_, named) = targets(here, here.cache.catalog, delivery(key="mine"))
        assert (named.keyless, named.key) == (False, "mine")

    def test_a_path_here_and_a_function_there_disagree(self) -> None:
        """The database says function, this process has none: as where it is missing."""
        here = context(handler(key="order"))
        there = context(handler(key=lambda _: "k"))
        (target,) = targets(here, there.cache.catalog, delivery())
        assert (target.keyless, target.key) == (True, None)


class TestPlaces:
    """Where a message stands within its key."""

    def place(self, one: Delivery, *handlers: Handler) -> tuple[int | None, int | None]:
        script = Script({"receive": accept()})
        take(context(*handlers), script, one)
        (row,) = script.params("receive")
        return row["place"], row["sequence"]

    def test_a_position_in_the_source_is_its_place(self) -> None:
        """An offset orders inside a key; without one the number of arrival does."""
        assert self.place(delivery(position=-5), handler(key="order")) == (-5, None)
        assert self.place(delivery(), handler(key="order")) == (None, None)

    @pytest.mark.parametrize(
        ("number", "expected"),
        [
            (3, 3),
            ("3", 3),
            ("0003", 3),
            ("0" * 24 + "42", 42),
            (2**63 - 1, 2**63 - 1),
            (str(2**63 - 1), 2**63 - 1),
            (2**63, None),
            (str(2**63), None),
            ("9" * 50, None),
            (-1, None),
            ("-1", None),
            ("3.0", None),
            (3.0, None),
            (True, None),
            ("\u0663", None),
            ("\u00b3", None),
            ("", None),
            (None, None),
            ([3], None),
        ],
        ids=repr,
    )
    def test_a_number_within_the_key_is_its_place(self, number: Any, expected: int | None) -> None:
        """A whole number, or the text of one; anything else is none, and its worker will say so."""
        counting = handler(key="order", sequence="number")
        found = self.place(delivery(data={"order": 7, "number": number}, position=99), counting)
        assert found == ((expected, expected) if expected is not None else (99, None))

    def test_numbers_count_within_a_key_only(self) -> None:
        """Without a key there is nothing to count in; a body that cannot be read has neither."""
        counting = handler(key="order", sequence="header:number")
        assert self.place(delivery(data={}, headers={"number": "3"}), counting) == (None, None)
        assert self.place(delivery(headers={"number": "3"}), counting) == (3, 3)
        by_field = handler(key="header:key", sequence="number")
        assert self.place(delivery(data=None, body=b"{", headers={"key": "k"}), by_field) == (None, None)


def test_data_of_an_old_version_is_brought_up_to_date() -> None:
    """Upcasters run in order on the data, and the handler sees its own version."""
    one = message_of(
        handler(version=3),
        delivery(version=1),
        seq=3,
        received_at=NOW,
        attempt=1,
        upcasters=[lambda data: {**data, "a": 1}, lambda data: {**data, "b": data["a"] + 1}],
        service="service",
    )
    assert (one.version, one.data) == (3, {"order": 7, "a": 1, "b": 2})
    assert one.body == b'{"order":7}'


def test_a_raw_handler_gets_no_data() -> None:
    """`raw=True` leaves the body unread, whatever it is; otherwise an unreadable one is an `InvalidMessage`."""
    broken = delivery(data=None, body=b"\xff")
    raw = message_of(handler(raw=True), broken, seq=3, received_at=NOW, attempt=2)
    assert (raw.data, raw.body, raw.seq, raw.attempt) == (None, b"\xff", 3, 2)
    with pytest.raises(InvalidMessage):
        message_of(handler(), broken, seq=3, received_at=NOW, attempt=2)


ACCEPTED, DUPLICATE, MISMATCH = Receipt("accepted", 1), Receipt("duplicate", 2, finished=True), Receipt("mismatch", 3)
DONE = Receipt("accepted", 1, finished=True)
RETRYING = Receipt("accepted", 1, error=Failure("E", "x"))
DEAD = Receipt("accepted", 1, error=Failure("F", "y", final=True))


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([ACCEPTED], ACCEPTED),
        ([DUPLICATE, ACCEPTED], Receipt("accepted", 2)),
        ([DUPLICATE, DUPLICATE], DUPLICATE),
        ([ACCEPTED, MISMATCH, DUPLICATE], Receipt("mismatch", 1)),
        (
            [Receipt("duplicate", 1, finished=True), Receipt("duplicate", 2, finished=True, result=0)],
            Receipt("duplicate", 1, finished=True, result=0),
        ),
        ([DONE, RETRYING], RETRYING),
        ([DONE, RETRYING, DEAD, ACCEPTED], DEAD),
    ],
)
def test_receipts_of_several_consumers_become_one(parts: list[Receipt], expected: Receipt) -> None:
    """A mismatch is never hidden; new to any is new; finished is finished for all."""
    assert merged(parts) == expected


def test_a_repetition_has_stored_only_what_came_during_its_first_try() -> None:
    """D51: not what another sender stored before it, or after it while the database was away; however slow the look."""
    here, one = context(), delivery()
    here.clock = iter([10.0, 10.5]).__next__  # when it asks, and when it is answered
    rows = {"long before": 9.8, "just before the answer": 9.2, "during": 8.5, "while away": 7.0}
    found = [(one, Known(seq, one.hash, one.type_hash, finished=False, result=None)) for seq in range(len(rows))]
    script = Script({"ages": list(enumerate(rows.values()))})
    assert script.run(stored_by(here, found, Try(began=1.0, ended=2.0))) == {1, 2}


def test_after_a_conflict_only_what_was_committed_is_its_own() -> None:
    """A deadlock has undone the try: what is there by then is another sender's, and this one has sent a copy."""
    here, one, tries = context(handler()), delivery(), list[Try]()
    here.introduction.declared = here.registry.declared
    here.clock = iter([1.0, 2.0, 7.0, 8.0, 8.5, 9.0]).__next__
    with pytest.raises(StoreConflict):
        Script({"receive": StoreConflict("deadlock")}).run(receive_apart(here, [one], tries))
    assert tries == [Try(1.0, 2.0, frozenset())]
    known = [(0, 7, one.hash, one.type_hash, False, None, 0.0)]
    assert Script({"receive": [], "known": known}).run(receive_apart(here, [one], tries)) == [Receipt("duplicate", 7)]
    tries = [Try(1.0, 2.0, frozenset([7]))]  # it was committed, and the count of a copy met another transaction
    here.clock = iter([7.0, 8.0]).__next__
    assert Script({"receive": [], "known": known}).run(receive_apart(here, [one], tries)) == [Receipt("accepted", 7)]


def test_a_repetition_is_told_when_its_first_try_was() -> None:
    """What was stored in that time is its own: it is accepted, and no copy is counted."""
    here, one, tries = context(handler()), delivery(), list[Try]()
    here.introduction.declared = here.registry.declared
    here.clock = iter([1.0, 2.0, 7.0, 8.0, 8.5, 9.0]).__next__
    with pytest.raises(StoreUnavailable):
        Script({"receive": Lost()}).run(receive_apart(here, [one], tries))
    assert tries == [Try(1.0, 2.0)]
    known = [(0, 7, one.hash, one.type_hash, False, None, 0.0)]
    script = Script({"receive": [], "known": known, "ages": [(7, 6.5)]})
    assert script.run(receive_apart(here, [one], tries)) == [Receipt("accepted", 7)]
    assert script.transactions == [STORED, LOOKED_UP, "begin ages commit"]
