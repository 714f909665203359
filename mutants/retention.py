"""Retention: pruning, archive, erasure, quarantine, the spool."""

from __future__ import annotations

from mutants.mutant import Mutant

_ERASE = "tests/retention/test_erase.py"
_EVERY_TRACE = f"{_ERASE}::test_every_trace_of_a_person_goes_and_copies_are_still_duplicates"
_POSTGRES, _SQLITE = "stores/sql/postgres.sql", "stores/sql/sqlite.sql"

_ERASURE = (
    Mutant(
        name="erasure leaves the results of effects",
        file=_SQLITE,
        old="UPDATE {prefix}effect SET result = NULL WHERE seq = :seq;\n",
        new="",
        test=f"{_EVERY_TRACE}[sqlite]",
        store="sqlite",
    ),
    Mutant(
        name="erasure leaves the results of effects, on PostgreSQL",
        file=_POSTGRES,
        old="UPDATE {prefix}effect SET result = NULL WHERE seq = %(seq)s",
        new="UPDATE {prefix}effect SET result = result WHERE seq = %(seq)s",
        test=f"{_EVERY_TRACE}[postgres]",
        store="postgres",
    ),
    Mutant(
        name="erasure leaves the headers of quarantined bodies",
        file=_SQLITE,
        old="SET body = x'', headers = NULL, key = NULL, resolution",
        new="SET body = x'', key = NULL, resolution",
        test=f"{_EVERY_TRACE}[sqlite]",
        store="sqlite",
    ),
    Mutant(
        name="erasure leaves the headers of quarantined bodies, on PostgreSQL",
        file=_POSTGRES,
        old="SET body = '', headers = NULL, key = NULL, resolution",
        new="SET body = '', key = NULL, resolution",
        test=f"{_EVERY_TRACE}[postgres]",
        store="postgres",
    ),
    Mutant(
        name="erasure leaves the keys of quarantined bodies, on PostgreSQL",
        file=_POSTGRES,
        old="SET body = '', headers = NULL, key = NULL, resolution",
        new="SET body = '', headers = NULL, resolution",
        test=f"{_EVERY_TRACE}[postgres]",
        store="postgres",
    ),
    Mutant(
        name="erasure leaves tracebacks",
        file=_SQLITE,
        old="UPDATE {prefix}attempt SET error = '(erased)', traceback = NULL WHERE seq = :seq;",
        new="UPDATE {prefix}attempt SET error = '(erased)' WHERE seq = :seq;",
        test=f"{_EVERY_TRACE}[sqlite]",
        store="sqlite",
    ),
    Mutant(
        name="erasure leaves the case that a message was accepted from, on PostgreSQL",
        file=_POSTGRES,
        old="UNION ALL SELECT id FROM {prefix}quarantine WHERE accepted_seq = %(seq)s",
        new="",
        test=f"{_ERASE}::test_by_number_also_the_copy_that_it_was_accepted_from[postgres]",
        store="postgres",
    ),
    Mutant(
        name="erasure leaves the case that a message was accepted from",
        file=_SQLITE,
        old=" UNION ALL SELECT id FROM {prefix}quarantine WHERE accepted_seq = :seq",
        new="",
        test=f"{_ERASE}::test_by_number_also_the_copy_that_it_was_accepted_from[sqlite]",
        store="sqlite",
    ),
    Mutant(
        name="a new column may hold a person's data",
        file="stores/sql/migrations/0001_core.sqlite.sql",
        old="    copies   integer NOT NULL,\n",
        new="    copies   integer NOT NULL,\n    headers  text,\n",
        test=f"{_ERASE}::test_every_column_is_known[sqlite]",
        store="sqlite",
    ),
    Mutant(
        name="what runs is erased",
        file=_POSTGRES,
        old="WHERE l.seq = %(seq)s AND NOT EXISTS (SELECT FROM {prefix}queue q WHERE q.seq = l.seq)\nFOR UPDATE OF l",
        new="WHERE l.seq = %(seq)s\nFOR UPDATE OF l",
        test=f"{_ERASE}::test_what_runs_is_left_alone_and_said[postgres]",
        store="postgres",
    ),
)

