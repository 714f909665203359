"""`process(tx=...)`: a message is received and handled in its caller's transaction, when and only when that commits.

Whatever the handler does, and wherever it fails, what the caller commits is whole: done with its effects, or queued
without them, or not there.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import subprocess
import sys
from contextlib import suppress
from datetime import timedelta
from functools import partial
from threading import Thread
from typing import Any

import psycopg
import pytest

from onceward import (
    ConfigurationError,
    ContractViolation,
    Message,
    Receipt,
    Reject,
    RetryPolicy,
    StoreError,
    StoreUnavailable,
)
from onceward.errors import TransactionEnded
from onceward.stores.postgres.lent import AsyncLentSession, LentSession
from onceward.stores.sqlite.session import AsyncSqliteSession, SqliteSession
from tests.contract.behaviour import Do, Sql, Steps, raising, returning, wrote
from tests.contract.caller import Own, own_transaction
from tests.contract.harness import Kind, Shop, arguments
from tests.waiting import wait_until

SOON = RetryPolicy(first=timedelta(0), jitter=0)


def whole(shop: Shop, effects: list[str], **counts: int) -> None:
    """What is committed: effects, and so many rows in each table."""
    assert shop.effects() == effects
    assert {table: shop.count(table) for table in counts} == counts


# Done


@pytest.mark.parametrize("commit", [True, False])
def test_it_is_done_when_the_caller_commits(shop: Shop, *, commit: bool) -> None:
    """R41: the caller's own write, the handler's effects and "done" are one commit; the receipt says that it is due."""
    shop.handle(behaviour=returning({"n": 1}))
    with own_transaction(shop, commit=commit) as own:
        own.execute("INSERT INTO effects VALUES ('caller', 'own')")
        receipt = own.process("m1")
        assert (receipt.outcome, receipt.result, receipt.pending) == ("done", {"n": 1}, True)
        again = own.process("m1")
        assert (again.outcome, again.result, again.finished, again.pending) == ("duplicate", {"n": 1}, True, False)
        assert own.process("m1", data="other").outcome == "mismatch"
        assert shop.effects() == []
    if commit:
        whole(shop, ["caller", "m1"], ledger=1, queue=0, run=1, result=1, quarantine=1)
        assert shop.status("m1") == "done"
        explanation = shop.inbox.admin.explain(shop.seqs["m1"])
        assert explanation is not None
        assert any("effects committed with a transaction of its caller" in one.what for one in explanation.events)
        assert shop.process("m1").outcome == "duplicate"
    else:
        whole(shop, [], ledger=0, queue=0, run=0, result=0, quarantine=0)
        assert shop.process("m1").outcome == "done"
        assert shop.effects() == ["m1"]


def test_what_is_sent_goes_with_it(shop: Shop) -> None:
    """R41: outgoing messages are the caller's to commit, too."""

    def sending(message: Message) -> Steps:
        yield wrote(message)
        message.send("mail", {"to": message.id})

    shop.handle(behaviour=sending)
    shop.inbox.add_sink("default", Silent())
    for message_id, commit in (("m1", False), ("m2", True)):
        with own_transaction(shop, commit=commit) as own:
            assert own.process(message_id).outcome == "done"
    assert (shop.effects(), shop.inbox.admin.stats().outbox_unsent) == (["m2"], 1)
    shop.drain()


class Silent:
    """Publishes to nowhere."""

    def publish(self, message: Any) -> None:
        """Done."""


def test_consumers_and_numbers(shop: Shop) -> None:
    """R08: each consumer has its own handler and savepoint, and numbered messages come in their order."""
    shop.handle(consumer="billing")
    shop.handle(behaviour=raising(lambda: ValueError("no")), consumer="stock")
    shop.handle("step", key="k", sequence="n")
    with own_transaction(shop, commit=True) as own:
        assert own.process("m1").outcome == "retrying"
        assert own.process("s1", message_type="step", data={"k": 1, "n": 1}).outcome == "done"
        assert own.process("s3", message_type="step", data={"k": 1, "n": 3}).outcome == "queued"
        assert own.process("s2", message_type="step", data={"k": 1, "n": 2}).outcome == "queued"
    assert shop.effects() == ["m1", "s1"]
    shop.drain()
    assert [one for one, _ in shop.journal()] == ["m1", "s1", "s2", "s3"]


