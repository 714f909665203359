"""Versioned tables: numbered SQL files, applied in order, each in the transaction that records it.

Invariant: the version row is written in the same transaction as the tables, under a lock that only one migrator
holds, so two at once are safe and a failure leaves nothing half done. With it stands whether older code goes on
working (`deploy`), so that code can be rolled back without touching the tables.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from typing import Any

from onceward.errors import ConfigurationError, SchemaMissing, SchemaOutdated
from onceward.stores.statements import Migration, migrations

log = logging.getLogger("onceward")

DEFAULT_PREFIX = "onceward_"
COMMITS_DDL = frozenset(["mysql"])
"""The dialects in which tables cannot be made in a transaction: each statement of theirs may be repeated."""
_PASSWORD = re.compile(r"((?:password|sslpassword)=)[^&\s]*", re.IGNORECASE)

Execute = Callable[[str], list[Any]]


def applied_query(prefix: str) -> str:
    """Reads what was applied: version, name, deploy."""
    return f"SELECT version, name, deploy FROM {prefix}migration ORDER BY version"


def _bookkeeping(prefix: str) -> str:
    return (
        f"CREATE TABLE IF NOT EXISTS {prefix}migration (version integer PRIMARY KEY, name text NOT NULL, "
        "deploy text NOT NULL CHECK (deploy IN ('before', 'after')))"
    )


def _record(dialect: str, prefix: str, one: Migration) -> str:
    again = f" ON DUPLICATE KEY UPDATE name = {prefix}migration.name" if dialect in COMMITS_DDL else ""
    row = f"({one.version}, '{one.name}', '{one.deploy}')"
    return f"INSERT INTO {prefix}migration (version, name, deploy) VALUES {row}{again}"


def apply(dialect: str, prefix: str, url: str, execute: Execute, *, up_to: int | None = None) -> list[str]:
    """Apply what is missing, up to a version if wanted; the caller has begun a transaction and holds the lock."""
    execute(_bookkeeping(prefix))
    found = execute(applied_query(prefix))
    _newer(dialect, prefix, url, found)
    applied = []
    for one in migrations(dialect, prefix):
        if _version(found) < one.version <= (up_to or one.version):
            for statement in _in_order(dialect, prefix, one):
                execute(statement)
            applied.append(_full_name(one.version, one.name))
    return applied


def as_text(dialect: str, prefix: str) -> str:
    """Every migration as SQL text, the same statements `apply` runs."""
    how = "may be run again" if dialect in COMMITS_DDL else "run in one transaction"
    lines = [f"-- onceward tables for {dialect}; {how}", _bookkeeping(prefix) + ";"]
    for one in migrations(dialect, prefix):
        lines += ["", f"-- {_full_name(one.version, one.name)}"]
        lines += [statement + ";" for statement in _in_order(dialect, prefix, one)]
    return "\n".join(lines) + "\n"


def every_statement(dialect: str, prefix: str, *, of: int | None = None) -> list[str]:
    """Every migration as statements, or one of them: the same that `apply` runs on a database without tables."""
    made = [one for one in migrations(dialect, prefix) if of in (None, one.version)]
    return [_bookkeeping(prefix), *(each for one in made for each in _in_order(dialect, prefix, one))]


def _in_order(dialect: str, prefix: str, one: Migration) -> tuple[str, ...]:
    """The statements of a migration with its record: in one transaction first, so that only one migrator goes on.

    Where DDL commits by itself it comes last: what was interrupted, or is done by two at once, is done again.
    """
    record = _record(dialect, prefix, one)
    return (*one.statements, record) if dialect in COMMITS_DDL else (record, *one.statements)


def newest(dialect: str, prefix: str) -> int:
    """The version this onceward needs."""
    return migrations(dialect, prefix)[-1].version


def _version(applied: Sequence[tuple[int, str, str]]) -> int:
    return max((version for version, _, _ in applied), default=0)


def _full_name(version: int, name: str) -> str:
    return f"{version:04d}_{name}"


def missing(url: str, prefix: str) -> SchemaMissing:
    """The error for a database without tables."""
    return SchemaMissing(
        f"{masked(url)} has no onceward tables (prefix {prefix!r}); create them with: {command(url, prefix)}"
        "  (or inbox.migrate())"
    )


def command(url: str, prefix: str) -> str:
    """The command that makes the tables."""
    return f"onceward migrate --store '{masked(url)}'" + ("" if prefix == DEFAULT_PREFIX else f" --prefix {prefix}")


def check(dialect: str, prefix: str, url: str, applied: Sequence[tuple[int, str, str]]) -> list[str]:
    """Refuse tables that this code cannot work with; returns the migrations that it does not know and can live with."""
    if not applied and dialect in COMMITS_DDL:  # a migrator that died has left some of them
        raise missing(url, prefix)
    version, wanted = _version(applied), newest(dialect, prefix)
    if version < wanted:
        raise SchemaOutdated(
            f"the onceward tables in {masked(url)} have version {version}, this onceward needs {wanted}; "
            f"update them with: {command(url, prefix)}"
        )
    newer = _newer(dialect, prefix, url, applied)
    if newer:
        log.info(
            "the onceward tables in %s are newer than this onceward, which works with them: %s",
            masked(url),
            ", ".join(newer),
        )
    return newer


def _newer(dialect: str, prefix: str, url: str, applied: Sequence[tuple[int, str, str]]) -> list[str]:
    """The applied migrations that this code does not know; raises if one of them needs code that does."""
    wanted = newest(dialect, prefix)
    unknown = {_full_name(version, name): deploy for version, name, deploy in applied if version > wanted}
    if needed := ", ".join(name for name, deploy in unknown.items() if deploy != "before"):
        raise SchemaOutdated(
            f"the onceward tables in {masked(url)} were changed by {needed}, which this onceward does not know and "
            f"cannot work with; deploy the onceward that has {needed}"
        )
    return list(unknown)


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
