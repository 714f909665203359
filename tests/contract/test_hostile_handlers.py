"""Handlers that break the one rule: returning commits, raising rolls back, nothing else may (HZ-20, HZ-21, HZ-22; I3).

Whatever a handler does to its transaction, its message is never counted as done without its effects, its neighbours
are not harmed, and the error names the mistake.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg import sql

from onceward import ContractViolation, Message
from tests.contract.behaviour import Behaviour, Do, Inside, Sql, Step, Steps, taking, wrote
from tests.contract.harness import TYPE, Shop, arguments

# What is refused at the line where it stands: the step, and a word of the error.
REFUSED: dict[str, tuple[Step, str]] = {
    "commit()": (Do(lambda tx: tx.commit()), "commit()"),
    "rollback()": (Do(lambda tx: tx.rollback()), "rollback()"),
    "close()": (Do(lambda tx: tx.close()), "close()"),
    "with tx": (Inside(lambda tx: tx), "with tx"),
    "COMMIT": (Sql("COMMIT"), "COMMIT"),
    "commented commit": (Sql("-- the end\n /* of\nit */  commit;"), "COMMIT"),
    "END": (Sql("END"), "END"),
    "ROLLBACK": (Sql(" \t\nROLLBACK"), "ROLLBACK"),
    "BEGIN": (Sql("/* again */ BEGIN IMMEDIATE"), "BEGIN"),
    "executemany": (Do(lambda tx: tx.executemany("COMMIT", []) if is_sqlite(tx) else many(tx, "COMMIT")), "COMMIT"),
}
REFUSED_BY_SQLITE: dict[str, tuple[Step, str]] = {
    "executescript": (Do(lambda tx: tx.executescript("SELECT 1")), "executescript"),
    "executescript with COMMIT": (Do(lambda tx: tx.executescript("SELECT 1; COMMIT; BEGIN")), "executescript"),
}
REFUSED_BY_POSTGRES: dict[str, tuple[Step, str]] = {
    "START TRANSACTION": (Sql("START TRANSACTION ISOLATION LEVEL SERIALIZABLE"), "START TRANSACTION"),
    "ABORT": (Sql("ABORT"), "ABORT"),
    "ROLLBACK AND CHAIN": (Sql("ROLLBACK AND CHAIN"), "ROLLBACK"),
    "PREPARE TRANSACTION": (Sql("PREPARE TRANSACTION 'x'"), "PREPARE"),
    "bytes": (Do(lambda tx: tx.execute(b"COMMIT")), "COMMIT"),
    "composed": (Do(lambda tx: tx.execute(sql.SQL("COMMIT"))), "COMMIT"),
}

# What gets past a look at the statement's first word.
SNEAKY: dict[str, tuple[Step, ...]] = {
    "after a semicolon": (Sql("; COMMIT"),),
    "and begins again": (Sql("; COMMIT"), Sql("; BEGIN")),
}
SNEAKY_ON_SQLITE: dict[str, tuple[Step, ...]] = {
    "by changing the isolation level": (Do(lambda tx: setattr(tx, "isolation_level", None)),),
    "after a byte order mark": (Sql("\ufeffCOMMIT"),),
}
SNEAKY_ON_POSTGRES: dict[str, tuple[Step, ...]] = {
    "in one go": (Sql("SELECT 1; COMMIT; BEGIN"),),
    "in one go and away": (Sql("SELECT 1; COMMIT"),),
    "in a nested comment": (Sql("/* a /* b */ c */ COMMIT"),),
    "rolling back": (Sql("SELECT 1; ROLLBACK; BEGIN"),),
}


def is_sqlite(tx: Any) -> bool:
    return type(tx).__module__.startswith(("sqlite3", "aiosqlite", "onceward.stores.sqlite"))


def many(tx: Any, statement: str, rows: tuple[Any, ...] = ((),)) -> Any:
    return tx.cursor().executemany(statement, rows)


def run(shop: Shop, how: str, message_id: str, message_type: str = TYPE) -> None:
    """Bring a message in and let it be handled, in one of the two ways."""
    if how == "process":
        shop.process(message_id, message_type)
    else:
        shop.receive(message_id, message_type)
        shop.drain()


def verdicts(shop: Shop, how: str, behaviours: dict[str, Behaviour], words: dict[str, str]) -> dict[str, str]:
    """What became of a message with each behaviour, and of a good one next to it; processes that fail are replaced."""
    found, process = {}, shop.another()
    for name, behaviour in behaviours.items():
        process.handle(name, behaviour=behaviour)
        process.handle(f"good {name}")
        try:
            found[name] = verdict(process, how, name, words.get(name, ""))
        except Exception as error:  # noqa: BLE001 - part of the verdict
            found[name] = f"the process failed with {type(error).__name__}: {error}"
            process = shop.another()
    return found


def verdict(process: Shop, how: str, name: str, words: str) -> str:
    bring_in = process.process if how == "process" else process.receive
    for message_type in (name, f"good {name}"):
        bring_in(message_type, message_type)
    if how == "drain":
        process.drain()
    if process.hurry():
        process.finish()
    effects, detail = process.effects(), process.detail(name)
    took = "with its effect" if name in effects else "without effect"
    said = "" if not detail.history or words in detail.history[-1].error else f", says {detail.history[-1].error!r}"
    good = "" if f"good {name}" in effects else ", and the next message suffers"
    return f"{detail.status} {took}{said}{good}"


def refusals(shop: Shop) -> dict[str, tuple[Step, str]]:
    return {**REFUSED, **(REFUSED_BY_SQLITE if shop.dialect == "sqlite" else REFUSED_BY_POSTGRES)}


@pytest.mark.parametrize("how", ["drain", "process"])
@pytest.mark.parametrize("position", ["first", "last"])
def test_ending_the_transaction_is_refused_where_it_is_tried(shop: Shop, how: str, position: str) -> None:
    """HZ-22: before or after the first effect, the line itself fails, nothing is kept, and the error names it."""

    def last(step: Step) -> Behaviour:
        def behaviour(message: Message) -> Steps:
            yield wrote(message)
            yield step

        return behaviour

    place = taking if position == "first" else last
    tricks = refusals(shop)
    behaviours = {name: place(step) for name, (step, _) in tricks.items()}
    found = verdicts(shop, how, behaviours, {name: words for name, (_, words) in tricks.items()})
    assert found == dict.fromkeys(tricks, "dead without effect")
    dead = shop.inbox.admin.messages(status="dead")
    assert {(row.attempts, (row.error or "").partition(":")[0]) for row in dead} == {(1, "ContractViolation")}


@pytest.mark.parametrize("how", ["drain", "process"])
def test_a_refusal_that_is_swallowed_does_no_harm(shop: Shop, how: str) -> None:
    """HZ-22, I3: a handler that catches everything is done with its effects, or not done and without them."""

    def swallowing(step: Step) -> Behaviour:
        def behaviour(message: Message) -> Steps:
            yield wrote(message)
            with suppress(Exception):
                yield step

        return behaviour

    found = verdicts(shop, how, {name: swallowing(step) for name, (step, _) in refusals(shop).items()}, {})
    harmless = {"done with its effect", "dead without effect"}
    assert {name: what for name, what in found.items() if what not in harmless} == {}


@pytest.mark.parametrize("how", ["drain", "process"])
def test_a_transaction_ended_behind_our_back_is_noticed(shop: Shop, how: str) -> None:
    """HZ-22, I2, I3: not done, named, not run into a second effect, and its neighbours have exactly one each."""
    tricks = {**SNEAKY, **(SNEAKY_ON_SQLITE if shop.dialect == "sqlite" else SNEAKY_ON_POSTGRES)}
    found = {name: sneaked(shop, how, name, steps) for name, steps in tricks.items()}
    shop.sql("DELETE FROM effects")  # what is doubled was counted
    assert {name: what for name, what in found.items() if what not in {"one, none, one", "one, one, one"}} == {}


def sneaked(shop: Shop, how: str, name: str, steps: tuple[Step, ...]) -> str:
    """How many effects the messages before, at and after the trick had."""

    def behaviour(message: Message) -> Steps:
        yield wrote(message)
        if message.id == f"{name} at":
            for step in steps:  # noqa: UP028 - a tuple takes no answers
                yield step

    ids = [f"{name} {place}" for place in ("before", "at", "after")]
    with shop.visitor() as process:
        process.handle(name, behaviour=behaviour)
        try:
            if how == "process":
                for message_id in ids:
                    process.process(message_id, name)
            else:
                process.receive_many(arguments(message_id, name) for message_id in ids)
            process.finish()
        except Exception as error:  # noqa: BLE001 - part of the verdict
            return f"the process failed with {type(error).__name__}: {error}"
    rows = {row.id: row for row in shop.inbox.admin.messages(type=name)}
    if [rows[message_id].status for message_id in ids] != ["done", "dead", "done"]:
        return f"before, at, after: {[rows[message_id].status for message_id in ids]}"
    if "transaction" not in (rows[ids[1]].error or ""):
        return f"says {rows[ids[1]].error}"
    effects = shop.effects()
    counts = {0: "none", 1: "one", 2: "two", 3: "three"}
    return ", ".join(counts.get(effects.count(message_id), "many") for message_id in ids)


@pytest.mark.parametrize("how", ["drain", "process"])
def test_a_swallowed_database_error(shop: Shop, how: str) -> None:
    """HZ-21: PostgreSQL has aborted the transaction, so it is not done; SQLite has not, so it is, with its effects."""

    def swallowing(message: Message) -> Steps:
        yield wrote(message)
        with suppress(sqlite3.Error, psycopg.Error):
            yield Sql("INSERT INTO nowhere VALUES (1)")

    shop.handle("bad", behaviour=swallowing)
    shop.handle("good")
    for name in ("bad", "good"):
        run(shop, how, name, name)
    if shop.dialect == "sqlite":
        assert (shop.status("bad"), shop.effects()) == ("done", ["bad", "good"])
        return
    assert (shop.status("bad"), shop.detail("bad").attempts, shop.effects()) == ("retrying", 1, ["good"])
    assert shop.error("bad").startswith("TransactionAborted: ")
    assert "swallowed a database error" in shop.error("bad")
    shop.finish()
    assert (shop.status("bad"), shop.effects()) == ("dead", ["good"])


@pytest.mark.parametrize("others", [0, 1], ids=["at the commit", "at a savepoint"])
def test_a_swallowed_error_in_a_group_harms_nobody(postgres_shop: Shop, others: int) -> None:
    """HZ-21, HZ-51: the error shows later, at the commit or at a savepoint; the culprit is found."""
    shop = postgres_shop
    ids = [f"m{number:02}" for number in range(25)]
    bad = ["m05", *["m03"] * others]

    def behaviour(message: Message) -> Steps:
        yield wrote(message)
        if message.id == "m05":
            with suppress(psycopg.Error):
                yield Sql("SELECT 1 / 0")
        elif message.id in bad:
            raise RuntimeError("no")

    shop.handle(behaviour=behaviour)
    shop.receive_many(arguments(message_id) for message_id in ids)
    shop.drain()
    assert shop.effects() == [message_id for message_id in ids if message_id not in bad]
    assert sorted((row.id, row.attempts) for row in shop.inbox.admin.messages(status="retrying")) == [
        (message_id, 1) for message_id in sorted(bad)
    ]


@pytest.mark.parametrize("how", ["drain", "process"])
def test_savepoints_are_allowed(shop: Shop, how: str) -> None:
    """HZ-21: the right way to let a statement fail."""

    def careful(message: Message) -> Steps:
        yield Sql("SAVEPOINT before")
        try:
            yield Sql("INSERT INTO nowhere VALUES (1)")
        except (sqlite3.Error, psycopg.Error):
            yield Sql("ROLLBACK TO SAVEPOINT before")
        yield Sql("RELEASE SAVEPOINT before")
        yield wrote(message)
        if message.attempt == 1:
            raise RuntimeError("not yet")

    shop.handle(behaviour=careful)
    run(shop, how, "m1")
    assert (shop.status("m1"), shop.effects()) == ("retrying", [])
    shop.finish()
    assert shop.effects() == ["m1"]


@pytest.mark.parametrize("how", ["drain", "process"])
def test_a_transaction_block_of_psycopg_is_a_savepoint(postgres_shop: Shop, how: str) -> None:
    """HZ-20: as the first thing a handler does, it must not become the outer transaction, which would commit."""
    shop = postgres_shop

    def careful(message: Message) -> Steps:
        yield Inside(lambda tx: tx.transaction(), (wrote(message),))
        with suppress(psycopg.errors.DivisionByZero):
            yield Inside(lambda tx: tx.transaction(), (Sql("SELECT 1 / 0"),))
        yield Inside(lambda tx: tx.transaction(force_rollback=True), (Sql("INSERT INTO effects VALUES ('no', 'no')"),))
        if message.attempt == 1:
            raise RuntimeError("not yet")

    shop.handle(behaviour=careful)
    run(shop, how, "m1")
    assert (shop.status("m1"), shop.effects()) == ("retrying", [])
    shop.finish()
    assert shop.effects() == ["m1"]


@pytest.mark.parametrize("how", ["drain", "process"])
def test_tables_made_by_a_handler_are_effects_too(shop: Shop, how: str) -> None:
    """HZ-22: DDL is part of the transaction on both stores."""

    def making(message: Message) -> Steps:
        yield Sql("CREATE TABLE made (a text)")
        yield wrote(message)
        if message.attempt == 1:
            raise RuntimeError("not yet")

    shop.handle(behaviour=making)
    run(shop, how, "m1")
    with pytest.raises((sqlite3.OperationalError, psycopg.errors.UndefinedTable)):
        shop.sql("SELECT * FROM made")
    shop.finish()
    assert (shop.sql("SELECT * FROM made"), shop.effects()) == ([], ["m1"])


def test_a_transaction_is_of_no_use_after_its_handler(shop: Shop) -> None:
    """HZ-22: kept, it belongs to somebody else's message by now; so it is refused, and so is a cursor of it."""
    kept: list[Any] = []
    cursors: list[Any] = []

    async def keep_cursor(tx: Any) -> None:
        cursor = tx.cursor()
        cursors.append(await cursor if is_sqlite(tx) else cursor)

    def keeping(message: Message) -> Steps:
        yield Do(kept.append)
        yield Do((lambda tx: cursors.append(tx.cursor())) if shop.kind == "def" else keep_cursor)
        yield wrote(message)

    shop.handle(behaviour=keeping)
    shop.process("m1")
    for late in (kept[0], cursors[0]):
        with pytest.raises(ContractViolation, match="outside of its handler"):
            use(shop, late)
    shop.receive("m2")
    shop.drain()
    with pytest.raises((ContractViolation, ValueError, sqlite3.Error, psycopg.Error)):
        use(shop, kept[1])
    assert shop.effects() == ["m1", "m2"]