def test_the_callers_connection_is_as_it_was(shop: Shop) -> None:
    """R41: rows as dictionaries, text as bytes: a handler has the usual ones, the caller those of its own."""
    shop.handle(behaviour=wrote_and_read)
    with own_transaction(shop, commit=True, habits=True) as own:
        assert own.process("m1").result == [["m1"]]
        row = own.fetch("SELECT message_id FROM effects WHERE message_id = 'm1'")
        assert isinstance(row, dict)
        assert own.process("m2").outcome == "done"
    assert shop.effects() == ["m1", "m2"]


def wrote_and_read(message: Message) -> Steps:
    yield wrote(message)
    rows = yield Sql("SELECT message_id FROM effects WHERE message_id = %s", (message.id,))
    return [list(row) for row in rows]


def test_a_savepoint_of_the_callers_takes_it_back(shop: Shop) -> None:
    shop.handle()
    with own_transaction(shop, commit=True) as own:
        own.execute("SAVEPOINT mine")
        assert own.process("m1").outcome == "done"
        own.execute("ROLLBACK TO SAVEPOINT mine")
        assert own.process("m2").outcome == "done"
    whole(shop, ["m2"], ledger=1, queue=0, run=1)


# Queued


def test_what_cannot_run_there_is_queued_there(shop: Shop) -> None:
    """R41: no handler here, a busy key, middleware outside of the transaction, a time that has not come."""
    shop.handle(key="k")

    @shop.inbox.middleware
    def around(_: Any) -> Any:
        yield

    with own_transaction(shop, commit=True) as own:
        assert own.process("m1", data={"k": 1}).outcome == "queued"
    shop.inbox.context.registry.middleware.clear()
    shop.inbox.context.registry.arrange()
    with own_transaction(shop, commit=True) as own:
        assert own.process("m2", data={"k": 1}).outcome == "queued"
        assert own.process("m3", data={"k": 2}).outcome == "done"
        assert own.process("m4", data={"k": 2}, delay=3600).outcome == "queued"
        assert own.process("m5", message_type="unknown").outcome == "queued"
        assert own.receive("m6", data={"k": 3}).pending
        assert own.process("m7", data={"k": 3}).outcome == "queued"
    assert shop.effects() == ["m3"]
    assert (shop.status("m4"), shop.status("m5")) == ("scheduled", "unhandled")
    shop.drain()
    assert [one for one, _ in shop.journal()] == ["m3", "m1", "m2", "m6", "m7"]


@pytest.mark.parametrize("how", ["once", "after_commit", "setting"])
def test_what_needs_a_transaction_of_its_own_waits_for_a_worker(shop: Shop, how: str) -> None:
    """What is called before the commit, after it, or set for longer than the handler runs."""
    called: list[str] = []

    def behaviour(message: Message) -> Steps:
        yield wrote(message)
        if how == "after_commit":
            message.after_commit(partial(called.append, message.id))
        elif how == "setting":
            yield Sql("PRAGMA cache_size = 1000" if shop.dialect == "sqlite" else "SET LOCAL work_mem = '5MB'")
        else:
            yield Do(lambda _: message.once("call", partial(called.append, message.id)))

    def once_first(message: Message) -> Steps:
        yield Do(lambda _: message.once("call", partial(called.append, message.id)))
        yield wrote(message)

    shop.handle(behaviour=once_first if how == "once" else behaviour)
    with own_transaction(shop, commit=True) as own:
        assert own.process("m1").outcome == "queued"
        assert called == []
    whole(shop, [], ledger=1, queue=1, attempt=0)
    shop.drain()
    assert shop.effects() == ["m1"]
    assert called == ([] if how == "setting" else ["m1"])


