"""The guards of SQLite's own statements that need processes of their own to be seen; the simulation has the others."""

from __future__ import annotations

from mutants.mutant import Mutant

_ROWS = "WHERE seq IN (SELECT value FROM json_each(:seqs))"
_FENCED = f"{_ROWS} AND worker = :worker AND token = :token"

SQLITE: tuple[Mutant, ...] = (
    Mutant(
        name="a call that failed in the middle leaves its rows in the caller's transaction, in a file",
        file="stores/inside.py",
        old="        yield from _undo(error)\n",
        new="        if not error.args:\n            yield from _undo(error)\n",
        test="tests/unit/test_whole_calls.py::test_on_sqlite_nothing_of_a_failed_call_is_committed",
        store="sqlite",
    ),
    Mutant(
        name="a zombie finishes what its heir is running, in a file",
        file="stores/sql/sqlite.sql",
        old=f"{_FENCED};\nDELETE FROM {{prefix}}queue\n{_FENCED}\n\n-- name: finish_direct",
        new=f"{_ROWS};\nDELETE FROM {{prefix}}queue\n{_ROWS}\n\n-- name: finish_direct",
        test="tests/crash/test_zombies.py::test_a_zombie_that_wakes_while_its_heir_runs_ends_nothing[sqlite-async]",
        store="sqlite",
    ),
    Mutant(
        name="a zombie finishes what its own process has claimed again, in a file",
        file="stores/sql/sqlite.sql",
        old=f"{_FENCED};\nDELETE FROM {{prefix}}queue\n{_FENCED}\n\n-- name: finish_direct",
        new=f"{_ROWS} AND worker = :worker;\nDELETE FROM {{prefix}}queue\n{_ROWS} AND worker = :worker\n\n-- name: finish_direct",
        test="tests/contract/test_store_suite.py::TestStores::test_a_finish_with_half_of_its_claim_changes_nothing[sqlite-def-worker]",
        store="sqlite",
    ),
    Mutant(
        name="a zombie charges what its heir is running, in a file",
        file="stores/sql/sqlite.sql",
        old="WHERE seq = :seq AND worker = :worker AND token = :token\nRETURNING seq\n\n-- name: postpone",
        new="WHERE seq = :seq AND (:worker + :token) IS NOT NULL\nRETURNING seq\n\n-- name: postpone",
        test="tests/contract/test_claims.py::test_a_zombie_ends_nothing_that_its_heir_runs[sqlite-def-raises]",
        store="sqlite",
    ),
)