def use(shop: Shop, late: Any) -> None:
    statement = "INSERT INTO effects VALUES ('late', 'late')"
    if shop.kind == "def":
        late.execute(statement)
        return

    async def used() -> None:
        await late.execute(statement)

    shop.await_(used())


@pytest.mark.parametrize("how", ["drain", "process"])
def test_a_full_disk_that_is_swallowed(sqlite_shop: Shop, how: str) -> None:
    """HZ-22: SQLite rolls back by itself and goes on in autocommit; what follows is not kept, and not called done."""
    shop = sqlite_shop
    shop.sql("CREATE TABLE strays (a)")

    def filling(message: Message) -> Steps:
        yield wrote(message)
        if message.id == "bad":
            ((pages,),) = yield Sql("PRAGMA page_count")
            yield Sql(f"PRAGMA max_page_count = {pages}")
            with suppress(sqlite3.OperationalError):
                yield Sql("INSERT INTO effects VALUES (hex(zeroblob(1000000)), 'big')")
            yield Sql("PRAGMA max_page_count = 1000000")
            yield Sql("INSERT INTO strays VALUES (1)")

    shop.handle(behaviour=filling)
    run(shop, how, "bad")
    run(shop, how, "good")
    shop.finish()
    assert (shop.status("bad"), shop.status("good"), shop.effects()) == ("dead", "done", ["good"])
    assert "disk" in shop.error("bad")
    assert shop.sql("SELECT * FROM strays") == []