def test_a_key_in_another_transaction_is_busy(postgres_shop: Shop) -> None:
    """R08: two messages of a key never run at the same time, and the later one does not wait in the call."""
    shop = postgres_shop
    shop.handle(key="k")
    with own_transaction(shop, commit=True) as first, own_transaction(shop, commit=True) as second:
        assert first.process("m1", data={"k": 1}).outcome == "done"
        assert second.process("m2", data={"k": 1}).outcome == "queued"
        assert second.process("m3", data={"k": 2}).outcome == "done"
        second.end(commit=True)
        assert shop.drain() == 0
    assert shop.drain() == 1
    assert [one for one, _ in shop.journal()][-1] == "m2"


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_view_of_its_own_sees_too_little_of_a_key(postgres_shop: Shop, level: str) -> None:
    """R08: what came before it in its key may be committed after the view was taken."""
    shop = postgres_shop
    shop.handle(key="k")
    shop.handle("plain")
    shop.process("m0", data={"k": 0})
    with own_transaction(shop, commit=True) as own:
        own.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        own.execute("SELECT 1")
        shop.receive("m1", data={"k": 1})
        assert own.process("m2", data={"k": 1}).outcome == "queued"
        assert own.process("m3", message_type="plain").outcome == "done"
    shop.drain()
    assert [one for one, _ in shop.journal()] == ["m0", "m3", "m1", "m2"]


# Failures


def test_a_failure_is_charged_when_the_caller_commits(shop: Shop) -> None:
    """R15: its effects are undone, the caller's stay, and the message is stored for retry or dead."""
    shop.handle("t", behaviour=raising(lambda: ValueError("no")), retry=SOON)
    shop.handle("rejected", behaviour=raising(lambda: Reject("never")))
    for commit in (False, True):
        with own_transaction(shop, commit=commit) as own:
            own.execute("INSERT INTO effects VALUES ('caller', 'own')")
            receipt = own.process("m1", message_type="t")
            assert (receipt.outcome, receipt.pending) == ("retrying", True)
            assert receipt.error is not None
            assert receipt.error.text == "no"
            assert own.process("m2", message_type="rejected").outcome == "dead"
        assert shop.count("queue") == (2 if commit else 0)
    whole(shop, ["caller"], ledger=2, queue=2, attempt=2, run=0)
    assert (shop.detail("m1").attempts, shop.status("m2")) == (1, "dead")


def test_what_a_failed_handler_wrote_past_its_connection_goes(shop: Shop) -> None:
    """As through the caller's own connection in a global: it is in the same transaction, behind the same savepoint."""
    callers: list[Own] = []

    def past_it(_: Message) -> Steps:
        own = callers.pop()
        yield Do(lambda _: own.connection.execute("INSERT INTO effects VALUES ('past', 'it')"))
        raise ValueError("no")

    shop.handle(behaviour=past_it)
    with own_transaction(shop, commit=True) as own:
        callers.append(own)
        assert own.process("m1").outcome == "retrying"
    whole(shop, [], ledger=1, queue=1, attempt=1)


def test_the_handlers_error_may_be_raised(shop: Shop) -> None:
    """The message is stored in the caller's transaction, which may still commit."""
    shop.handle(behaviour=raising(lambda: ValueError("no")))
    with pytest.raises(ValueError, match="no"), own_transaction(shop, commit=True) as own:
        own.process("m1", raise_on_failure=True)
    assert shop.count("queue") == 0
    with own_transaction(shop, commit=True) as own:
        with pytest.raises(ValueError, match="no"):
            own.process("m1", raise_on_failure=True)
        own.execute("INSERT INTO effects VALUES ('caller', 'own')")
    whole(shop, ["caller"], ledger=1, queue=1, attempt=1)


