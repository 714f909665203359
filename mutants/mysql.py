"""The guards of what MySQL and MariaDB are told in their own words, and of the sessions that tell them."""

from __future__ import annotations

from functools import partial

from mutants.mutant import Mutant

STATEMENTS = "stores/sql/mysql.sql"
GUARDS = "tests/contract/test_mysql_guards.py"
CALLERS = "tests/contract/test_mysql_callers.py"
CANCELLED = "tests/contract/test_mysql_cancellation.py"
OPERATORS = "tests/contract/test_mysql_operators.py"
SETTINGS = "tests/contract/test_mysql_settings.py"
PROGRAMS = "tests/unit/test_mysql_programs.py"
TEXT = "tests/contract/test_mysql_statements.py"
SUITE = "tests/contract/test_store_suite.py::TestStores"

_mutant = partial(Mutant, store="mariadb")
_BODIES = (
    "INSERT INTO {prefix}body (seq, source, id, type, version, `key`, key_from, aggregate, position, headers, body, "
    "destination, cause, received_at,\n"
)
_MINE = "AND worker = :worker AND token = :token"
_OUTDATED = "DELETE FROM {prefix}ledger WHERE seq IN :outdated AND receipt = 0;\n"
_INSERT = (
    ");\n"
    "INSERT INTO {prefix}ledger (consumer, source, slot, type_hash, id, hash, received_at, receipt)\n"
    "VALUES {rows (:consumer, :source, :slot, :type_hash, :stored_id, :hash, {clock}, "
    "CASE WHEN @onceward_current THEN :receipt ELSE 0 END)}\n"
)
_LIVES = f"WHERE id = :worker)){_INSERT}"
_CATALOG = f"= :catalog{_INSERT}"
_AGED = "repeat(char(0), 32), {clock} - :age, :receipt)}\n"
_KEPT = "ON DUPLICATE KEY UPDATE receipt = {prefix}ledger.receipt"
_NUMBERED = "ON DUPLICATE KEY UPDATE seq = {prefix}ledger.seq"
_NAMED = f"{TEXT}::test_no_update_clause_names_a_number_that_the_server_counts"
_CLAIMED = f"{TEXT}::test_a_claim_takes_nothing_that_another_server_has_claimed_meanwhile"
_FOUND = "WHERE q.seq IN :seqs AND q.worker = :worker AND q.token = :token;\nINSERT INTO {prefix}ledger"