@pytest.mark.parametrize("how", ["drain", "process"])
def test_a_conflict_that_rolls_back_and_is_swallowed(sqlite_shop: Shop, how: str) -> None:
    """HZ-22: `INSERT OR ROLLBACK` ends the transaction as well."""
    shop = sqlite_shop
    shop.sql("CREATE TABLE once (a PRIMARY KEY)")
    shop.sql("INSERT INTO once VALUES (1)")

    def behaviour(message: Message) -> Steps:
        yield wrote(message)
        with suppress(sqlite3.IntegrityError):
            yield Sql("INSERT OR ROLLBACK INTO once VALUES (1)")

    shop.handle(behaviour=behaviour)
    run(shop, how, "bad")
    shop.finish()
    assert (shop.status("bad"), shop.effects()) == ("dead", [])
    assert "rolled" in shop.error("bad")


# Ways to write an effect, each the first use of the transaction: inside it, or not at all.

INSERT = "INSERT INTO effects VALUES ({0}, {0})"


def copy(tx: Any, row: list[str]) -> None:
    with tx.cursor().copy("COPY effects (message_id, note) FROM STDIN") as copying:
        copying.write_row(row)


async def async_copy(tx: Any, row: list[str]) -> None:
    async with tx.cursor().copy("COPY effects (message_id, note) FROM STDIN") as copying:
        await copying.write_row(row)


