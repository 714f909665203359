"""Which rows a handler changed, on PostgreSQL: read from the row versions themselves, without locks or triggers.

A row version carries the transaction that made it (xmin) and the one that ended it (xmax). A version that was made
since our transaction began and that another connection does not see is new; one that was ended since and that only the
other connection still sees is old; both of one primary key are an update. Parts of our transaction (savepoints) have
numbers of their own, all later than its first, so the numbers are compared and not matched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from onceward.flow import Flow, Outcome
from onceward.stores.dry_run import Change, DryRunResult, Statement

LARGE = 1 << 30
"""Tables of more bytes are not searched: reading them takes longer than an operator waits."""

_FIRST = "SELECT pg_current_xact_id_if_assigned()::xid::text"
_TOUCHED = """
SELECT s.schemaname, s.relname, pg_relation_size(s.relid), ARRAY(
    SELECT a.attname::text FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)
    WHERE i.indrelid = s.relid AND i.indisprimary)
FROM pg_stat_xact_user_tables s
WHERE s.n_tup_ins + s.n_tup_upd + s.n_tup_del > 0 AND NOT starts_with(s.relname, %s)
ORDER BY 1, 2
"""
_VERSIONS = """
SELECT t.ctid::text, to_jsonb(t), age(t.xmin) <= age(%(first)s::xid), age(t.xmax) <= age(%(first)s::xid)
FROM {} t WHERE age(t.xmin) <= age(%(first)s::xid) OR age(t.xmax) <= age(%(first)s::xid)
"""


@contextmanager
def elsewhere(connection: Any) -> Iterator[psycopg.Connection[Any]]:
    """Another connection to the same database, which sees what was before."""
    dsn = psycopg.conninfo.make_conninfo(connection.info.dsn, password=connection.info.password)
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as other:
        yield other


def result(
    connection: Any, other: psycopg.Connection[Any], prefix: str, outcome: Outcome, statements: Sequence[Statement]
) -> Flow[DryRunResult]:
    """What the transaction has changed so far. Yields the statements that must run inside it."""
    status = connection.info.transaction_status
    if status == TransactionStatus.INERROR:
        unseen = "PostgreSQL aborted the transaction at an error, and the changes before it are undone"
        return DryRunResult(outcome, statements, (), unseen)
    if status != TransactionStatus.INTRANS:
        return DryRunResult(outcome, statements, ())
    found: list[Change] = []
    large: list[str] = []
    rows = yield _FIRST, None  # type: ignore[misc] # statements of our own, not named ones
    first = {"first": rows[0][0]}
    touched = yield _TOUCHED, [prefix]  # type: ignore[misc]
    for schema, name, size, key in touched:
        table = sql.Identifier(schema, name)
        if size > LARGE:
            large.append(name)
            continue
        query = sql.SQL(_VERSIONS).format(table)
        # First ours: what others commit meanwhile is then seen by the other connection too.
        here = yield query, first  # type: ignore[misc]
        there = other.execute(query, first).fetchall()
        ours, theirs = ({row[0] for row in rows} for rows in (here, there))
        new = [row for place, row, is_new, _ in here if is_new and place not in theirs]
        old = [row for place, row, _, has_ended in there if has_ended and place not in ours]
        found += _paired(name, key, old, new)
    unseen = f"not searched, too large: {', '.join(large)}" if large else ""
    return DryRunResult(outcome, statements, found, unseen)


def _paired(
    table: str, key: Sequence[str], old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]
) -> Iterator[Change]:
    before = {_identity(key, row, number): row for number, row in enumerate(old)}
    for number, row in enumerate(new):
        was = before.pop(_identity(key, row, -1 - number), None)
        yield Change(table, "insert" if was is None else "update", was, row)
    for row in before.values():
        yield Change(table, "delete", row, None)


def _identity(key: Sequence[str], row: Mapping[str, Any], number: int) -> Any:
    """By primary key; a table without one has rows that are only themselves."""
    return tuple(repr(row[name]) for name in key) if key else number