MYSQL: tuple[Mutant, ...] = (
    _mutant(
        name="MySQL: a copy is stored again under the receipt of its call",
        file=STATEMENTS,
        old=f"WHERE l.receipt IN (:receipt, 0);\n{_OUTDATED}{_BODIES}",
        new=f"WHERE l.receipt IS NOT NULL;\n{_OUTDATED}{_BODIES}",
        test=f"{SUITE}::test_a_duplicate_is_accepted_once_and_runs_once[mariadb-async]",
    ),
    _mutant(
        name="MySQL: what was stored under an outdated catalog stays in the ledger",
        file="stores/mysql/programs.py",
        old="        return Tail([ask.part(3, outdated=outdated)])\n",
        new="        return Tail()\n",
        test=f"{TEXT}::test_what_meets_an_outdated_catalog_leaves_nothing",
    ),
    _mutant(
        name="MySQL: what meets an outdated catalog is taken for stored",
        file="stores/mysql/programs.py",
        old="for _, seq, _, is_outdated in stored if is_outdated]",
        new="for _, seq, _, is_outdated in stored if is_outdated > 1]",
        test=f"{TEXT}::test_what_meets_an_outdated_catalog_leaves_nothing",
    ),
    _mutant(
        name="MySQL: all calls have one receipt",
        file="stores/mysql/programs.py",
        old='    ask.params["receipt"] = identity.new_number()\n    if ask.keeps_view',
        new='    ask.params["receipt"] = 1\n    if ask.keeps_view',
        test=f"{SUITE}::test_a_duplicate_is_accepted_once_and_runs_once[mariadb-async]",
    ),
    _mutant(
        name="MySQL: all imports have one receipt",
        file="stores/mysql/programs.py",
        old='        ask.params["receipt"] = identity.new_number()\n    return',
        new='        ask.params["receipt"] = 1\n    return',
        test="tests/contract/test_adoption.py::test_importing_again_changes_nothing[mariadb-def]",
    ),
    _mutant(
        name="MySQL: the update clause of a receive names the number that the server counts",
        file=STATEMENTS,
        old=f"{_LIVES}{_KEPT}",
        new=f"{_LIVES}{_NUMBERED}",
        test=_NAMED,
    ),
    _mutant(
        name="MySQL: the update clause of a direct receive names the number that the server counts",
        file=STATEMENTS,
        old=f"{_CATALOG}{_KEPT}",
        new=f"{_CATALOG}{_NUMBERED}",
        test=_NAMED,
    ),
    _mutant(
        name="MySQL: the update clause of an import names the number that the server counts",
        file=STATEMENTS,
        old=f"{_AGED}{_KEPT}",
        new=f"{_AGED}{_NUMBERED}",
        test=_NAMED,
    ),
    _mutant(
        name="MySQL: not every id is looked for after the insert",
        file="steps/receive.py",
        old="        complete = len(seqs) + len(known) == len(plan)\n",
        new="        plan = [one for number, one in enumerate(plan) if number in seqs or number in known]\n"
        "        complete = True\n",
        test=f"{TEXT}::test_a_message_that_meets_the_number_of_another_is_stored_all_the_same",
    ),
    _mutant(
        name="MySQL: a claim is written over another one",
        file=STATEMENTS,
        old="WHERE seq IN :seqs AND token IS NULL AND (state IN ('ready', 'retry') OR due_at IS NOT NULL);",
        new="WHERE seq IN :seqs AND (state IN ('ready', 'retry') OR due_at IS NOT NULL);",
        test=_CLAIMED,
    ),
    _mutant(
        name="MySQL: what another has claimed is run along",
        file=STATEMENTS,
        old=_FOUND,
        new=_FOUND.replace(" AND q.worker = :worker AND q.token = :token", ""),
        test=_CLAIMED,
    ),
    _mutant(
        name="MySQL: a claim that passed by a take-over stays for ever",
        file=STATEMENTS,
        old="WHERE q.worker IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {prefix}worker w WHERE w.id = q.worker) LIMIT 10",
        new="WHERE FALSE LIMIT 10",
        test=f"{TEXT}::test_what_was_claimed_for_a_worker_that_is_gone_comes_free",
    ),
    _mutant(
        name="MySQL: inline work whose transaction was replaced is finished all the same",
        file=STATEMENTS,
        old="RELEASE SAVEPOINT {identifier fence};\nINSERT INTO",
        new="SELECT 1;\nINSERT INTO",
        test=f"{TEXT}::test_inline_work_whose_transaction_has_ended_does_not_finish",
    ),
    _mutant(
        name="MySQL: our statements go by what a handler has set",
        file="stores/mysql/session.py",
        old="            return list(OWN_SETTINGS)\n",
        new="            return []\n",
        test=f"{TEXT}::test_what_a_handler_has_set_does_not_change_what_it_sends",
    ),
    _mutant(
        name="MySQL: a commit that meets another is charged",
        file="stores/mysql/failures.py",
        old="    if which in CONFLICTS:\n        return StoreConflict",
        new="    if which in CONFLICTS - {1213}:\n        return StoreConflict",
        test=f"{GUARDS}::test_a_commit_that_fails_with_a_conflict_is_free_and_repeated[def-finish] "
        f"{GUARDS}::test_a_commit_that_fails_with_a_conflict_is_free_and_repeated[def-receive]",
    ),
    _mutant(
        name="MySQL: a handler's transaction that was replaced by another is finished all the same",
        file="stores/mysql/programs.py",
        old='    without_fence = 0 if ask.params["fence"] else 1\n',
        new="    without_fence = 1\n",
        test=f"{GUARDS}::test_a_procedure_that_commits_is_noticed_and_its_message_does_not_finish",
    ),
    _mutant(
        name="MySQL: a zombie finishes what its own process has claimed again",
        file=STATEMENTS,
        old=f"DELETE FROM {{prefix}}queue WHERE seq IN :seqs {_MINE};\nINSERT INTO {{prefix}}run",
        new="DELETE FROM {prefix}queue WHERE seq IN :seqs AND worker = :worker;\nINSERT INTO {prefix}run",
        test=f"{SUITE}::test_a_finish_with_half_of_its_claim_changes_nothing[mariadb-async-worker]",
    ),
    _mutant(
        name="MySQL: a finish does not count what it removes",
        file=STATEMENTS,
        old="CASE WHEN ROW_COUNT() = :expected THEN :expected END",
        new=":expected",
        test=f"{SUITE}::test_a_finish_without_its_claim_raises_and_leaves_nothing[mariadb-async]",
    ),
    _mutant(
        name="MySQL: two messages of a key run at the same time",
        file=STATEMENTS,
        old="SELECT (e.place, e.seq) < (m.place, m.seq) FROM {prefix}queue e",
        new="SELECT FALSE FROM {prefix}queue e",
        test=f"{SUITE}::test_messages_of_a_key_run_in_the_order_of_their_coming[mariadb-def-1] "
        f"{SUITE}::test_one_that_fails_holds_its_key_and_no_other[mariadb-def]",
    ),
    _mutant(
        name="MySQL: who finishes does not wake the next of its key",
        file=STATEMENTS,
        old="SET q.state = 'ready', q.due_at = NULL WHERE q.state = 'waiting';",
        new="SET q.state = 'waiting' WHERE q.state = 'waiting';",
        test=f"{SUITE}::test_one_that_fails_holds_its_key_and_no_other[mariadb-def]",
    ),
    _mutant(
        name="MySQL: a lock wait time-out may be passed over",
        file="stores/mysql/failures.py",
        old="SWALLOWED = CONFLICTS | BUSY | _LATE | _AWAY",
        new="SWALLOWED = CONFLICTS | _LATE | _AWAY",
        test=f"{GUARDS}::test_a_handler_that_passes_over_a_lock_wait_time_out_does_not_finish[def]",
    ),
    _mutant(
        name="MySQL: DDL of a handler commits what it did before",
        file="stores/mysql/guard.py",
        old="        if check(text):\n",
        new="        if check(text.partition(' ')[2]):\n",
        test=f"{GUARDS}::test_what_would_end_the_transaction_is_refused_where_it_stands",
    ),
    _mutant(
        name="MySQL: a call that failed in the middle leaves its ledger row in the caller's transaction",
        file="stores/mysql/joined.py",
        old="    undoes_statements_only = True",
        new="    undoes_statements_only = False",
        test=f"{CALLERS}::test_a_call_that_failed_in_the_middle_leaves_nothing",
    ),
    _mutant(
        name="a deadlock that has undone a caller's transaction looks like one of the call alone",
        file="stores/inside.py",
        old="    except (GuardFailed, TransactionAborted):  # a deadlock",
        new="    except TransactionAborted:  # a deadlock",
        test=f"{CALLERS}::test_a_deadlock_takes_the_callers_own_rows_and_says_so",
    ),
    _mutant(
        name="MySQL: a caller's older view does not see a copy",
        file="stores/mysql/joined.py",
        old='latest = WORDS[self._statements.server]["shared"].encode() if self._keeps_view else b""',
        new='latest = b""',
        test=f"{CALLERS}::test_what_came_after_the_callers_view_began_is_known",
    ),
    _mutant(
        name="MySQL: a backslash in a text ends it where the mode says so",
        file="stores/mysql/joined.py",
        old='self._write = plain_literal if "NO_BACKSLASH_ESCAPES" in mode.upper() else literal',
        new="self._write = literal",
        test=f"{CALLERS}::test_text_that_needs_quoting_arrives_as_it_was_sent",
    ),
    _mutant(
        name="MySQL: a dry run of an async handler shows nothing",
        file="stores/mysql/session.py",
        old="            return await run_async(dry_run.result(request.prefix, called, recorded), rows)",
        new="            return DryRunResult(called, recorded, ())",
        test=f"{OPERATORS}::test_a_dry_run_shows_what_would_be_changed[async]",
    ),
    _mutant(
        name="MySQL: of ids that a collation takes for one, one is imported",
        file="admin/adoption.py",
        old='spellings = f"count(DISTINCT {bytewise})" if',
        new='spellings = "1" if',
        test=f"{OPERATORS}::test_ids_that_the_servers_collation_takes_for_one_are_all_imported",
    ),
    _mutant(
        name="MySQL: SQLAlchemy takes a row that has not changed for one that is gone",
        file="stores/mysql/guard.py",
        old="            result.affected_rows = int(found[1])",
        new="            pass",
        test="tests/integrations/test_orm_handlers.py::test_a_row_that_was_so_already_is_found[def]",
    ),
    _mutant(
        name="MySQL: a cancelled statement leaves its answer to the next one",
        file="stores/mysql/aio.py",
        old="if self.in_handler and not is_gone:",
        new="if self.in_handler:",
        test=f"{CANCELLED}::test_a_handler_whose_time_is_over_during_a_statement_fails_alone[before]",
    ),
    _mutant(
        name="MySQL: a handler that loses its connection by its own doing runs again for ever",
        file="stores/mysql/session.py",
        old="        return not self.idle\n",
        new="        return not self.connection.closed and self._in_transaction\n",
        test=f"{CANCELLED}::test_a_handler_that_passes_over_its_own_cancellation_does_not_finish[False]",
    ),
    _mutant(
        name="MySQL: a handler that passes over a deadlock is at fault for what MySQL undid",
        file="stores/mysql/failures.py",
        old="SWALLOWED = CONFLICTS | BUSY | _LATE | _AWAY",
        new="SWALLOWED = BUSY | _LATE | _AWAY",
        test=f"{GUARDS}::test_a_handler_that_passes_over_a_deadlock_does_not_finish[def]",
    ),
    _mutant(
        name="MySQL: ids that the server's collation takes for one are one message",
        file="stores/statements.py",
        old="/*!80017 COLLATE utf8mb4_0900_bin */ /*M! COLLATE utf8mb4_nopad_bin */",
        new="COLLATE utf8mb4_general_ci",
        test=f"{GUARDS}::test_two_texts_are_one_only_where_their_bytes_are[def-order-a-order-A]",
    ),
    _mutant(
        name="MySQL: a transaction sees what was committed before it began, and no more",
        file="stores/mysql/store.py",
        old="ISOLATION LEVEL READ COMMITTED",
        new="ISOLATION LEVEL REPEATABLE READ",
        test=f"{GUARDS}::test_a_handler_sees_what_others_have_committed_meanwhile[async]",
    ),
    _mutant(
        name="MySQL: a claim locks its keys and writes nothing, which a cluster does not compare",
        file=STATEMENTS,
        old="{values keys} ON DUPLICATE KEY UPDATE uses = uses + 1;",
        new="{values keys} ON DUPLICATE KEY UPDATE uses = uses;",
        test=f"{GUARDS}::test_whoever_claims_a_message_writes_the_lock_of_its_key[def]",
    ),
    _mutant(
        name="MySQL: a server that may lose what it acknowledged is exactly-once",
        file="stores/mysql/findings.py",
        old='    if flush != "1":\n',
        new='    if flush == "0":\n',
        test=f"{SETTINGS}::test_each_setting_is_looked_at[innodb_flush_log_at_trx_commit]",
    ),
    _mutant(
        name="MySQL: tables that no failure undoes are passed over",
        file="stores/mysql/store.py",
        old="WHERE transactions = 'NO')",
        new="WHERE transactions = 'XA')",
        test=f"{SETTINGS}::test_tables_that_have_no_transactions_are_named",
    ),
    _mutant(
        name="MySQL: a replicated group whose new primary lags is fine",
        file="stores/mysql/findings.py",
        old='    if consistency == "EVENTUAL":\n',
        new='    if consistency == "NEVER":\n',
        test=f"{SETTINGS}::test_what_clusters_say[group]",
    ),
    _mutant(
        name="TiDB: what it reads past is believed to be locked",
        file="stores/statements.py",
        old='"tried": "FOR UPDATE NOWAIT"}',
        new='"tried": "FOR UPDATE SKIP LOCKED"}',
        test=f"{PROGRAMS}::test_nothing_that_tidb_reads_past_is_said_to_it",
    ),
    _mutant(
        name="TiDB: one key that is held keeps all others from running",
        file="stores/mysql/locks.py",
        old="(wanted[:half], wanted[half:]) if half else ():",
        new="():",
        test=f"{PROGRAMS}::test_keys_that_others_have_locked_are_passed_over[tidb-others1]",
    ),
    _mutant(
        name="TiDB: numbers that are drawn in blocks are in order",
        file="stores/mysql/findings.py",
        old='if "AUTO_ID_CACHE=1 " not in made_by:',
        new='if "AUTO_ID_CACHE=1" not in made_by:',
        test=f"{SETTINGS}::test_on_tidb_numbers_are_drawn_one_by_one[1000]",
    ),
)