def stream(tx: Any, row: list[str]) -> None:
    list(tx.cursor().stream(INSERT.format("%s") + " RETURNING 1", row))


async def async_stream(tx: Any, row: list[str]) -> None:
    async for _ in tx.cursor().stream(INSERT.format("%s") + " RETURNING 1", row):
        pass


def pipeline(tx: Any, row: list[str]) -> None:
    with tx.pipeline():
        tx.execute(INSERT.format("%s"), row)


async def async_pipeline(tx: Any, row: list[str]) -> None:
    async with tx.pipeline():
        await tx.execute(INSERT.format("%s"), row)


def named(tx: Any, row: list[str]) -> None:
    with tx.cursor("named") as cursor:
        (found,) = cursor.execute("SELECT %s::text", row[:1]).fetchone()
    tx.execute(INSERT.format("%s"), [found, row[1]])


async def async_named(tx: Any, row: list[str]) -> None:
    async with tx.cursor("named") as cursor:
        await cursor.execute("SELECT %s::text", row[:1])
        (found,) = await cursor.fetchone()
    await tx.execute(INSERT.format("%s"), [found, row[1]])


WAYS: dict[tuple[str, str], Callable[[Any, list[str]], Any]] = {
    ("COPY", "def"): copy,
    ("COPY", "async"): async_copy,
    ("stream", "def"): stream,
    ("stream", "async"): async_stream,
    ("pipeline", "def"): pipeline,
    ("pipeline", "async"): async_pipeline,
    ("named cursor", "def"): named,
    ("named cursor", "async"): async_named,
    ("executemany", "def"): lambda tx, row: tx.cursor().executemany(INSERT.format("%s"), [row]),
    ("executemany", "async"): lambda tx, row: tx.cursor().executemany(INSERT.format("%s"), [row]),
    ("client cursor", "def"): lambda tx, row: psycopg.ClientCursor(tx).execute(INSERT.format("%s"), row),
    ("client cursor", "async"): lambda tx, row: psycopg.AsyncClientCursor(tx).execute(INSERT.format("%s"), row),
    ("plain cursor", "def"): lambda tx, row: psycopg.Cursor(tx).execute(INSERT.format("%s"), row),
    ("plain cursor", "async"): lambda tx, row: psycopg.AsyncCursor(tx).execute(INSERT.format("%s"), row),
}