@pytest.mark.parametrize("call", ["commit", "rollback", "close"])
def test_a_handler_cannot_end_the_callers_transaction(shop: Shop, call: str) -> None:
    """HZ-20: refused at that line, also where the handler swallows it, and in SQL."""

    def ending(message: Message) -> Steps:
        yield wrote(message)
        yield Do(lambda tx: getattr(tx, call)())

    def swallowing(message: Message) -> Steps:
        with suppress(ContractViolation):
            yield Do(lambda tx: getattr(tx, call)())
        with suppress(ContractViolation):
            yield Sql("COMMIT")
        yield wrote(message)

    shop.handle("t", behaviour=ending)
    shop.handle("swallows", behaviour=swallowing)
    with own_transaction(shop, commit=True) as own:
        receipt = own.process("m1", message_type="t")
        assert receipt.outcome == "dead"
        assert receipt.error is not None
        assert f"the handler called {call}()" in receipt.error.text
        assert own.process("m2", message_type="swallows").outcome == "done"
        assert shop.effects() == []
    whole(shop, ["m2"], ledger=2, queue=1)


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_transaction_that_was_ended_behind_our_back(shop: Shop, *, goes_on: bool) -> None:
    """As by the caller's own session in a global: what it committed is not undone, and the message is not lost."""
    ending: list[Own] = []

    def hidden(message: Message) -> Steps:
        yield wrote(message)
        if ending:
            own = ending.pop()
            yield Do(lambda _: own.connection.commit())
            if goes_on:
                yield Do(lambda _: own.connection.execute("INSERT INTO effects VALUES ('after', 'it')"))

    shop.handle(behaviour=hidden)
    with own_transaction(shop, commit=False) as own:
        ending.append(own)
        with pytest.raises(TransactionEnded, match="what it committed by itself is not undone"):
            own.process("m1")
        own.end(commit=goes_on)  # also where the caller passes over the error, and commits what came after
    assert shop.effects().count("m1") == 1
    assert [shop.count(table) for table in ("ledger", "queue", "run")] == [1, 1, 0]
    assert shop.process("m1").outcome == "duplicate"
    shop.sql("DELETE FROM effects")
    assert shop.drain() == 1


def test_a_rollback_behind_our_back(shop: Shop) -> None:
    """Nothing was stored, and the call says so."""
    ending: list[Own] = []

    def hidden(message: Message) -> Steps:
        yield wrote(message)
        if ending:
            own = ending.pop()
            yield Do(lambda _: own.connection.rollback())

    shop.handle(behaviour=hidden)
    with own_transaction(shop, commit=False) as own:
        ending.append(own)
        with pytest.raises(TransactionEnded):
            own.process("m1")
    whole(shop, [], ledger=0, queue=0, run=0)
    assert shop.process("m1").outcome == "done"


def test_a_swallowed_error_of_the_database(postgres_shop: Shop) -> None:
    """Its part of the transaction is aborted; the caller's goes on."""

    def swallowing(message: Message) -> Steps:
        with suppress(psycopg.Error):
            yield Sql("SELECT 1 / 0")
        yield Do(lambda _: None)
        wrote(message)

    postgres_shop.handle(behaviour=swallowing)
    with own_transaction(postgres_shop, commit=True) as own:
        assert own.process("m1").outcome in ("retrying", "dead")
        own.execute("INSERT INTO effects VALUES ('caller', 'own')")
    whole(postgres_shop, ["caller"], ledger=1, queue=1, attempt=1)


def test_an_error_whose_text_is_refused(postgres_shop: Shop) -> None:
    """The caller's transaction goes on all the same, and the message is stored without the text."""
    postgres_shop.handle(behaviour=raising(lambda: ValueError("a \ud800 b")))
    with own_transaction(postgres_shop, commit=True) as own:
        own.execute("INSERT INTO effects VALUES ('caller', 'own')")
        assert own.process("m1").outcome == "retrying"
    whole(postgres_shop, ["caller"], ledger=1, queue=1, attempt=1)


def test_a_handler_that_overruns(shop: Shop) -> None:
    """R17: it is charged, and the caller's transaction goes on."""
    slow = (
        "SELECT pg_sleep(30)"
        if shop.dialect == "postgres"
        else ("WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT count(*) FROM c")
    )

    def overrunning(message: Message) -> Steps:
        yield wrote(message)
        yield Sql(slow)

    shop.handle(behaviour=overrunning, timeout=timedelta(milliseconds=100))
    with own_transaction(shop, commit=True) as own:
        own.execute("INSERT INTO effects VALUES ('caller', 'own')")
        receipt = own.process("m1")
        assert receipt.error is not None
        assert receipt.error.kind == "HandlerTimeout"
    whole(shop, ["caller"], ledger=1, queue=1, attempt=1)


