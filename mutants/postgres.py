"""The guards of PostgreSQL's own statements and sessions."""

from __future__ import annotations

from functools import partial

from mutants.mutant import Mutant

STATEMENTS = "stores/sql/postgres.sql"
GUARDS = "tests/contract/test_postgres_guards.py"
RACES = "tests/retention/test_races.py"
ZOMBIES = "tests/crash/test_zombies.py"
CATALOG = "tests/contract/test_catalog.py"
FAN_OUT = "tests/contract/test_fan_out.py"
SUITE = "tests/contract/test_store_suite.py::TestStores"
HALF = f"{SUITE}::test_a_finish_with_half_of_its_claim_changes_nothing"
MIGRATIONS = "tests/migration/test_migrations.py"
ENDING = f"{GUARDS}::test_a_claim_that_is_committed_while_its_worker_ends_is_let_go"

_mutant = partial(Mutant, store="postgres")
_FENCE = "(worker, token) IS NOT DISTINCT FROM (%(worker)s::bigint, %(token)s::bigint)"
_FRESH = "SELECT * FROM fresh LIMIT %(limit)s\n), mine AS MATERIALIZED (\n    SELECT seq, key_hash, place, due_at FROM picked, me"
_ME = "WITH me AS MATERIALIZED (\n    SELECT id FROM {prefix}worker WHERE id = %(worker)s"

_CATALOG = "(SELECT version FROM {prefix}catalog WHERE one) = %(catalog)s::bigint"
_KEPT = "      AND (%(worker)s::bigint IS NULL OR EXISTS (SELECT FROM {prefix}worker w WHERE w.id = %(worker)s FOR KEY SHARE))\n"
_FRESH_LEDGER = (
    "), fresh AS (\n"
    "    INSERT INTO {prefix}ledger (seq, consumer, source, slot, type_hash, id, hash, received_at)\n"
    "    SELECT seq, consumer, source, slot, type_hash, stored_id, hash, {clock}\n"
    "    FROM input"
)

