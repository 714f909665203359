"""What a handler's statement leaves behind, by its text."""

from __future__ import annotations

import pytest

from onceward.stores.leftovers import Left
from onceward.stores.postgres.leftovers import left_by

SETTERS = frozenset(["become"])
LEFT: dict[str, Left] = {
    "SELECT 1": Left.NOTHING,
    "UPDATE t SET a = 1": Left.NOTHING,
    "INSERT INTO settings VALUES ('set')": Left.NOTHING,
    "SELECT become_rich(1)": Left.NOTHING,
    "CREATE TABLE temperature (a text)": Left.NOTHING,
    "SELECT pg_advisory_xact_lock(1)": Left.NOTHING,
    "SET LOCAL ROLE a": Left.TRANSACTION,
    "set\n local search_path to a": Left.TRANSACTION,
    "SET CONSTRAINTS ALL DEFERRED": Left.TRANSACTION,
    "SELECT set_config('a.b', %s, true)": Left.TRANSACTION,
    "SELECT set_config('a.b', 'x', true), set_config('a.c', 'y', TRUE)": Left.TRANSACTION,
    "CREATE TEMP TABLE a ON COMMIT DROP AS SELECT 1": Left.TRANSACTION,
    "DECLARE a CURSOR FOR SELECT 1": Left.TRANSACTION,
    "SET ROLE a": Left.SESSION,
    "SET /* only */ LOCAL ROLE a": Left.SESSION,
    "SET SESSION AUTHORIZATION a": Left.SESSION,
    "RESET ROLE": Left.SESSION,
    "SELECT set_config('a.b', %s, false)": Left.SESSION,
    "SELECT set_config('a.b', %s, %s)": Left.SESSION,
    "SELECT set_config('a.b', 'x', true), set_config('a.c', 'y', false)": Left.SESSION,
    "SELECT app.Become('a')": Left.SESSION,
    "CALL become ('a')": Left.SESSION,
    "DO $$ BEGIN SET ROLE a; END $$": Left.SESSION,
    "CREATE TEMPORARY TABLE a (b text)": Left.CONNECTION,
    "create local temp table a (b text)": Left.CONNECTION,
    "SELECT 1 AS a INTO TEMP b": Left.CONNECTION,
    "SELECT pg_advisory_lock(1)": Left.CONNECTION,
    "SELECT pg_try_advisory_lock_shared(1)": Left.CONNECTION,
    "LISTEN a": Left.CONNECTION,
    "PREPARE a AS SELECT 1": Left.CONNECTION,
    "DISCARD TEMP": Left.CONNECTION,
    "DECLARE a CURSOR WITH HOLD FOR SELECT 1": Left.CONNECTION,
}


@pytest.mark.parametrize(("statement", "left"), LEFT.items(), ids=LEFT)
def test_what_a_statement_leaves_behind(statement: str, left: Left) -> None:
    """In doubt more than it does, never less."""
    assert left_by(statement, SETTERS) == left