def test_a_connection_that_drops(postgres_shop: Shop) -> None:
    """Nothing was stored, and the call says so."""

    def dropping(_: Message) -> Steps:
        ((pid,),) = yield Sql("SELECT pg_backend_pid()")
        postgres_shop.end_backend(pid)
        yield Sql("SELECT 1")

    postgres_shop.handle(behaviour=dropping)
    with suppress(psycopg.Error), own_transaction(postgres_shop, commit=True) as own:
        own.execute("INSERT INTO effects VALUES ('caller', 'own')")
        with pytest.raises(StoreUnavailable):
            own.process("m1")
    whole(postgres_shop, [], ledger=0, queue=0)


@pytest.mark.parametrize("commit", [True, False])
def test_a_copy_waits_for_the_transaction_of_the_first(postgres_url: str, *, commit: bool) -> None:
    """HZ-01: its insert does, and is a duplicate then, or the first."""
    with Shop(postgres_url, "def") as shop, shop.visitor() as other:
        shop.handle()
        other.handle()
        found: list[Receipt] = []

        def second() -> None:
            with own_transaction(other, commit=True) as own:
                found.append(own.process("m1"))

        with own_transaction(shop, commit=commit) as first:
            assert first.process("m1").outcome == "done"
            thread = Thread(target=second)
            thread.start()
            wait_until(lambda: shop.waiting_for_locks() > 0)
        thread.join()
        assert found[0].outcome == ("duplicate" if commit else "done")
        whole(shop, ["m1"], ledger=1, queue=0, run=1)