SQLITE_WAYS: dict[tuple[str, str], Callable[[Any, list[str]], Any]] = {
    ("executemany", "def"): lambda tx, row: tx.executemany(INSERT.format("?"), [row]),
    ("executemany", "async"): lambda tx, row: tx.executemany(INSERT.format("?"), [row]),
    ("cursor", "def"): lambda tx, row: tx.cursor().execute(INSERT.format("?"), row),
    ("cursor", "async"): lambda tx, row: tx.execute_insert(INSERT.format("?"), row),
    ("plain cursor", "def"): lambda tx, row: tx.cursor(sqlite3.Cursor).execute(INSERT.format("?"), row),
    ("plain cursor", "async"): lambda tx, row: tx.execute_fetchall(INSERT.format("?"), row),
}


@pytest.mark.parametrize("how", ["drain", "process"])
def test_every_way_to_write_is_inside_the_transaction(shop: Shop, how: str) -> None:
    """R04, HZ-24: COPY, pipelines, named and other cursors: kept when the handler returns, gone when it raises."""
    ways = SQLITE_WAYS if shop.dialect == "sqlite" else WAYS
    process = shop.another()
    found = {way: written(process, how, way, write) for (way, kind), write in ways.items() if kind == shop.kind}
    shop.sql("DELETE FROM effects")  # what is doubled was counted
    assert found == dict.fromkeys(found, ("retrying", 0, "done", 1))


