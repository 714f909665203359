"""A handler cannot end its transaction by a statement; whatever else it runs is left alone."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.errors import ContractViolation
from onceward.stores.calls import LONG, refuse_transaction_control, remembered
from onceward.stores.postgres.script import statements
from onceward.stores.sqlite.guard import statement

if TYPE_CHECKING:
    from collections.abc import Callable

ENDS = [
    "COMMIT",
    "commit",
    "Commit;",
    "COMMIT WORK",
    "COMMIT TRANSACTION",
    "COMMIT AND CHAIN",
    "COMMIT PREPARED 'x'",
    "END",
    "END;",
    "END TRANSACTION",
    "ROLLBACK",
    "rollback;",
    "ROLLBACK WORK",
    "ROLLBACK TRANSACTION",
    "ROLLBACK AND CHAIN",
    "ROLLBACK PREPARED 'x'",
    "ABORT",
    "ABORT WORK",
    "BEGIN",
    "BEGIN IMMEDIATE",
    "BEGIN ISOLATION LEVEL SERIALIZABLE",
    "START TRANSACTION",
    "start\n  transaction read only",
    "PREPARE TRANSACTION 'x'",
    "prepare\ttransaction 'x'",
    "SET TRANSACTION READ ONLY",
    "set local transaction_read_only = on",
    "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
]
FINE = [
    "",
    ";",
    "SELECT 1",
    "SELECT 'COMMIT'",
    "SELECT 'ROLLBACK'; ",
    'SELECT "commit" FROM t',
    "INSERT INTO log VALUES ('BEGIN')",
    "COMMENT ON TABLE t IS 'COMMIT'",
    "COMMITS",
    "SELECT 1 -- COMMIT",
    "SELECT 1 /* COMMIT */",
    "-- COMMIT\nSELECT 1",
    "/* ROLLBACK */ SELECT 1",
    "-- COMMIT",
    "/* COMMIT",
    "SAVEPOINT a",
    "RELEASE a",
    "RELEASE SAVEPOINT a",
    "ROLLBACK TO a",
    "ROLLBACK TO SAVEPOINT a",
    "rollback to savepoint a",
    "ROLLBACK WORK TO SAVEPOINT a",
    "ROLLBACK TRANSACTION TO a",
    "ROLLBACK\n TO\n a",
    "PREPARE plan AS SELECT 1",
    "EXECUTE plan",
    "SELECT CASE WHEN true THEN 1 END",
    "CREATE FUNCTION f() RETURNS void LANGUAGE plpgsql AS $$ BEGIN END $$",
    "DO $$ BEGIN PERFORM 1; END $$",
    "UPDATE t SET state = 'end'",
    "DELETE FROM begins",
    "ENDPOINT",
    "BEGINNING",
    "ABORTED",
    "SET LOCAL lock_timeout = 1",
    "START",
    "WITH commit AS (SELECT 1) SELECT * FROM commit",
]
BEFORE = [
    "",
    " ",
    "\n\t ",
    "-- a comment\n",
    "/* a comment */",
    "/* two\nlines */\n-- more\n  ",
    "--\n",
    "/**/",
    "-- /*\n",
]


def on_sqlite(sql: str) -> None:
    """What a handler's statement goes through on SQLite, which takes one in a string."""
    refuse_transaction_control(statement(sql))


def on_postgres(sql: str) -> None:
    """What a handler's statements go through on PostgreSQL, which takes several in a string."""
    for one in statements(sql):
        refuse_transaction_control(one)


