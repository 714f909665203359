"""Alembic: our tables in a migration of the program's own, and its autogenerate kept off them.

In a revision: `upgrade(op, inbox)`. In env.py: `context.configure(..., include_name=include_name(inbox))`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from sqlalchemy import text

from onceward.inbox import Inbox
from onceward.stores import migrate

if TYPE_CHECKING:
    from alembic.operations import Operations

IncludeName = Callable[[str | None, str, Mapping[str, str | None]], bool]


def upgrade(op: Operations, inbox: Inbox) -> list[str]:
    """Create or update the tables in the transaction of the migration; returns the names of what was applied.

    As `inbox.migrate()`: what is there already stays, so one revision that calls it may stand for each release.
    With `--sql` all of it is written out, and for tables that are not there yet.
    """
    if op.get_context().as_sql:
        for statement in migrate.every_statement(inbox.store.dialect, inbox.store.prefix):
            op.execute(_literal(statement))
        return []
    connection = op.get_bind()

    def execute(sql: str) -> list[Any]:
        found = connection.execute(_literal(sql))
        return [tuple(row) for row in found] if found.returns_rows else []

    return migrate.apply(inbox.store.dialect, inbox.store.prefix, inbox.store.url, execute)


def include_name(inbox: Inbox, otherwise: IncludeName | None = None) -> IncludeName:
    """For `context.configure(include_name=...)`: our tables are not autogenerate's; `otherwise` decides on the rest."""
    prefix = inbox.store.prefix

    def include(name: str | None, kind: str, parents: Mapping[str, str | None]) -> bool:
        if kind == "table" and name is not None and name.startswith(prefix):
            return False
        return True if otherwise is None else otherwise(name, kind, parents)

    return include


def _literal(sql: str) -> Any:
    """A statement without parameters, whatever looks like one in it."""
    return text(sql.replace(":", "\\:"))