def written(process: Shop, how: str, way: str, write: Callable[[Any, list[str]], Any]) -> tuple[str, int, str, int]:
    """The status and the effects of a message that writes in this way, after its first attempt and in the end."""

    def behaviour(message: Message) -> Steps:
        yield Do(lambda tx: write(tx, [message.id, "way"]))
        if message.attempt == 1:
            raise RuntimeError("not yet")

    process.handle(way, behaviour=behaviour)
    run(process, how, way, way)
    first = process.status(way), process.effects().count(way)
    process.hurry()
    process.drain()
    return *first, process.status(way), process.effects().count(way)


def habits(dialect: str) -> dict[str, Behaviour]:
    """What an innocent handler may set on its connection."""
    if dialect == "sqlite":
        changes: dict[str, Any] = {"row_factory": lambda _, row: {"row": row}, "text_factory": bytes}
    else:
        changes = {"row_factory": psycopg.rows.dict_row, "prepare_threshold": 0}
    found = {name: taking(Do(partial(_set, name, value))) for name, value in changes.items()}
    return found if dialect == "sqlite" else {**found, "loaders": taking(Do(_numbers_as_bytes))}


def _set(name: str, value: Any, tx: Any) -> None:
    setattr(tx, name, value)


def _numbers_as_bytes(tx: Any) -> None:
    """A handler that wants raw values, as some do for dates that Python cannot hold."""
    for kind in ("int4", "int8", "text", "bytea"):
        tx.adapters.register_loader(kind, psycopg.types.string.ByteaBinaryLoader)


@pytest.mark.parametrize("how", ["drain", "process"])
def test_the_habits_of_a_handler_stay_its_own(shop: Shop, how: str) -> None:
    """R05: rows as dictionaries or text as bytes is the handler's choice; the bookkeeping does not depend on it."""
    for name, behaviour in habits(shop.dialect).items():
        shop.handle(name, behaviour=behaviour)
        run(shop, how, name, name)
        assert (shop.status(name), shop.receive(name, name).status) == ("done", "duplicate")
    shop.handle("good")
    run(shop, how, "good", "good")
    assert shop.status("good") == "done"


@pytest.mark.parametrize("how", ["drain", "process"])
def test_switching_autocommit_does_no_harm(postgres_shop: Shop, how: str) -> None:
    """HZ-20: psycopg would begin its own transaction from then on; it is refused, or nothing changes."""
    shop = postgres_shop

    def behaviour(message: Message) -> Steps:
        yield Do(lambda tx: tx.set_autocommit(False))
        yield wrote(message)
        if message.attempt == 1:
            raise RuntimeError("not yet")

    shop.handle(behaviour=behaviour)
    shop.handle("good")
    run(shop, how, "m1")
    run(shop, how, "m2", "good")
    assert shop.effects() == ["m2"]
    shop.finish()
    assert shop.effects() == (["m1", "m2"] if shop.status("m1") == "done" else ["m2"])
