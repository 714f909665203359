"""`manage.py migrate` makes the tables: each of our migrations is one of Django, with the same SQL.

Invariant: what is in a database is what its own record says (`onceward_migration`), be it written by Django, the
command line or Alembic. Of two migrators the second waits, and finds nothing to do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from django.db import connections, transaction
from django.db.migrations import Migration
from django.db.migrations.operations.base import Operation
from django.db.migrations.recorder import MigrationRecorder

from onceward.integrations.django.project import of_database
from onceward.stores import migrate
from onceward.stores.statements import migrations

log = logging.getLogger("onceward")

LABEL = "onceward"
DIALECTS = {"postgresql": "postgres", "sqlite": "sqlite"}
"""What our migrations call the databases whose tables are made in Django's own transaction."""
OURS = migrations("sqlite", migrate.DEFAULT_PREFIX)
"""Ours; those of each dialect have the same names."""


def names() -> list[str]:
    """What Django calls them."""
    return [f"{one.version:04d}_{one.name}" for one in OURS]


class Tables(Operation):
    """Our tables up to a version, for every inbox in the database.

    Backwards it leaves them as they are: older code works with newer tables, and what they remember must not be
    forgotten. Where older code does not, there is no way back.
    """

    reduces_to_sql = True

    def __init__(self, version: int) -> None:
        self.version = version
        (mine,) = (one for one in OURS if one.version == version)
        self.reversible = mine.deploy == "before"

    def deconstruct(self) -> tuple[str, Sequence[Any], dict[str, Any]]:
        """As Django writes it."""
        return (type(self).__name__, [self.version], {})

    def state_forwards(self, app_label: str, state: Any) -> None:
        """They are no models of Django's."""

    def database_forwards(self, _label: str, schema_editor: Any, _from: Any, _to: Any) -> None:
        """Make what is missing."""
        connection = schema_editor.connection
        for inbox in of_database(connection.alias):
            if not schema_editor.collect_sql:
                make(inbox, up_to=self.version)
                continue
            dialect = DIALECTS.get(connection.vendor, inbox.store.dialect)  # for `manage.py sqlmigrate`
            for statement in migrate.every_statement(dialect, inbox.store.prefix, of=self.version):
                schema_editor.execute(statement)

    def database_backwards(self, _label: str, schema_editor: Any, _from: Any, _to: Any) -> None:
        """Leave them as they are."""

    def describe(self) -> str:
        """For `manage.py migrate --plan`."""
        return f"onceward's tables, version {self.version}"


def make(inbox: Any, *, up_to: int | None = None) -> list[str]:
    """Apply what is missing, in the transaction of Django's connection."""
    connection = connections[inbox.using]
    dialect, prefix = DIALECTS.get(connection.vendor), inbox.store.prefix
    if dialect is None:
        return inbox.store.migrate()  # type: ignore[no-any-return] # as that store does
    name = str(connection.settings_dict["NAME"])
    with transaction.atomic(using=inbox.using), connection.cursor() as cursor:
        if dialect == "postgres":
            cursor.execute("SHOW server_encoding")
            migrate.check_encoding(name, cursor.fetchone()[0])
            cursor.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [f"{prefix}migration"])
        else:  # a write that changes nothing takes SQLite's only lock, before anything is read
            cursor.execute("DELETE FROM django_migrations WHERE 0")
        return migrate.apply(dialect, prefix, name, _executing(cursor), up_to=up_to)


def complete(using: str, **_: Any) -> None:
    """After `manage.py migrate`: make what is missing where Django knows that all was made.

    As for an inbox that was added later, or whose prefix is another.
    """
    behind = [inbox for inbox in of_database(using) if version_in(using, inbox.store.prefix) < newest()]
    if behind and are_all_recorded(using):
        for inbox in behind:
            log.info("made the onceward tables %r in %r: %s", inbox.store.prefix, using, ", ".join(make(inbox)))


def newest() -> int:
    """The version that this onceward needs."""
    return OURS[-1].version


def are_all_recorded(using: str) -> bool:
    """Whether Django's own record has all of ours."""
    recorded = MigrationRecorder(connections[using]).applied_migrations()
    return all((LABEL, name) in recorded for name in names())


def version_in(using: str, prefix: str) -> int:
    """The version of the tables in a database, as Django's connection sees it; 0 where there are none."""
    connection = connections[using]
    with connection.cursor() as cursor:
        if f"{prefix}migration" not in connection.introspection.table_names(cursor):
            return 0
        cursor.execute(f"SELECT max(version) FROM {prefix}migration")
        return cursor.fetchone()[0] or 0


def _executing(cursor: Any) -> Callable[[str], list[Any]]:
    def execute(sql: str) -> list[Any]:
        cursor.execute(sql)
        return list(cursor.fetchall()) if cursor.description else []

    return execute


def numbered(module: str, *more: Operation) -> type[Migration]:
    """Make the migration of Django that stands for one of ours, in the module of the same name."""
    name = module.rpartition(".")[2]
    place = names().index(name)
    content = {
        "initial": place == 0,
        "dependencies": [(LABEL, before) for before in names()[:place][-1:]],
        "operations": [Tables(OURS[place].version), *more],
    }
    return type("Migration", (Migration,), content)