POSTGRES: tuple[Mutant, ...] = (
    _mutant(
        name="a handler's transaction that was replaced by another is finished all the same",
        file=STATEMENTS,
        old="\n      AND current_setting('onceward.fence', true) = %(fence)s\n    RETURNING seq, outgoing",
        new="\n    RETURNING seq, outgoing",
        test=f"{GUARDS}::test_a_transaction_that_is_replaced_under_the_driver_is_noticed",
    ),
    _mutant(
        name="inline, a transaction that was replaced by another is finished all the same",
        file=STATEMENTS,
        old="CASE WHEN coalesce(current_setting('onceward.fence', true), '') = %(fence)s THEN %(expected)s::integer END",
        new="%(expected)s::integer",
        test=f"{GUARDS}::test_a_transaction_that_is_replaced_under_the_driver_is_noticed",
    ),
    _mutant(
        name="a transaction is as isolated as the database likes",
        file="stores/postgres/cursors.py",
        old='"BEGIN ISOLATION LEVEL READ COMMITTED"',
        new='"BEGIN"',
        test=f"{GUARDS}::test_what_came_behind_a_key_while_its_handler_ran_is_not_forgotten",
    ),
    _mutant(
        name="who removes the first of a key waits for no claim",
        file=STATEMENTS,
        old="SELECT count(pg_advisory_xact_lock(key_hash))",
        new="SELECT count(key_hash)",
        test=f"{GUARDS}::test_what_is_being_parked_behind_a_key_is_not_forgotten",
    ),
    _mutant(
        name="inline work takes a key that somebody has",
        file=STATEMENTS,
        old="THEN pg_try_advisory_xact_lock(i.key_hash) ELSE false END",
        new="THEN true ELSE false END",
        test="tests/order/test_inline.py::test_inline_messages_of_a_key_never_overlap",
    ),
    _mutant(
        name="a transaction that stands still is left open",
        file=STATEMENTS,
        old="set_config('idle_in_transaction_session_timeout', %(idle_limit)s, true),\n           set_config('onceward.fence'",
        new="set_config('onceward.fence'",
        test=f"{GUARDS}::test_a_process_that_is_stuck_in_its_transaction_does_not_hold_its_key_for_ever",
    ),
    _mutant(
        name="a statement may take for ever",
        file=STATEMENTS,
        old="    SELECT set_config('statement_timeout', %(statement_limit)s, true),\n           set_config('lock_timeout'",
        new="    SELECT set_config('lock_timeout'",
        test=f"{GUARDS}::test_the_server_has_limits_of_its_own_for_a_handler",
    ),
    _mutant(
        name="a handler's transaction may stand still for ever",
        file="steps/context.py",
        old="return Begin(seconds + 5, seconds + 5, seconds + 15, fence",
        new="return Begin(seconds + 5, seconds + 5, 0, fence",
        test=f"{GUARDS}::test_the_server_has_limits_of_its_own_for_a_handler",
    ),
    _mutant(
        name="a message is forgotten while a case is opened about it",
        file=STATEMENTS,
        old="ORDER BY seq FOR UPDATE SKIP LOCKED\n\n-- name: drop_bodies",
        new="ORDER BY seq\n\n-- name: drop_bodies",
        test=f"{RACES}::test_a_case_that_is_opened_while_its_message_is_forgotten_is_found",
    ),
    _mutant(
        name="a case is opened about a message that is being forgotten",
        file=STATEMENTS,
        old="WHERE l.seq = %(seq)s FOR KEY SHARE\nON CONFLICT (seq, hash, type_hash)",
        new="WHERE l.seq = %(seq)s\nON CONFLICT (seq, hash, type_hash)",
        test=f"{RACES}::test_a_case_that_is_opened_while_its_message_is_forgotten_is_found",
    ),
    _mutant(
        name="a partition is looked at before it is locked",
        file="stores/sql/migrations/0002_retention.postgres.sql",
        old="    LOCK TABLE {prefix}body IN ACCESS EXCLUSIVE MODE;\n",
        new="",
        test=f"{RACES}::test_a_message_that_is_committed_while_its_partition_goes_keeps_its_body",
    ),
    _mutant(
        name="a finish that finds fewer rows counts",
        file=STATEMENTS,
        old="CASE WHEN count(*) = %(expected)s THEN count(*) END",
        new="count(*)",
        test="tests/contract/test_claims.py::test_a_zombie_can_finish_nothing[postgres-def-returns]",
    ),
    _mutant(
        name="a zombie finishes what its heir is running",
        file=STATEMENTS,
        old=f"WHERE seq = ANY(%(seqs)b::bigint[]) AND {_FENCE}\n      AND current_setting",
        new="WHERE seq = ANY(%(seqs)b::bigint[])\n      AND current_setting",
        test=f"{ZOMBIES}::test_a_zombie_that_wakes_while_its_heir_runs_ends_nothing[postgres-sync]",
    ),
    _mutant(
        name="a zombie finishes what its own process has claimed again",
        file=STATEMENTS,
        old=f"WHERE seq = ANY(%(seqs)b::bigint[]) AND {_FENCE}\n      AND current_setting",
        new="WHERE seq = ANY(%(seqs)b::bigint[]) AND worker = %(worker)s\n      AND current_setting",
        test=f"{HALF}[postgres-def-worker]",
    ),
    _mutant(
        name="a zombie finishes what another has claimed under its token",
        file=STATEMENTS,
        old=f"WHERE seq = ANY(%(seqs)b::bigint[]) AND {_FENCE}\n      AND current_setting",
        new="WHERE seq = ANY(%(seqs)b::bigint[]) AND token = %(token)s\n      AND current_setting",
        test=f"{HALF}[postgres-def-token]",
    ),
    _mutant(
        name="a message is claimed whose key inline work has",
        file=STATEMENTS,
        old=f"    SELECT * FROM due UNION ALL {_FRESH} WHERE key_hash IS NULL OR pg_try_advisory_xact_lock(key_hash)",
        new=f"    SELECT * FROM due UNION ALL {_FRESH}",
        test=f"{GUARDS}::test_what_is_stored_waits_for_inline_work_of_its_key",
    ),
    _mutant(
        name="a claim does not keep its worker",
        file=STATEMENTS,
        old=f"Relies on queue_ready, queue_due and queue_key.\n{_ME} FOR KEY SHARE",
        new=f"Relies on queue_ready, queue_due and queue_key.\n{_ME}",
        test=f"{ENDING}[claim-seen]",
    ),
    _mutant(
        name="a claim of the relay does not keep its worker",
        file=STATEMENTS,
        old=f"Relies on queue_outgoing and queue_outgoing_due.\n{_ME} FOR KEY SHARE",
        new=f"Relies on queue_outgoing and queue_outgoing_due.\n{_ME}",
        test=f"{ENDING}[claim_outgoing-seen]",
    ),
    _mutant(
        name="a claim of isolated messages does not keep its worker",
        file=STATEMENTS,
        old=f"Relies on queue_isolated.\n{_ME} FOR KEY SHARE",
        new=f"Relies on queue_isolated.\n{_ME}",
        test=f"{ENDING}[claim_isolated-seen]",
    ),
    _mutant(
        name="whoever lapsed is taken over while it claims",
        file=STATEMENTS,
        old="ORDER BY id LIMIT 10\nFOR UPDATE SKIP LOCKED",
        new="ORDER BY id LIMIT 10",
        test=f"{ENDING}[claim-lapsed]",
    ),
    _mutant(
        name="whoever was seen dying is taken over while its claim is committed",
        file=STATEMENTS,
        old="starts_with(process, %(process)s || '#') FOR UPDATE",
        new="starts_with(process, %(process)s || '#')",
        test=f"{ENDING}[claim-seen]",
    ),
    _mutant(
        name="whoever leaves does not wait for its own claim",
        file=STATEMENTS,
        old="SELECT id FROM {prefix}worker WHERE id = %(worker)s FOR UPDATE",
        new="SELECT id FROM {prefix}worker WHERE id = %(worker)s",
        test=f"{ENDING}[claim-leaving]",
    ),
    _mutant(
        name="batches that overlap insert in their own order",
        file=STATEMENTS,
        old=f"    WHERE coalesce({_CATALOG}, true)\n{_KEPT}{_FRESH_LEDGER} ORDER BY consumer, source, stored_id\n",
        new=f"    WHERE coalesce({_CATALOG}, true)\n{_KEPT}{_FRESH_LEDGER}\n",
        test=f"{GUARDS}::test_batches_that_overlap_do_not_wait_for_each_other_in_a_circle",
    ),
    _mutant(
        name="a receiver stores under an outdated catalog",
        file=STATEMENTS,
        old="    WHERE coalesce((SELECT version FROM {prefix}catalog WHERE one) = %(catalog)s::bigint, true)\n",
        new="    WHERE coalesce(%(catalog)s::bigint, 0) IS NOT NULL\n",
        test=f"{SUITE}::test_a_stale_receiver_reaches_a_new_consumer[postgres-def]",
    ),
    _mutant(
        name="inline work stores under an outdated catalog",
        file=STATEMENTS,
        old="    WHERE (SELECT version FROM {prefix}catalog WHERE one) = %(catalog)s::bigint\n",
        new="    WHERE %(catalog)s::bigint IS NOT NULL\n",
        test=f"{SUITE}::test_inline_work_under_a_stale_catalog_reaches_a_new_consumer[postgres-def]",
    ),
    _mutant(
        name="a message is discarded while it is fanned out",
        file=STATEMENTS,
        old="AND state || '' = 'unhandled' FOR UPDATE) AS q",
        new="AND state || '' = 'unhandled') AS q",
        test=f"{FAN_OUT}::test_a_message_is_discarded_or_fanned_out_and_never_both",
    ),
    _mutant(
        name="a caller's transaction does not hold the catalog",
        file=STATEMENTS,
        old="FROM (SELECT pg_advisory_xact_lock_shared(hashtext('{prefix}catalog'), 0), pg_notify",
        new="FROM (SELECT pg_notify",
        test=f"{CATALOG}::test_a_consumer_that_comes_meanwhile_waits_for_open_transactions",
    ),
    _mutant(
        name="a new consumer waits for no caller's transaction",
        file=STATEMENTS,
        old="SELECT pg_advisory_xact_lock(hashtext('{prefix}catalog'), 0)\n",
        new="SELECT 1\n",
        test=f"{CATALOG}::test_a_consumer_that_comes_meanwhile_waits_for_open_transactions",
    ),
    _mutant(
        name="a zombie charges what its heir is running",
        file=STATEMENTS,
        old=f"WHERE seq = %(seq)s AND {_FENCE}\nRETURNING seq\n\n-- name: postpone",
        new="WHERE seq = %(seq)s AND (%(worker)s::bigint + %(token)s::bigint) IS NOT NULL\n"
        "RETURNING seq\n\n-- name: postpone",
        test="tests/contract/test_claims.py::test_a_zombie_ends_nothing_that_its_heir_runs[postgres-def-raises]",
    ),
    _mutant(
        name="a commit that was answered with ROLLBACK counts",
        file="stores/postgres/cursors.py",
        old='if statement is COMMIT and answer.command_status != b"COMMIT":',
        new='if statement is COMMIT and answer.command_status not in (b"COMMIT", b"ROLLBACK"):',
        test=f"{GUARDS}::test_a_commit_counts_only_when_the_server_says_so",
    ),
    _mutant(
        name="two migrate at once",
        file="stores/postgres/migrating.py",
        old='connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [f"{prefix}migration"])',
        new='connection.execute("SELECT hashtext(%s)", [f"{prefix}migration"])',
        test=f"{MIGRATIONS}::test_migrators_wait_for_each_other_whatever_the_default_isolation",
    ),
    _mutant(
        name="a migrator does not see what the one before it did",
        file="stores/postgres/migrating.py",
        old="connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED",
        new="connection.isolation_level = None",
        test=f"{MIGRATIONS}::test_migrators_wait_for_each_other_whatever_the_default_isolation",
    ),
    _mutant(
        name="what is promised may be lost with the server",
        file=STATEMENTS,
        old="CASE WHEN %(durable)s THEN current_setting('synchronous_commit') ELSE 'off' END",
        new="CASE WHEN %(durable)s THEN 'off' ELSE 'off' END",
        test=f"{GUARDS}::test_what_is_promised_is_written_as_surely_as_the_server_writes",
    ),
    Mutant(
        name="a migration that meets a deadlock fails",
        file="stores/postgres/migrating.py",
        old="except (pg.DeadlockDetected, pg.LockNotAvailable) as error:",
        new="except pg.CrashShutdown as error:",
        test="tests/migration/test_newer.py::test_a_migration_that_meets_a_lock_is_made_again[postgres]",
        store="postgres",
    ),
    _mutant(
        name="a claim waits for a row that another has locked",
        file=STATEMENTS,
        old="""    WHERE state = 'ready' AND token IS NULL AND isolation = 0 AND NOT outgoing AND seq + 0 >= %(cursor)s
      AND subscription = ANY(%(subscriptions)b::integer[])
      AND (key_hash IS NULL OR key_hash <> ALL(%(held)b::bigint[]))
    ORDER BY seq + 0 LIMIT %(limit)s FOR UPDATE SKIP LOCKED""",
        new="""    WHERE state = 'ready' AND token IS NULL AND isolation = 0 AND NOT outgoing AND seq + 0 >= %(cursor)s
      AND subscription = ANY(%(subscriptions)b::integer[])
      AND (key_hash IS NULL OR key_hash <> ALL(%(held)b::bigint[]))
    ORDER BY seq + 0 LIMIT %(limit)s FOR UPDATE""",
        test="tests/contract/test_claims.py::test_a_claim_passes_over_what_another_has_in_hand[def]",
    ),
)
