"""The `tx` of a handler on a store without interactive transactions: it records what is to be written.

Invariant: nothing that is recorded is visible before the move that finishes the message; then all of it is applied with
"done", in the order of recording, or nothing. Reads go past it, to what is committed: a write that depends on a read
says so (`condition`), and where that no longer holds, nothing is committed and the message runs again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from onceward.errors import ContractViolation, HandlerTimeout, StoreConflict
from onceward.stores.calls import Owned
from onceward.stores.dry_run import Change, Statement
from onceward.testing.memory.tables import Tables

Row = Mapping[str, Any]
Write = Callable[[Tables], None]


class Recorded(NamedTuple):
    """A write, and how it reads."""

    text: str
    write: Write


class Recorder(Owned):
    """Rows of tables, each a mapping under a key. Nothing of it waits, so `async def` handlers call it as it is."""

    def __init__(self, read: Callable[[], Tables]) -> None:
        self._read = read
        self.writes: list[Recorded] = []
        self.marks: list[int] = []
        """How much was recorded at each savepoint."""

    # Writes

    def put(self, table: str, key: Any, **row: Any) -> None:
        """Write a row, whether there is one or not."""
        self._record(f"put {table} {key!r} {row!r}", lambda tables: tables.user.update({(table, key): row}))

    def update(self, table: str, key: Any, **changes: Any) -> None:
        """Change a row; where there is none at the end, nothing of the transaction is committed."""

        def write(tables: Tables) -> None:
            if (table, key) not in tables.user:
                raise StoreConflict(f"{table} has no {key!r} to update")
            tables.user[table, key] = {**tables.user[table, key], **changes}

        self._record(f"update {table} {key!r} {changes!r}", write)

    def delete(self, table: str, key: Any) -> None:
        """Remove a row, if there is one."""

        def write(tables: Tables) -> None:
            tables.user.pop((table, key), None)

        self._record(f"delete {table} {key!r}", write)

    def condition(self, table: str, key: Any, expected: Row | None) -> None:
        """The row is at the end as it was read (None: not there); else nothing is committed, and it runs again."""

        def check(tables: Tables) -> None:
            if tables.user.get((table, key)) != expected:
                raise StoreConflict(f"{table} {key!r} has changed since it was read")

        self._record(f"condition {table} {key!r} {expected!r}", check)

    # Reads: what is committed, never what is recorded here

    def get(self, table: str, key: Any) -> Row | None:
        """A row; None where there is none."""
        self._check()
        found = self._read().user.get((table, key))
        return None if found is None else MappingProxyType(dict(found))

    def rows(self, table: str) -> dict[Any, Row]:
        """All rows of a table, by their keys."""
        self._check()
        return {key: dict(row) for (name, key), row in self._read().user.items() if name == table}

    # Its end is onceward's

    def commit(self) -> None:
        """Refused: returning commits."""
        self._refuse("commit()")

    def rollback(self) -> None:
        """Refused: raising rolls back."""
        self._refuse("rollback()")

    def apply(self, tables: Tables) -> None:
        """Make the writes; whatever raises has changed nothing, for the tables are a copy."""
        for recorded in self.writes:
            recorded.write(tables)

    def changes(self) -> list[Change]:
        """What the writes would do to the rows of handlers."""
        before = self._read()
        after = before.copied(before.now)
        self.apply(after)
        found = []
        for where in sorted(before.user.keys() | after.user.keys(), key=repr):
            old, new = before.user.get(where), after.user.get(where)
            if old != new:
                kind: Any = "insert" if old is None else "delete" if new is None else "update"
                found.append(Change(where[0], kind, old, new))
        return found

    def statements_shown(self) -> list[Statement]:
        """The writes, to be shown."""
        return [Statement(recorded.text, "") for recorded in self.writes]

    def _record(self, text: str, write: Write) -> None:
        self._check()
        self.sends("")
        self.writes.append(Recorded(text, write))

    def _check(self) -> None:
        self.check_owner()
        if self.overrun:
            raise HandlerTimeout("the handler has run longer than its timeout; what it writes is not kept")

    def _refuse(self, what: str) -> None:
        self._check()
        raise ContractViolation(
            f"the handler called {what}; the transaction belongs to onceward: returning commits, raising rolls back. "
            "Remove it"
        )
