"""Messages with a time: they join their key when they are due, behind what came before, and hold up no others."""

from __future__ import annotations

from mutants.mutant import Mutant

_SUITE = "tests/contract/test_store_suite.py::TestStores"
_PLACE = "9223372036854775807"

_JOINING = f"""\
    SELECT * FROM due UNION ALL SELECT * FROM fresh LIMIT %(limit)s
), mine AS MATERIALIZED (
    SELECT seq, key_hash, place, due_at FROM picked, me WHERE key_hash IS NULL OR pg_try_advisory_xact_lock(key_hash)
), before AS MATERIALIZED (
    SELECT key_hash, (
        SELECT min(e.due_at) FROM {{prefix}}queue e
        WHERE e.key_hash = keys.key_hash AND e.place = {_PLACE} AND e.seq <> ALL(ARRAY(SELECT seq FROM mine))
    ) AS due_at
    FROM (SELECT DISTINCT key_hash FROM mine WHERE place = {_PLACE}) AS keys
), joining AS MATERIALIZED (
    SELECT seq, nextval('{{prefix}}seq') AS place FROM (
        SELECT m.seq FROM mine m LEFT JOIN before b ON b.key_hash = m.key_hash
        WHERE m.place = {_PLACE} AND m.due_at <= coalesce(b.due_at, m.due_at) ORDER BY m.due_at, m.seq
"""

DELAYS = (
    Mutant(
        name="a scheduled message comes into its key at once",
        file="steps/rows.py",
        old="        elif sequence is None:\n            place = LAST_PLACE\n",
        new="",
        test=f"{_SUITE}::test_it_holds_no_other_of_its_key_before_it_is_due[sqlite-def]",
        store="sqlite",
    ),
    Mutant(
        name="inline work waits for what is scheduled",
        file="stores/sql/sqlite.sql",
        old=f"WHERE key_hash = :key_hash AND place < {_PLACE})\n    OR (EXISTS",
        new="WHERE key_hash = :key_hash)\n    OR (EXISTS",
        test=f"{_SUITE}::test_it_holds_no_other_of_its_key_before_it_is_due[sqlite-def]",
        store="sqlite",
    ),
    Mutant(
        name="a scheduled message has no place in its key when it is due, on PostgreSQL",
        file="stores/sql/postgres.sql",
        old=f"        place = CASE place WHEN {_PLACE} THEN (SELECT j.place FROM joining j WHERE j.seq = q.seq) ELSE place END\n"
        f"    WHERE seq = ANY(ARRAY(SELECT seq FROM mine WHERE place < {_PLACE} UNION ALL SELECT seq FROM joining))\n    RETURNING seq, subscription, key_hash, place, sequence, "
        "attempts\n)\nSELECT q.*, b.source, b.id, b.type, b.version, b.key, b.headers, CASE WHEN octet_length(b.body) <= "
        "262144 THEN b.body END, b.destination,\n       b.key_from, b.received_at, ({clock} - coalesce(b.due_at, "
        "b.received_at)) / {second}\nFROM claimed q CROSS JOIN LATERAL (SELECT * FROM {prefix}body WHERE seq = q.seq LIMIT "
        "1) AS b\n\n-- name: claim_outgoing",
        new="        place = place\n"
        f"    WHERE seq = ANY(ARRAY(SELECT seq FROM mine WHERE place < {_PLACE} UNION ALL SELECT seq FROM joining))\n    RETURNING seq, subscription, key_hash, place, sequence, "
        "attempts\n)\nSELECT q.*, b.source, b.id, b.type, b.version, b.key, b.headers, CASE WHEN octet_length(b.body) <= "
        "262144 THEN b.body END, b.destination,\n       b.key_from, b.received_at, ({clock} - coalesce(b.due_at, "
        "b.received_at)) / {second}\nFROM claimed q CROSS JOIN LATERAL (SELECT * FROM {prefix}body WHERE seq = q.seq LIMIT "
        "1) AS b\n\n-- name: claim_outgoing",
        test=f"{_SUITE}::test_what_comes_when_it_has_joined_waits_behind_it[postgres-def]",
        store="postgres",
    ),
    Mutant(
        name="those that are due together run in the order of their coming, on PostgreSQL",
        file="stores/sql/postgres.sql",
        old=_JOINING,
        new=_JOINING.replace("ORDER BY m.due_at, m.seq", "ORDER BY m.seq"),
        test=f"{_SUITE}::test_those_of_a_key_come_in_the_order_of_their_times[postgres-def]",
        store="postgres",
    ),
    Mutant(
        name="what another lane has locked, and cannot claim, is overtaken when it is due, on PostgreSQL",
        file="stores/sql/postgres.sql",
        old=_JOINING,
        new=_JOINING.replace(" AND m.due_at <= coalesce(b.due_at, m.due_at)", ""),
        test="tests/contract/test_delays.py::test_what_another_lane_has_locked_is_not_overtaken[postgres]",
        store="postgres",
    ),
    Mutant(
        name="a message that was scheduled is old when it runs",
        file="testing/memory/claims.py",
        old="age=tables.since(tables.since_due(row.seq))",
        new="age=tables.since(received_at)",
        test="tests/contract/test_delays.py::test_its_age_counts_from_its_time_on[memory]",
    ),
    Mutant(
        name="cancel takes what has begun",
        file="steps/operate.py",
        old="discard(Order(seq, actor, reason), scheduled=True)",
        new="discard(Order(seq, actor, reason), scheduled=False)",
        test=f"{_SUITE}::test_it_is_cancelled_while_it_is_scheduled_and_never_runs[sqlite-def]",
        store="sqlite",
    ),
    Mutant(
        name="an unhandled message with a time holds up the keys of its consumer",
        file="steps/rows.py",
        old="        sequence = LAST_PLACE  # when it came, for those that came later: it holds up none of them\n",
        new="        sequence = None\n",
        test=f"{_SUITE}::test_a_type_without_a_handler_keeps_its_time[sqlite-def-None] "
        "tests/contract/test_delays.py::test_an_unplaced_one_holds_up_no_key[sqlite]",
        store="sqlite",
    ),
)
