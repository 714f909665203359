"""What travels together fails together, and leaves a connection that works (PostgreSQL)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from typing import Any, cast

import psycopg
import pytest

from onceward.errors import ConfigurationError, StoreConflict, StoreError, StoreUnavailable
from onceward.flow import COMMIT, ROLLBACK, Query
from onceward.message import Message
from tests.contract.behaviour import Do, Sql, Steps, wrote
from tests.contract.caller import own_transaction
from tests.contract.harness import Shop

WRONG = {"seqs": [1], "worker": 1, "token": 1, "code_version": "", "fence": "", "expected": 1}


@pytest.fixture
def session(postgres_shop: Shop) -> Iterator[Any]:
    """A connection of a worker, without the worker."""
    session = postgres_shop.inbox.store.connect()
    yield session
    session.close()


def test_a_commit_that_the_server_passed_over_can_be_sent_again(postgres_shop: Shop, session: Any) -> None:
    """HZ-23: behind one that failed, at its first time and later."""
    begin = postgres_shop.inbox.context.short()
    for _ in range(2):
        with pytest.raises(StoreError):
            session.perform((begin, Query("finish", WRONG), Query("workers"), COMMIT))
        session.perform(ROLLBACK)
        for _ in range(5):
            assert session.perform((begin, Query("workers"), COMMIT))[1] == []


def test_one_statement_may_travel_twice(postgres_shop: Shop, session: Any) -> None:
    """It is prepared once, and runs as often as it was asked for."""
    begin, names = postgres_shop.inbox.context.short(), [Query("add_name", {"name": name}) for name in ("a", "b")]
    session.perform((begin, *names, COMMIT))
    assert {name for _, name in session.perform((begin, Query("names"), COMMIT))[1]} >= {"a", "b"}


def test_only_what_may_be_lost_does_not_wait_for_the_disk(postgres_shop: Shop) -> None:
    """Whatever else commits is as durable as the server was told, a handler's work before all."""
    shop = postgres_shop

    def looks(message: Message) -> Steps:
        (setting,) = yield Sql("SHOW synchronous_commit")
        yield wrote(message, setting[0])

    shop.handle(behaviour=looks)
    shop.receive("m1")
    shop.drain()
    assert shop.notes() == [("m1", "on")]
    context, setting = shop.inbox.context, []
    for begin in (context.short(durable=False), context.short()):
        with shop.inbox.store.session() as session:
            session.perform((begin, Query("workers")))
            setting.append(cast("Any", session).connection.pgconn.exec_(b"SHOW synchronous_commit").get_value(0, 0))
            session.perform(COMMIT)
    assert setting == [b"off", b"on"]


def test_a_value_that_cannot_travel_is_refused(postgres_shop: Shop, session: Any) -> None:
    """Before anything is sent: it is no trouble with the database, which would be tried again and again."""
    begin, names = postgres_shop.inbox.context.short(), [Query("add_name", {"name": name}) for name in ("a", "b\0c")]
    with pytest.raises(StoreError, match="NUL") as refused:
        session.perform((begin, *names, COMMIT))
    assert not isinstance(refused.value, StoreUnavailable)
    session.perform(ROLLBACK)
    assert session.perform((begin, Query("workers"), COMMIT))[1] == []


def test_what_was_prepared_may_be_gone(postgres_shop: Shop, session: Any) -> None:
    """Discarded behind our back: repeated as after a conflict, and nothing is prepared from then on."""
    begin, name = postgres_shop.inbox.context.short(), Query("add_name", {"name": "a"})
    session.perform((begin, name, COMMIT))
    session.connection.pgconn.exec_(b"DEALLOCATE ALL")
    with pytest.raises(StoreConflict):
        session.perform((begin, name, COMMIT))
    session.perform(ROLLBACK)
    for _ in range(2):
        session.perform((begin, name, COMMIT))


def test_a_handler_may_discard_what_is_prepared(postgres_shop: Shop) -> None:
    """By itself, or through psycopg, which does so when a savepoint is rolled back: its messages are finished."""
    shop = postgres_shop

    def discards(message: Message) -> Steps:
        yield wrote(message)
        yield Do(lambda tx: tx.execute("DEALLOCATE ALL"))

    def steps_back(message: Message) -> Steps:
        for _ in range(8):  # from some time on psycopg prepares it
            yield Do(lambda tx: tx.execute("SELECT 1"))
        yield Do(_savepoint if shop.kind == "def" else _async_savepoint)
        yield wrote(message)

    shop.handle("discards", behaviour=discards)
    shop.handle("steps back", behaviour=steps_back)
    for number in range(4):
        shop.receive(f"d{number}", "discards")
        shop.receive(f"s{number}", "steps back")
    shop.finish()  # one whose connection had ours prepared anew may have been put off for a moment
    assert len(shop.effects()) == 8


def _savepoint(tx: Any) -> None:
    with tx.transaction(force_rollback=True):
        tx.execute("SELECT 2")


async def _async_savepoint(tx: Any) -> None:
    async with tx.transaction(force_rollback=True):
        await tx.execute("SELECT 2")


@pytest.mark.parametrize("how", ["receive", "process"])
@pytest.mark.parametrize("begun", [True, False])
def test_the_plans_of_a_handler_are_its_own(postgres_shop: Shop, how: str, begun: bool) -> None:  # noqa: FBT001 - a parameter
    """Ours use their indexes whatever the server thinks of a small queue; what a handler runs is planned as ever."""
    shop, seen = postgres_shop, []
    shop.sql("CREATE TABLE plan (scans text)")

    def behaviour(message: Message) -> Steps:
        if begun:
            yield Sql("INSERT INTO plan SELECT current_setting('enable_seqscan')")
            yield wrote(message)
        seen.append(message.id)

    shop.handle(behaviour=behaviour)
    for number in range(3):
        shop.receive(f"m{number}") if how == "receive" else shop.process(f"m{number}")
    shop.drain()
    assert sorted(seen) == ["m0", "m1", "m2"]
    assert {scans for (scans,) in shop.sql("SELECT scans FROM plan")} == ({"on"} if begun else set())


def test_a_caller_s_pipeline_is_refused(postgres_shop: Shop) -> None:
    """D62: a sentence, nothing is stored, and the transaction goes on."""
    with own_transaction(postgres_shop, commit=True) as own:
        pipeline = ExitStack() if postgres_shop.kind == "def" else AsyncExitStack()
        block = own.connection.pipeline()
        if isinstance(pipeline, AsyncExitStack):
            postgres_shop.await_(pipeline.enter_async_context(block))
        else:
            pipeline.enter_context(block)
        with pytest.raises(ConfigurationError, match="tx= is in pipeline mode"):
            own.receive("m1")
        postgres_shop.await_(pipeline.aclose()) if isinstance(pipeline, AsyncExitStack) else pipeline.close()
        assert own.receive("m2").status == "accepted"
    assert [row.id for row in postgres_shop.inbox.admin.messages()] == ["m2"]


def test_a_caller_s_aborted_transaction_is_refused_without_blaming_a_handler(postgres_shop: Shop) -> None:
    """D62: no handler has anything to do with it."""
    with own_transaction(postgres_shop, commit=False) as own:
        with pytest.raises(psycopg.Error):
            own.execute("SELECT 1 / 0")
        with pytest.raises(ConfigurationError, match="an earlier error has aborted") as refused:
            own.receive("m1")
        assert "handler" not in str(refused.value)
        own.execute("ROLLBACK")
        assert own.receive("m2").status == "accepted"