def test_a_failure_at_any_request_leaves_nothing_or_all(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever fails, and though the caller commits all the same: the effect is there if the message is done."""
    shop.handle(behaviour=returning(1), key="k")
    kinds: tuple[Any, ...] = (
        (SqliteSession if shop.kind == "def" else AsyncSqliteSession,)
        if shop.dialect == "sqlite"
        else (LentSession if shop.kind == "def" else AsyncLentSession,)
    )
    shop.process("first", data={"k": 0})
    failing = Failing(monkeypatch, *kinds)
    for number in range(1, 100):
        with own_transaction(shop, commit=True) as own:
            failing.at = number
            failing.seen = 0
            outcome: str
            try:
                outcome = own.process(f"m{number}", data={"k": number}).outcome
            except (StoreError, ContractViolation):
                outcome = "raised"
            ended = failing.seen < number
            failing.at = 0
        here = [one for one in shop.effects() if one == f"m{number}"]
        assert here == ([f"m{number}"] if outcome == "done" else []), (number, outcome)
        if ended:
            assert outcome == "done"
            break
        if outcome == "raised":
            assert shop.process(f"m{number}", data={"k": number}).outcome == "done"
    else:
        raise AssertionError("it never came to its end")
    shop.finish()


class Failing:
    """Sessions that fail once, at one of their requests."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *kinds: Any) -> None:
        self.at = self.seen = 0
        for kind in kinds:
            usual = kind.perform
            if inspect.iscoroutinefunction(usual):
                monkeypatch.setattr(kind, "perform", self._awaited(usual))
            else:
                monkeypatch.setattr(kind, "perform", self._plain(usual))

    def _awaited(self, usual: Any) -> Any:
        async def perform(session: Any, request: Any) -> Any:
            self._look()
            return await usual(session, request)

        return perform

    def _plain(self, usual: Any) -> Any:
        def perform(session: Any, request: Any) -> Any:
            self._look()
            return usual(session, request)

        return perform

    def _look(self) -> None:
        if self.at:
            self.seen += 1
            if self.seen == self.at:
                raise StoreError("failed for the test")


@pytest.mark.parametrize("url", ["sqlite_url", "postgres_url"])
def test_a_cancelled_call_leaves_nothing(url: str, request: pytest.FixtureRequest) -> None:
    """A caller that gives up waiting, and commits what else it did."""
    with Shop(request.getfixturevalue(url), "async") as shop:

        def waiting(message: Message) -> Steps:
            yield wrote(message)
            yield Do(lambda _: asyncio.sleep(3600))

        shop.handle(behaviour=waiting)

        async def given_up(own: Own) -> None:
            async with asyncio.timeout(0.2):
                await shop.inbox.aprocess(**arguments("m1"), tx=own.connection)

        with own_transaction(shop, commit=True) as own:
            own.execute("INSERT INTO effects VALUES ('caller', 'own')")
            with pytest.raises(TimeoutError):
                shop.await_(given_up(own))
        whole(shop, ["caller"], ledger=0, queue=0)


@pytest.mark.parametrize("where", ["handler", "before the commit", "after the commit"])
def test_a_process_that_dies(store_url: str, where: str) -> None:
    """R02: the caller's transaction goes with it, and nothing is left to be taken over."""
    with Shop(store_url, "def") as shop:
        shop.handle()
        command = [sys.executable, "-m", "tests.contract.test_inside", store_url, where]
        assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
        died_after = where == "after the commit"
        whole(shop, ["m1"] if died_after else [], ledger=int(died_after), queue=0)
        assert shop.inbox.admin.workers() == []
        assert shop.process("m1").outcome == ("duplicate" if died_after else "done")


def die(url: str, where: str) -> None:
    """What the process does that dies."""
    with Shop(url, "def", first=False) as shop:

        def dying(message: Message) -> Steps:
            yield wrote(message)
            if where == "handler":
                os.kill(os.getpid(), signal.SIGKILL)

        shop.handle(behaviour=dying)
        with own_transaction(shop, commit=True) as own:
            assert own.process("m1").outcome == "done"
            if where == "before the commit":
                os.kill(os.getpid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


# Refused


def test_handlers_of_the_other_kind_are_refused(shop: Shop) -> None:
    """They cannot have the connection; where another consumer's can, theirs are queued."""
    other: Kind = "async" if shop.kind == "def" else "def"
    shop.handle("t", kind=other)
    shop.handle("both", kind=other, consumer="billing")
    shop.handle("both", consumer="stock")
    with own_transaction(shop, commit=True) as own:
        with pytest.raises(ConfigurationError, match="which cannot have this transaction, so nothing was stored"):
            own.process("m1", message_type="t")
        assert own.process("m2", message_type="both").outcome == "queued"
    assert shop.notes() == [("m2", "stock")]
    shop.receive("end")


def test_the_tx_of_a_handler_is_refused(shop: Shop) -> None:
    """A handler in a handler: `message.send`, or `receive(tx=tx)`."""

    def nesting(message: Message) -> Steps:
        process = shop.inbox.process if shop.kind == "def" else shop.inbox.aprocess
        with pytest.raises(ConfigurationError, match="tx= is the tx of a handler"):
            yield Do(lambda tx: process(tx=tx, **arguments("inner", "other")))
        receive = shop.inbox.receive if shop.kind == "def" else shop.inbox.areceive
        yield Do(lambda tx: receive(tx=tx, **arguments(f"{message.id}-inner", "other")))
        yield wrote(message)

    shop.handle("t", behaviour=nesting)
    shop.handle("other")
    assert shop.process("m1", message_type="t").outcome == "done"
    with own_transaction(shop, commit=True) as own:
        assert own.process("m2", message_type="t").outcome == "done"
    shop.drain()
    assert shop.effects() == ["m1", "m1-inner", "m2", "m2-inner"]


def test_a_transaction_that_is_none_is_refused(shop: Shop) -> None:
    shop.handle()
    with (
        own_transaction(shop, commit=False, autocommit=True) as own,
        pytest.raises(ConfigurationError, match="no open transaction"),
    ):
        own.process("m1")
    with pytest.raises(ConfigurationError, match="tx= must be"):
        shop.process("m1", tx=object())
    assert shop.count("ledger") == 0


def test_sqlite_refuses_a_call_that_would_wait_for_its_caller(sqlite_shop: Shop) -> None:
    """There is one writer, and it is the caller."""

    def calling(message: Message) -> Steps:
        yield wrote(message)
        receive = sqlite_shop.inbox.receive if sqlite_shop.kind == "def" else sqlite_shop.inbox.areceive
        with pytest.raises(ContractViolation, match="the call would wait for the handler itself"):
            yield Do(lambda _: receive(**arguments("inner")))

    sqlite_shop.handle(behaviour=calling)
    with own_transaction(sqlite_shop, commit=True) as own:
        assert own.process("m1").outcome == "done"


if __name__ == "__main__":
    die(*sys.argv[1:])
