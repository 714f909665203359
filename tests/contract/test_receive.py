"""Receiving: alone, in batches, in the caller's own transaction, whatever stands between (R01, R04, R41)."""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from onceward import ConfigurationError, Message, Settings, StoreError, StoreUnavailable
from onceward.stores.postgres.session import AsyncPostgresSession, PostgresSession
from onceward.stores.sqlite.session import AsyncSqliteSession, SqliteSession
from tests.contract.behaviour import Do, Steps, returning, wrote
from tests.contract.caller import own_transaction
from tests.contract.harness import SOURCE, TYPE, Kind, Shop, arguments


def statuses(receipts: list[Any]) -> list[str]:
    return [receipt.status for receipt in receipts]


def test_many_messages_are_received_in_their_order(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """R04: more than one transaction holds; receipts come in the order of the messages."""
    monkeypatch.setattr("onceward.runtime.group_commit.SHARED", 50)
    shop.handle()
    ids = [f"m{number}" for number in range(110)]
    receipts = shop.receive_many(arguments(message_id) for message_id in ids)
    assert statuses(receipts) == ["accepted"] * 110
    assert [receipt.seq for receipt in receipts] == sorted(receipt.seq for receipt in receipts)
    assert shop.receive_many([]) == []
    assert shop.drain() == 110
    assert shop.effects() == sorted(ids)


def test_a_batch_folds_its_own_duplicates(shop: Shop) -> None:
    """R01: the first in the batch is accepted, its copies are duplicates, other bytes a mismatch."""
    shop.handle()
    shop.receive("known")
    batch = [arguments("a"), arguments("b"), arguments("a"), arguments("known"), arguments("a", more={"data": "other"})]
    receipts = shop.receive_many(batch)
    assert statuses(receipts) == ["accepted", "accepted", "duplicate", "duplicate", "mismatch"]
    assert receipts[0].seq == receipts[2].seq == receipts[4].seq
    shop.drain()
    assert shop.effects() == ["a", "b", "known"]
    assert shop.inbox.admin.stats().duplicates == 2


def test_the_same_message_at_the_same_time_is_accepted_once(shop: Shop) -> None:
    """R01, HZ-01: never check-then-insert."""
    shop.handle()
    receipts = shop.at_once("receive", [arguments("m1")] * 12)
    assert sorted(statuses(receipts)) == ["accepted"] + ["duplicate"] * 11
    shop.drain()
    assert shop.effects() == ["m1"]


def test_another_constraint_is_an_error_and_not_a_duplicate(shop: Shop) -> None:
    """HZ-02: "nothing inserted" means duplicate only when the identity was the reason."""
    if shop.dialect == "sqlite":
        shop.sql(
            f"CREATE TRIGGER no BEFORE INSERT ON {shop.prefix}body WHEN new.id = 'bad'"
            " BEGIN SELECT RAISE(ABORT, 'no bad ids here'); END"
        )
    else:
        shop.sql(f"ALTER TABLE {shop.prefix}body ADD CONSTRAINT no_bad_ids_here CHECK (id <> 'bad')")
    with pytest.raises(StoreError, match=r"no.bad.ids.here"):
        shop.receive("bad")
    with pytest.raises(StoreError, match=r"no.bad.ids.here"):
        shop.receive_many([arguments("good"), arguments("bad")])
    assert shop.count("ledger") == 0
    with shop.visitor() as other:  # no transaction was left open that would lock others out
        assert other.receive("good").status == "accepted"


def test_what_a_receipt_says_is_committed(shop: Shop) -> None:
    """C06, C43, HZ-20: when a call answers, every other connection sees it: acknowledging now is not too early."""
    shop.handle()
    seqs = [shop.receive("m1").seq, *(receipt.seq for receipt in shop.receive_many([arguments("m2")]))]
    assert [seq for (seq,) in shop.sql(f"SELECT seq FROM {shop.prefix}ledger ORDER BY seq")] == seqs
    assert shop.process("m3").finished
    assert shop.effects() == ["m3"]
    shop.drain()


# In the caller's own transaction


@pytest.mark.parametrize("commit", [True, False])
def test_a_message_joins_the_callers_transaction(shop: Shop, *, commit: bool) -> None:
    """R41: the caller's own write and the message are stored together or not at all."""
    shop.handle()
    with own_transaction(shop, commit=commit) as own:
        own.execute("INSERT INTO effects VALUES ('caller', 'own')")
        assert own.receive("m1").status == "accepted"
        assert own.receive("m1").status == "duplicate"
        assert own.receive("m1", data="other").status == "mismatch"
    assert shop.drain() == (1 if commit else 0)
    assert shop.notes() == ([("caller", "own"), ("m1", "default")] if commit else [])
    assert len(shop.inbox.admin.quarantine()) == (1 if commit else 0)
    assert shop.receive("m1").status == ("duplicate" if commit else "accepted")


def test_nothing_of_a_rolled_back_transaction_is_remembered(shop: Shop) -> None:
    """R41: sources, consumers and subscriptions first seen there are learnt again, with their real numbers."""
    shop.handle(consumer="billing")
    with own_transaction(shop, commit=False) as own:
        assert own.receive("m1", source="new source").status == "accepted"
    shop.sql(f"INSERT INTO {shop.prefix}name (name) VALUES ('somebody else')")  # takes the number that was given back
    shop.receive("m1", source="new source")
    assert (shop.detail("m1").source, shop.detail("m1").consumer) == ("new source", "billing")
    with own_transaction(shop, commit=True) as own:
        own.receive("m2", source="newer source")
    shop.drain()
    assert shop.effects() == ["m1", "m2"]


def test_the_callers_transaction_may_have_its_own_habits(shop: Shop) -> None:
    """R41: rows as dictionaries, text as bytes: what the caller chose for its connection is not onceward's business."""
    shop.handle()
    with own_transaction(shop, commit=True, habits=True) as own:
        assert own.receive("m1").status == "accepted"
        assert own.receive("m1").status == "duplicate"
    shop.drain()
    assert shop.effects() == ["m1"]


def test_a_transaction_that_is_none_is_refused(shop: Shop) -> None:
    """R41, HZ-20: joining an autocommit connection would commit behind the caller's back, so it is refused."""
    with (
        own_transaction(shop, commit=False, autocommit=True) as own,
        pytest.raises(ConfigurationError, match="no open transaction"),
    ):
        own.receive("m1")
    with pytest.raises(ConfigurationError, match="tx= must be"):
        shop.receive("m1", tx=object())
    with pytest.raises(ConfigurationError, match="tx= must be"):
        shop.receive("m1", tx="postgresql://")
    assert shop.count("ledger") == 0


def test_a_handler_receives_in_its_own_transaction(shop: Shop) -> None:
    """R04, R41: a follow-up message is stored when, and only when, the handler's effects are."""

    def order(message: Message) -> Steps:
        receive = shop.inbox.receive if shop.kind == "def" else shop.inbox.areceive
        follow_up = arguments(f"{message.id}-mail", "mail", "shop")
        yield Do(lambda tx: receive(tx=tx, **follow_up))
        yield wrote(message)
        if message.attempt == 1:
            raise RuntimeError("not yet")

    shop.handle(behaviour=order)
    shop.handle("mail")
    shop.receive("m1")
    shop.drain()
    assert (shop.effects(), shop.count("ledger")) == ([], 1)
    shop.finish()
    assert shop.effects() == ["m1", "m1-mail"]


def test_a_copy_waits_for_the_one_being_stored_and_then_says_so(store_url: str, kind: Kind) -> None:
    """HZ-01: held by an open transaction, a copy is neither accepted nor a duplicate: the caller must try again."""
    with Shop(store_url, kind, settings=Settings(lock_wait=timedelta(milliseconds=100))) as shop:
        shop.handle()
        shop.receive("m0")
        for message_id, commit in (("m1", True), ("m2", False)):
            with own_transaction(shop, commit=commit) as own:
                own.receive(message_id)
                with pytest.raises(StoreUnavailable):
                    shop.receive(message_id)
            assert shop.receive(message_id).status == ("duplicate" if commit else "accepted")
        shop.drain()
        assert shop.effects() == ["m0", "m1", "m2"]


# Whatever stands between


def exercise(shop: Shop) -> None:
    """Every path once: new, duplicate, mismatch, failure, retry, keys, inline, operator, report."""

    def moody(message: Message) -> Steps:
        yield wrote(message)
        if message.id.startswith("moody") and message.attempt == 1:
            raise RuntimeError("not yet")
        return message.id

    shop.handle(behaviour=moody, key="k", key_required=False)
    shop.handle("plain", behaviour=returning("plain"))
    plain = [arguments(f"p{number}", "plain") for number in range(30)]
    keyed = [arguments(f"{name}{n}", more={"data": {"k": n % 3}}) for n in range(6) for name in ("calm", "moody")]
    assert statuses(shop.receive_many(plain + keyed + plain)) == ["accepted"] * 42 + ["duplicate"] * 30
    assert shop.receive("p0", "plain", data="other").status == "mismatch"
    shop.drain(concurrency=2)
    shop.finish()
    inline = shop.process("inline", "plain")
    assert (inline.status, inline.finished, inline.result) == ("accepted", True, "plain")
    assert shop.process("inline", "plain").result == "plain"
    assert not shop.process("moody inline", data={"k": 9}).finished
    shop.finish()
    assert shop.effects() == sorted(["inline", "moody inline", *(call["id"] for call in plain + keyed)])
    stats = shop.inbox.admin.stats()
    assert (stats.done, stats.quarantined, stats.failures, stats.due, stats.dead) == (44, 1, 7, 0, 0)
    assert shop.inbox.admin.resolve(shop.inbox.admin.quarantine()[0].case, "keep-first") is not None


def test_everything_works(shop: Shop) -> None:
    """The exercise itself, with nothing in between."""
    exercise(shop)


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_everything_works_whatever_the_default_isolation(postgres_url: str, kind: Kind, level: str) -> None:
    """HZ-03: the isolation is set per transaction, so the role's or the database's default does not matter."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        database = connection.info.dbname
        connection.execute(f"ALTER DATABASE {database} SET default_transaction_isolation = '{level}'".encode())
    with Shop(postgres_url, kind) as shop:
        assert shop.sql("SHOW transaction_isolation") == [(level,)]
        exercise(shop)
        assert sorted(statuses(shop.at_once("receive", [arguments("m1")] * 8))) == ["accepted"] + ["duplicate"] * 7
        shop.drain()


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_everything_works_whatever_the_role_prefers(postgres_url: str, kind: Kind, level: str) -> None:
    """HZ-03: the same for a default that belongs to the role."""
    role = f"picky_{level.replace(' ', '_')}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"DROP ROLE IF EXISTS {role}".encode())
        connection.execute(f"CREATE ROLE {role} SUPERUSER LOGIN".encode())
        connection.execute(f"ALTER ROLE {role} SET default_transaction_isolation = '{level}'".encode())
    with Shop(postgres_url.replace("postgres@", f"{role}@"), kind) as shop:
        assert shop.sql("SHOW transaction_isolation") == [(level,)]
        exercise(shop)


def test_everything_works_through_transaction_pooling(pgbouncer_url: str, kind: Kind) -> None:
    """HZ-44, HZ-65: no prepared statements, no session settings, no session locks, no reliance on LISTEN."""
    with Shop(pgbouncer_url, kind, pooled=True) as shop:
        exercise(shop)
        assert sorted(statuses(shop.at_once("receive", [arguments("m1")] * 8))) == ["accepted"] + ["duplicate"] * 7
        with shop.running():
            shop.receive("m2")
            shop.process("m3", TYPE, SOURCE, data={"k": "inline"})
        shop.drain()
        assert {"m1", "m2", "m3"} <= set(shop.effects())


@pytest.mark.parametrize("method", ["receive", "process"])
def test_a_call_whose_answer_was_lost_is_no_copy_of_itself(
    shop: Shop, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D51: its repetition finds the row that the first try has committed, says accepted, and counts nothing."""
    losses = ["the commit"]

    def is_lost(request: Any) -> bool:
        names = [getattr(part, "name", "") for part in request] if isinstance(request, tuple) else []
        return bool(losses and {"receive", "finish_direct"}.intersection(names) and losses.pop())

    def forgetful(usual: Any) -> Any:
        def perform(self: Any, request: Any) -> Any:
            answer = usual(self, request)
            if is_lost(request):
                raise StoreUnavailable("the answer was lost")
            return answer

        async def perform_async(self: Any, request: Any) -> Any:
            answer = await usual(self, request)
            if is_lost(request):
                raise StoreUnavailable("the answer was lost")
            return answer

        return perform_async if inspect.iscoroutinefunction(usual) else perform

    for kind in (SqliteSession, AsyncSqliteSession, PostgresSession, AsyncPostgresSession):
        monkeypatch.setattr(kind, "perform", forgetful(kind.perform))
    shop.handle()
    first = getattr(shop, method)("m1")
    assert not losses
    assert (first.status, shop.count("duplicate")) == ("accepted", 0)
    assert first.finished == (method == "process")
    again = getattr(shop, method)("m1")
    assert (again.status, again.seq, shop.count("duplicate")) == ("duplicate", first.seq, 1)
    shop.drain()
    assert shop.effects() == ["m1"]