_SEARCH = (
    Mutant(
        name="an erasure is not written down",
        file="stores/relational/retention.py",
        old='        yield audit("erase", *order)\n',
        new="",
        test=f"{_ERASE}::test_an_erasure_is_remembered_when_the_message_is_not[sqlite]",
        store="sqlite",
    ),
    Mutant(
        name="the line about an erasure is pruned, on PostgreSQL",
        file=_POSTGRES,
        old="DELETE FROM {prefix}audit WHERE seq = ANY(ARRAY(SELECT seq FROM gone)) AND action <> 'erase'\n)",
        new="DELETE FROM {prefix}audit WHERE seq = ANY(ARRAY(SELECT seq FROM gone))\n)",
        test=f"{_ERASE}::test_an_erasure_is_remembered_when_the_message_is_not[postgres]",
        store="postgres",
    ),
    Mutant(
        name="a person is looked for in the first messages only",
        file="steps/erase.py",
        old="""        if len(bodies) < CHUNK:
            break""",
        new="""        if bodies:
            break""",
        test=f"{_ERASE}::test_the_search_sees_everything[sqlite]",
        store="sqlite",
    ),
    Mutant(
        name="a person is looked for in the first cases only",
        file="steps/erase.py",
        old="""        if len(cases) < CHUNK:
            return sorted""",
        new="""        if cases or not cases:
            return sorted""",
        test=f"{_ERASE}::test_the_search_sees_everything[postgres]",
        store="postgres",
    ),
    Mutant(
        name="one body that is no JSON ends the search for a person",
        file="steps/erase.py",
        old="return False  # what is no JSON has no fields",
        new="raise",
        test=f"{_ERASE}::test_the_search_sees_everything[sqlite]",
        store="sqlite",
    ),
)

