"""A handler cannot end its transaction by a statement; whatever else it runs is left alone."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.errors import ContractViolation
from onceward.stores.calls import refuse_transaction_control

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
    "CREATE TRIGGER t AFTER INSERT ON a BEGIN SELECT 1; END",
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


@pytest.mark.parametrize("sql", ENDS)
@pytest.mark.parametrize("before", BEFORE)
def test_a_statement_that_ends_the_transaction_is_refused(before: str, sql: str) -> None:
    """Whatever stands before it: spaces, comments, lines. The error says what to do instead."""
    with pytest.raises(ContractViolation, match=r"returning commits, raising rolls back.*savepoint"):
        refuse_transaction_control(before + sql)


@pytest.mark.parametrize("sql", FINE)
@pytest.mark.parametrize("before", BEFORE)
def test_every_other_statement_is_left_alone(before: str, sql: str) -> None:
    """The words may stand in strings, comments, names and the middle of a statement; savepoints are welcome."""
    refuse_transaction_control(before + sql)


def test_the_error_names_the_word() -> None:
    """The reader finds the line by its word."""
    with pytest.raises(ContractViolation, match="the handler ran ROLLBACK;"):
        refuse_transaction_control("  rollback")
    with pytest.raises(ContractViolation, match="the handler ran COMMIT;"):
        refuse_transaction_control("commit")


@pytest.mark.parametrize("sql", ["; COMMIT", ";;ROLLBACK", " ; -- x\n COMMIT", ";BEGIN"])
def test_an_empty_statement_in_front_hides_nothing(sql: str) -> None:
    """SQLite skips a leading semicolon and runs what follows, so it is looked at too."""
    with pytest.raises(ContractViolation):
        refuse_transaction_control(sql)


def test_many_comments_take_no_time() -> None:
    """Generated SQL may carry any number of comments; looking past them takes time in proportion."""
    started = time.perf_counter()
    refuse_transaction_control("/**/" * 22 + "SELECT 1")
    assert time.perf_counter() - started < 0.3


@given(st.text("-/*\n; cCoOmMiItTeEnNdD'", max_size=14))
def test_any_text_is_answered(sql: str) -> None:
    """Nothing but the refusal ever comes out."""
    try:
        refuse_transaction_control(sql)
    except ContractViolation:
        return
