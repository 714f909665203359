"""What a handler sets, makes or locks is gone before the next message, also under backlog (D42)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from onceward import Message
from tests.contract.behaviour import Do, Sql, Step, Steps, wrote
from tests.contract.harness import Shop, arguments
from tests.waiting import wait_until

TENANTS = [f"t{number}" for number in range(10)]

FUNCTION = """
CREATE FUNCTION be(name text) RETURNS void LANGUAGE plpgsql AS
'BEGIN PERFORM set_config(''app.tenant'', name, false); SET ROLE {role}; END'
"""
SETUP = (
    "CREATE ROLE {role}",
    "CREATE TABLE owned (tenant text, id text)",
    "ALTER TABLE owned ENABLE ROW LEVEL SECURITY",
    "CREATE POLICY own ON owned USING (tenant = current_setting('app.tenant', true))",
    "GRANT USAGE ON SCHEMA public TO {role}",
    "GRANT ALL ON owned TO {role}",
    FUNCTION,
)
SETTING: dict[str, tuple[str, ...]] = {
    "local": ("SET LOCAL ROLE {role}", "SELECT set_config('app.tenant', '{tenant}', true)"),
    "session": ("SET ROLE {role}", "SET app.tenant = '{tenant}'"),
    "in one string": ("/* now */ SET ROLE {role}; SELECT set_config('app.tenant', '{tenant}', false)",),
    "by a function": ("SELECT be('{tenant}')",),
    "in a block": ("DO $$ BEGIN SET ROLE {role}; PERFORM set_config('app.tenant', '{tenant}', false); END $$",),
}


@pytest.fixture
def role(postgres_shop: Shop) -> Iterator[str]:
    """A role that may only touch rows of the tenant that is set."""
    name = f"tenants_{id(postgres_shop)}"
    for statement in SETUP:
        postgres_shop.sql(statement.format(role=name))
    yield name
    postgres_shop.sql(f"DROP OWNED BY {name}")
    postgres_shop.sql(f"DROP ROLE {name}")


@pytest.mark.parametrize("how", ["drain", "process"])
def test_a_tenant_set_by_one_message_is_not_the_next_ones(postgres_shop: Shop, role: str, how: str) -> None:
    """D42: with row-level security and a backlog, each row is its own message's; one that sets no tenant has none."""
    shop = postgres_shop
    seen: list[Any] = []

    def behaviour(message: Message) -> Steps:
        tenant, _, setting = message.id.partition(" ")
        if setting == "none":
            yield Sql("INSERT INTO owned SELECT nullif(current_setting('app.tenant', true), ''), %s", (message.id,))
            return
        for statement in SETTING[setting]:
            yield Sql(statement.format(role=role, tenant=tenant))
        yield Sql("INSERT INTO owned SELECT current_setting('app.tenant', true), %s", (message.id,))
        seen.append((yield Sql("SELECT count(*) FROM owned"))[0][0])

    shop.handle(behaviour=behaviour)
    ids = [f"{tenant}{way.replace(' ', '')} {one}" for tenant in TENANTS for way in SETTING for one in (way, "none")]
    if how == "drain":
        shop.receive_many(arguments(message_id) for message_id in ids)
        shop.drain()
    else:
        for message_id in ids:
            shop.process(message_id)
    rows = dict(shop.sql("SELECT id, tenant FROM owned"))
    assert rows == {one: None if one.endswith("none") else one.partition(" ")[0] for one in ids}
    assert seen == [1] * len(TENANTS) * len(SETTING)


@pytest.mark.parametrize("word", ["SET LOCAL", "SET"])
def test_our_own_finish_needs_no_search_path(postgres_shop: Shop, word: str) -> None:
    """D42: a handler in another schema finishes, and the next message is where it was."""
    shop = postgres_shop
    shop.sql("CREATE SCHEMA elsewhere")
    shop.sql("CREATE TABLE elsewhere.effects (message_id text, note text)")

    def behaviour(message: Message) -> Steps:
        if message.id in ("m1", "m3"):
            yield Sql(f"{word} search_path = elsewhere")
            yield Sql(f"{word} statement_timeout = 2000")  # long enough for a busy machine
            yield Sql(f"{word} client_encoding = 'LATIN1'")
        yield wrote(message)

    shop.handle(behaviour=behaviour)
    shop.receive_many(arguments(message_id) for message_id in ("m1", "m2"))
    shop.drain()
    shop.process("m3")
    shop.process("m4")
    assert shop.sql("SELECT message_id FROM elsewhere.effects ORDER BY 1") == [("m1",), ("m3",)]
    assert shop.effects() == ["m2", "m4"]


