"""Adoption: importing what was handled before onceward was there."""

from __future__ import annotations

from mutants.mutant import Mutant

_TESTS = "tests/contract/test_adoption.py"

ADOPTION = (
    Mutant(
        name="a copy of an imported message is a mismatch",
        file="stores/moves/ledger.py",
        old="return self.is_imported or (self.hash",
        new="return (self.hash",
        test=f"{_TESTS}::test_copies_of_imported_messages_are_duplicates_and_never_mismatches[sqlite-def]",
        store="sqlite",
    ),
    Mutant(
        name="a repeated receive accepts an imported id",
        file="steps/receive.py",
        old="if known.is_same(delivery) and not known.is_imported]",
        new="if known.is_same(delivery)]",
        test=f"{_TESTS}::test_a_repeated_receive_does_not_take_an_imported_id_for_its_own[sqlite-def]",
        store="sqlite",
    ),
    Mutant(
        name="an unhandled message is a mismatch to a consumer that has handled it elsewhere",
        file="stores/relational/fan_out.py",
        old="if found.is_imported:",
        new="if False:",
        test=f"{_TESTS}::test_what_waits_for_its_consumer_is_a_copy_where_that_has_handled_it[sqlite-def]",
        store="sqlite",
    ),
    Mutant(
        name="ids are imported for the service alone",
        file="steps/adopt.py",
        old="sorted({context.service, *subscribed, *registered} - {OUTBOX})",
        new="sorted({context.service})",
        test=f"{_TESTS}::test_ids_are_imported_for_every_consumer[sqlite-def]",
        store="sqlite",
    ),
    Mutant(
        name="an imported id is remembered from the import on",
        file="stores/sql/sqlite.sql",
        old="VALUES (:consumer, :source, 0, :slot, :stored_id, zeroblob(32), {clock} - :age)",
        new="VALUES (:consumer, :source, 0, :slot, :stored_id, zeroblob(32), {clock} - :age * 0)",
        test=f"{_TESTS}::test_the_retention_counts_from_when_it_was_handled[sqlite]",
        store="sqlite",
    ),
    Mutant(
        name="an imported id is remembered from the import on, on PostgreSQL",
        file="stores/sql/postgres.sql",
        old="{clock} - age\n",
        new="{clock} - age * 0\n",
        test=f"{_TESTS}::test_the_retention_counts_from_when_it_was_handled[postgres]",
        store="postgres",
    ),
    Mutant(
        name="a preview imports",
        file="admin/adoption.py",
        old="step = adopt.known_ids if preview else adopt.adopt",
        new="step = adopt.adopt",
        test=f"{_TESTS}::test_importing_again_changes_nothing[sqlite-def]",
        store="sqlite",
    ),
    Mutant(
        name="a table is read from its beginning on every page",
        file="admin/adoption.py",
        old="after = page[-1][0]",
        new="after = page[0][0]",
        test=f"{_TESTS}::test_a_table_is_read_in_pages[sqlite-def]",
        store="sqlite",
    ),
)
"""Mutants that tests must catch."""