_PRUNE = "tests/retention/test_prune.py"
_PRUNING = (
    Mutant(
        name="unfinished messages lose their bodies",
        file=_SQLITE,
        old="""DELETE FROM {prefix}body
WHERE seq IN (SELECT value FROM json_each(:seqs))
  AND NOT EXISTS (SELECT 1 FROM {prefix}queue q WHERE q.seq = {prefix}body.seq)""",
        new="""DELETE FROM {prefix}body
WHERE seq IN (SELECT value FROM json_each(:seqs))""",
        test=f"{_PRUNE}::test_what_is_not_finished_is_never_pruned[sqlite]",
        store="sqlite",
    ),
    Mutant(
        name="unfinished messages lose their bodies, on PostgreSQL",
        file=_POSTGRES,
        old="  AND NOT EXISTS (SELECT FROM {prefix}queue q WHERE q.seq = b.seq OFFSET 0)\n  AND NOT EXISTS (SELECT FROM {prefix}quarantine x WHERE x.seq = b.seq AND x.resolution IS NULL OFFSET 0)\nRETURNING b.seq",
        new="  AND NOT EXISTS (SELECT FROM {prefix}quarantine x WHERE x.seq = b.seq AND x.resolution IS NULL OFFSET 0)\nRETURNING b.seq",
        test=f"{_PRUNE}::test_what_is_not_finished_is_never_pruned[postgres]",
        store="postgres",
    ),
    Mutant(
        name="an open case loses its first body",
        file=_SQLITE,
        old="  AND NOT EXISTS (SELECT 1 FROM {prefix}quarantine x WHERE x.seq = {prefix}body.seq AND x.resolution IS NULL)\n",
        new="",
        test=f"{_PRUNE}::test_what_is_in_question_is_never_pruned[sqlite]",
        store="sqlite",
    ),
    Mutant(
        name="a partition goes with an open case in it, on PostgreSQL",
        file="stores/sql/migrations/0002_retention.postgres.sql",
        old="""       OR EXISTS (SELECT FROM {prefix}quarantine WHERE seq >= low AND seq < high AND resolution IS NULL)
""",
        new="",
        test=f"{_PRUNE}::test_a_partition_is_looked_at_again_before_it_goes[case]",
        store="postgres",
    ),
    Mutant(
        name="a partition goes with unfinished messages in it, on PostgreSQL",
        file="stores/sql/migrations/0002_retention.postgres.sql",
        old="IF EXISTS (SELECT FROM {prefix}queue WHERE seq >= low AND seq < high)\n",
        new="IF false\n",
        test=f"{_PRUNE}::test_a_partition_is_looked_at_again_before_it_goes[dead]",
        store="postgres",
    ),
    Mutant(
        name="a message is remembered from when it came, on PostgreSQL",
        file=_POSTGRES,
        old="      AND l.seq NOT IN (SELECT seq FROM recent)\n",
        new="",
        test=f"{_PRUNE}::test_a_message_is_remembered_from_when_it_was_finished[postgres-late]",
        store="postgres",
    ),
    Mutant(
        name="a message with an effect of unknown outcome is forgotten, on PostgreSQL",
        file=_POSTGRES,
        old="      AND NOT EXISTS (SELECT FROM {prefix}effect e WHERE e.seq = l.seq AND NOT e.done OFFSET 0)\n",
        new="",
        test=f"{_PRUNE}::test_an_effect_of_unknown_outcome_keeps_its_message[postgres]",
        store="postgres",
    ),
    Mutant(
        name="an accepted body forgets that it was a second one",
        file=_SQLITE,
        old="        x.resolution IS NULL OR EXISTS (SELECT 1 FROM {prefix}ledger a WHERE a.seq = x.accepted_seq)))",
        new="        x.resolution IS NULL))",
        test=f"{_PRUNE}::test_what_is_in_question_is_never_pruned[sqlite]",
        store="sqlite",
    ),
    Mutant(
        name="what is not archived yet is forgotten",
        file=_SQLITE,
        old="  AND NOT (:archive_first AND EXISTS (SELECT 1 FROM {prefix}body b WHERE b.seq = {prefix}ledger.seq))\n",
        new="",
        test="tests/retention/test_archive.py::test_nothing_goes_that_is_not_archived[sqlite]",
        store="sqlite",
    ),
    Mutant(
        name="a partition that is not archived yet goes, on PostgreSQL",
        file="stores/sql/migrations/0002_retention.postgres.sql",
        old="       OR (must_be_empty AND EXISTS (SELECT FROM {prefix}body WHERE seq >= low AND seq < high)) THEN",
        new="       THEN",
        test="tests/retention/test_archive.py::test_nothing_goes_that_is_not_archived[postgres]",
        store="postgres",
    ),
    Mutant(
        name="a retention may be shorter than a source redelivers",
        file="steps/prune.py",
        old="if context.settings.dedupe_retention < window:",
        new="if context.settings.dedupe_retention < window / 1000:",
        test=f"{_PRUNE}::test_too_short_a_retention_stops_the_start[sqlite]",
        store="sqlite",
    ),
    Mutant(
        name="a case is decided twice",
        file="stores/sql/portable.sql",
        old="WHERE id = :case_id AND resolution IS NULL\nRETURNING id",
        new="WHERE id = :case_id\nRETURNING id",
        test="tests/contract/test_mismatch.py::test_a_decision_that_comes_between_counts",
        store="postgres",
    ),
    Mutant(
        name="bodies go before the file that has them is complete",
        file="retention/retention.py",
        old="        archive.add(self._archivable(after, seqs, limit))\n",
        new="        records = list(self._archivable(after, seqs, limit))\n        list(self._drop_archived(seqs))\n        archive.add(iter(records))\n",
        test="tests/retention/test_archive.py::test_dying_at_every_step_loses_nothing",
        store="sqlite",
    ),
)

RETENTION: tuple[Mutant, ...] = (*_ERASURE, *_SEARCH, *_PRUNING)