LASTING: dict[str, tuple[Step, ...]] = {
    "a temporary table": (Sql("CREATE TEMP TABLE scratch (a text)"),),
    "one until the commit": (Sql("CREATE TEMPORARY TABLE scratch (a text) ON COMMIT DROP"),),
    "made by a query": (Sql("SELECT 1 AS a INTO TEMP scratch"),),
    "a cursor": (Sql("DECLARE scratch CURSOR WITH HOLD FOR SELECT 1"),),
    "a plan": (Sql("PREPARE scratch AS SELECT 1"),),
}
LASTING_ON_SQLITE: dict[str, tuple[Step, ...]] = {
    "a temporary table": (Sql("CREATE TEMP TABLE scratch (a text)"),),
    "in the temporary schema": (Sql("CREATE TABLE temp.scratch (a text)"),),
    "a database": (Sql("ATTACH ':memory:' AS scratch"),),
}


def test_what_lasts_longer_than_a_transaction_does_not_last(shop: Shop) -> None:
    """D42: each message may make it anew, in a group and after."""
    tricks = LASTING_ON_SQLITE if shop.dialect == "sqlite" else LASTING
    for name, steps in tricks.items():

        def behaviour(message: Message, steps: tuple[Step, ...] = steps) -> Steps:
            for step in steps:  # noqa: UP028 - a tuple takes no answers
                yield step
            yield wrote(message)

        shop.handle(name, behaviour=behaviour)
        shop.receive_many(arguments(f"{name} {number}", name) for number in range(3))
    shop.drain()
    for name in tricks:
        shop.process(f"{name} 3", name)
    assert {row.status for row in shop.inbox.admin.messages()} == {"done"}
    assert shop.runs.total() == 4 * len(tricks)


def test_a_session_lock_is_released_after_its_message(postgres_shop: Shop) -> None:
    """D42: also when the handler raises, for a rollback keeps such a lock."""
    shop = postgres_shop

    def behaviour(message: Message) -> Steps:
        yield Sql("SELECT pg_advisory_lock(42)")
        yield wrote(message)
        if message.id == "m1":
            raise RuntimeError("no")

    shop.handle(behaviour=behaviour)
    for message_id in ("m1", "m2"):
        shop.process(message_id)
        wait_until(lambda: shop.sql("SELECT pg_try_advisory_xact_lock(42)") == [(True,)])


SQLITE_HABITS: dict[str, tuple[Callable[[Any], Any], str, Any]] = {
    "a pragma": (lambda tx: tx.execute("PRAGMA case_sensitive_like = ON"), "SELECT 'A' LIKE 'a'", 1),
    "read only": (lambda tx: tx.execute("PRAGMA query_only = ON"), "PRAGMA query_only", 0),
    "a function": (
        lambda tx: tx.create_function("upper", 1, lambda _: "changed"),
        "SELECT upper('a')",
        "A",
    ),
}


def test_a_connection_of_sqlite_is_as_it_was(sqlite_shop: Shop) -> None:
    """D42: pragmas and functions of one handler are not the next message's; it finishes also where it only reads."""
    shop = sqlite_shop
    answers: list[Any] = []
    for name, (change, question, _) in SQLITE_HABITS.items():

        def behaviour(message: Message, change: Callable[[Any], Any] = change, question: str = question) -> Steps:
            answers.append((yield Sql(question))[0][0])
            yield wrote(message)
            yield Do(change)

        shop.handle(name, behaviour=behaviour)
        shop.receive_many(arguments(f"{name} {number}", name) for number in (1, 2))
        shop.drain()
        for number in (3, 4):
            shop.process(f"{name} {number}", name)
    assert answers == [usual for _, _, usual in SQLITE_HABITS.values() for _ in range(4)]
    assert len(shop.effects()) == 4 * len(SQLITE_HABITS)
