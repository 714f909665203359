"""Versioned tables: numbered SQL files, applied in order, each in the transaction that records it.

Invariant: the version row is written in the same transaction as the tables, under a lock that only one migrator
holds, so two at once are safe and a failure leaves nothing half done.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from onceward.errors import ConfigurationError, SchemaMissing, SchemaOutdated
from onceward.stores.statements import migrations

DEFAULT_PREFIX = "onceward_"
_PASSWORD = re.compile(r"((?:password|sslpassword)=)[^&\s]*", re.IGNORECASE)

Execute = Callable[[str], list[Any]]


def version_query(prefix: str) -> str:
    """Reads the newest applied version."""
    return f"SELECT coalesce(max(version), 0) FROM {prefix}migration"


def _bookkeeping(prefix: str) -> str:
    return f"CREATE TABLE IF NOT EXISTS {prefix}migration (version integer PRIMARY KEY, name text NOT NULL)"


def _record(prefix: str, version: int, name: str) -> str:
    return f"INSERT INTO {prefix}migration (version, name) VALUES ({version}, '{name}')"


def apply(dialect: str, prefix: str, execute: Execute) -> list[str]:
    """Apply what is missing; the caller has begun a transaction and holds the lock."""
    execute(_bookkeeping(prefix))
    current = execute(version_query(prefix))[0][0]
    applied = []
    for version, name, statements in migrations(dialect, prefix):
        if version > current:
            execute(_record(prefix, version, name))
            for statement in statements:
                execute(statement)
            applied.append(f"{version:04d}_{name}")
    return applied


def as_text(dialect: str, prefix: str) -> str:
    """Every migration as SQL text, the same statements `apply` runs."""
    lines = [f"-- onceward tables for {dialect}; run in one transaction", _bookkeeping(prefix) + ";"]
    for version, name, statements in migrations(dialect, prefix):
        lines += ["", f"-- {version:04d}_{name}", _record(prefix, version, name) + ";"]
        lines += [statement + ";" for statement in statements]
    return "\n".join(lines) + "\n"


def newest(dialect: str, prefix: str) -> int:
    """The version this onceward needs."""
    return migrations(dialect, prefix)[-1][0]


def missing(url: str, prefix: str) -> SchemaMissing:
    """The error for a database without tables."""
    return SchemaMissing(
        f"{masked(url)} has no onceward tables (prefix {prefix!r}); create them with: {_command(url, prefix)}"
        "  (or inbox.migrate())"
    )


def _command(url: str, prefix: str) -> str:
    return f"onceward migrate --store '{masked(url)}'" + ("" if prefix == DEFAULT_PREFIX else f" --prefix {prefix}")


def check(dialect: str, prefix: str, url: str, version: int) -> None:
    """Refuse tables of another version."""
    wanted = newest(dialect, prefix)
    if version < wanted:
        raise SchemaOutdated(
            f"the onceward tables in {masked(url)} have version {version}, this onceward needs {wanted}; "
            f"update them with: {_command(url, prefix)}"
        )
    if version > wanted:
        raise SchemaOutdated(
            f"the onceward tables in {masked(url)} have version {version}, newer than the {wanted} this onceward "
            "knows; upgrade onceward"
        )


def check_encoding(url: str, encoding: str | None) -> None:
    """Refuse a database that cannot keep every text: one error or id with another character could not be stored."""
    if encoding not in ("UTF8", None):
        raise ConfigurationError(
            f"the database {masked(url)} has the encoding {encoding}, in which not every message can be stored; create "
            "one in UTF-8 (CREATE DATABASE name ENCODING 'UTF8' TEMPLATE template0) and move your tables there with "
            "pg_dump and pg_restore"
        )


def masked(url: str) -> str:
    """A URL without its password."""
    scheme, separator, rest = url.partition("://")
    rest = _PASSWORD.sub(r"\1***", rest)
    credentials, at, host = rest.rpartition("@")
    if not at or ":" not in credentials:
        return f"{scheme}{separator}{rest}"
    return f"{scheme}{separator}{credentials.partition(':')[0]}:***@{host}"
