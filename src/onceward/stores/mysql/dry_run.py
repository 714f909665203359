"""Which rows a handler changed, on MySQL, which keeps no record of that.

The tables that its statements name are read as its transaction sees them and as another connection does, and compared.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

from onceward.flow import Outcome
from onceward.stores.dry_run import Change, DryRunResult, Statement

LARGE = 20_000
"""Tables of more rows are not searched: reading them takes longer than a person waits."""
_TABLES = (
    b"SELECT table_name, table_rows FROM information_schema.tables "
    b"WHERE table_schema = database() AND table_type = 'BASE TABLE' ORDER BY 1"
)
_COLUMNS = (
    b"SELECT column_name, column_key FROM information_schema.columns "
    b"WHERE table_schema = database() AND table_name = %s ORDER BY ordinal_position"
)

HERE, THERE = "here", "there"
"""Where a statement is to run: in the transaction, or on another connection."""
_Table = Mapping[Any, Mapping[str, Any]]
Asking = Generator[tuple[str, bytes], list[tuple[Any, ...]], Any]
"""Yields statements with where they run, and gets their rows."""


def result(prefix: str, outcome: Outcome, statements: Sequence[Statement]) -> Asking:
    """What the transaction has changed so far, as a `DryRunResult`."""
    words = {word.lower() for one in statements for word in re.findall(r"[\w$]+", one.sql)}
    found: list[Change] = []
    large: list[str] = []
    for name, rows in (yield THERE, _TABLES):
        if name.lower() not in words or name.startswith(prefix):
            continue
        if rows is not None and rows > LARGE:
            large.append(name)
            continue
        found += yield from _compared(name)
    unseen = f"not searched, too large: {', '.join(large)}" if large else ""
    return DryRunResult(outcome, statements, found, unseen)


def _compared(name: str) -> Asking:
    """The changed rows of a table; what another transaction commits while it is read is none of them."""
    quoted = b"'" + name.encode().replace(b"'", b"''") + b"'"
    columns = yield THERE, _COLUMNS.replace(b"%s", quoted)
    names = [column for column, _ in columns]
    key = [column for column, kind in columns if kind == "PRI"]
    select = b"SELECT * FROM `" + name.encode().replace(b"`", b"``") + b"`"
    before = _rows((yield THERE, select), names, key)
    here = _rows((yield HERE, select), names, key)
    again = _rows((yield THERE, select), names, key)
    return list(_changes(name, before, here, again))


def _changes(name: str, before: _Table, here: _Table, again: _Table) -> Iterator[Change]:
    for identity in [*before, *(one for one in here if one not in before)]:
        was, now = before.get(identity), here.get(identity)
        if was != now and again.get(identity) == was:
            kind = "insert" if was is None else "delete" if now is None else "update"
            yield Change(name, kind, was, now)  # type: ignore[arg-type] # one of the three


def _rows(rows: list[tuple[Any, ...]], names: list[str], key: list[str]) -> _Table:
    found: dict[Any, dict[str, Any]] = {}
    for values in rows:
        row = dict(zip(names, values, strict=True))
        identity: Any = tuple(repr(row[name]) for name in key) if key else repr(values)
        while identity in found:  # of a table without a key, equal rows
            identity = (identity, "again")
        found[identity] = row
    return found