@pytest.fixture(params=[on_sqlite, on_postgres])
def refuse(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """The check of each store."""
    check: Callable[[str], None] = request.param
    return check


@pytest.mark.parametrize("sql", ENDS)
def test_a_statement_that_ends_the_transaction_is_refused(refuse: Callable[[str], None], sql: str) -> None:
    """Whatever stands before it: spaces, comments, lines. The error says what to do instead."""
    for before in BEFORE:
        with pytest.raises(ContractViolation, match=r"returning commits, raising rolls back.*savepoint"):
            refuse(before + sql)


@pytest.mark.parametrize("before", BEFORE)
def test_every_other_statement_is_left_alone(refuse: Callable[[str], None], before: str) -> None:
    """The words may stand in strings, comments, names and the middle of a statement; savepoints are welcome."""
    for sql in FINE:
        refuse(before + sql)


def test_the_error_names_the_word(refuse: Callable[[str], None]) -> None:
    """The reader finds the line by its word."""
    with pytest.raises(ContractViolation, match="the handler ran ROLLBACK;"):
        refuse("  rollback")
    with pytest.raises(ContractViolation, match="the handler ran COMMIT;"):
        refuse("commit")


@pytest.mark.parametrize("sql", ["; COMMIT", ";;ROLLBACK", " ; -- x\n COMMIT", ";BEGIN"])
def test_an_empty_statement_in_front_hides_nothing(refuse: Callable[[str], None], sql: str) -> None:
    """SQLite skips a leading semicolon and runs what follows, so it is looked at too."""
    with pytest.raises(ContractViolation):
        refuse(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1; COMMIT; BEGIN",
        "SELECT 1;COMMIT",
        "SELECT ';'; ROLLBACK",
        "SELECT $$;$$; END",
        "SELECT $a$ $$ ; $a$; END",
        r"SELECT E'\''; COMMIT; --'",
        "SELECT 1 /* ; */ ; COMMIT",
        "/* a /* nested */ comment */ COMMIT",
        'SELECT 1 AS "a"";"; COMMIT',
    ],
)
def test_a_statement_behind_another_is_looked_at(sql: str) -> None:
    """PostgreSQL runs all that stand in one string."""
    with pytest.raises(ContractViolation):
        on_postgres(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1; SELECT 2",
        "SELECT 'a; COMMIT'",
        "SELECT '''; COMMIT; '''",
        r"SELECT E'\'; COMMIT; '",
        "SELECT $$; COMMIT; $$; SELECT 2",
        "SELECT $a$; COMMIT; $$ $a$",
        'SELECT 1 AS "; COMMIT; "',
        "/* a /* nested; */ COMMIT */ SELECT 1",
        "SELECT 1 /* ; COMMIT */",
        "SELECT 1; -- COMMIT",
        "SELECT 'never closed; COMMIT",
        "SELECT $1; SELECT $2",
    ],
)
def test_what_only_looks_like_a_statement_is_none(sql: str) -> None:
    """In literals, names, comments and bodies of functions the words are text."""
    on_postgres(sql)


def test_a_trigger_may_begin_and_end() -> None:
    """On SQLite its body stands in the open."""
    on_sqlite("CREATE TRIGGER t AFTER INSERT ON a BEGIN SELECT 1; END")


def test_many_comments_take_no_time(refuse: Callable[[str], None]) -> None:
    """Generated SQL may carry any number of comments; looking past them takes time in proportion."""
    started = time.thread_time()  # whoever else works on this machine
    refuse("/**/" * 22 + "SELECT 1")
    assert time.thread_time() - started < 0.3


@given(st.text("-/*\n; cCoOmMiItTeEnNdD'", max_size=14))
def test_any_text_is_answered(sql: str) -> None:
    """Nothing but the refusal ever comes out."""
    for check in (on_sqlite, on_postgres):
        with suppress(ContractViolation):
            check(sql)


@pytest.mark.parametrize("length", [0, LONG])
def test_a_check_is_remembered_and_a_refusal_repeated(length: int) -> None:
    """What is harmless is looked at once, unless it is long; what is refused is refused every time."""
    seen = []

    def check(sql: str) -> None:
        seen.append(sql)
        refuse_transaction_control(sql)

    again, padding = remembered(check), " " * length
    for _ in range(2):
        again("SELECT 1" + padding)
        with pytest.raises(ContractViolation):
            again("COMMIT" + padding)
    assert seen.count("SELECT 1" + padding) == (2 if length else 1)
