"""`manage.py check`: settings of a project that an inbox cannot live with, reported before something is lost."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from django.core import checks
from django.db import DatabaseError, connections

from onceward.errors import ConfigurationError, OncewardError
from onceward.integrations.django import tables
from onceward.integrations.django.addresses import address_of
from onceward.integrations.django.inbox import DjangoInbox, inboxes
from onceward.integrations.django.project import of_database, project_inbox

READ_COMMITTED = (None, 1, 2)
"""The isolation levels that PostgreSQL takes for it."""


def register() -> None:
    """Have Django make them."""
    checks.register(check_project, "onceward")
    checks.register(check_settings, "onceward")
    checks.register(check_tables, checks.Tags.database)


def check_project(**_: Any) -> list[checks.CheckMessage]:
    """Whether there is an inbox, and whether it is Django's."""
    try:
        inbox = project_inbox()
    except OncewardError as error:
        return [checks.Warning(str(error), id="onceward.W001")]
    if isinstance(inbox, DjangoInbox):
        return []
    return [
        checks.Warning(
            "the project's inbox is an onceward.Inbox: what the ORM does in its handlers is not in the transaction of "
            "their message, and may take effect twice",
            hint="write `inbox = DjangoInbox()`, from onceward.integrations.django",
            id="onceward.W002",
        )
    ]


def check_settings(**_: Any) -> list[checks.CheckMessage]:
    """Whether the databases of `DATABASES` are such that an inbox can be there."""
    return [message for alias in _aliases() for message in _of_database(alias)]


def check_tables(databases: Sequence[str] | None = None, **_: Any) -> list[checks.CheckMessage]:
    """Whether the tables are there; asks the databases, so only where Django does: `check --database`, `migrate`."""
    found: list[checks.CheckMessage] = []
    if sys.argv[1:2] == ["migrate"]:  # which checks first, and makes them then
        return found
    for alias in sorted(set(databases or ()) & set(_aliases())):
        for inbox in of_database(alias):
            prefix = inbox.store.prefix
            try:
                version = tables.version_in(alias, prefix)
            except (DatabaseError, OncewardError):
                continue  # Django's own checks say that it cannot be reached
            if version < tables.newest():
                what = "are not there yet" if version == 0 else f"have version {version}"
                found.append(
                    checks.Warning(
                        f"the onceward tables {prefix!r} in DATABASES[{alias!r}] {what}; version {tables.newest()} is "
                        "needed",
                        hint=f"they are made by: python manage.py migrate --database {alias}",
                        id="onceward.W003",
                    )
                )
    return found


def _aliases() -> list[str]:
    return sorted({inbox.using for inbox in inboxes()})


def _of_database(alias: str) -> Iterator[checks.CheckMessage]:
    settings = connections[alias].settings_dict
    try:
        address = address_of(alias)
    except ConfigurationError as error:
        yield checks.Error(str(error), id="onceward.E001")
        return
    where = f"DATABASES[{alias!r}]"
    if settings["AUTOCOMMIT"] is False:
        yield checks.Error(
            f"{where} has AUTOCOMMIT = False, so every call is inside a transaction: inbox.process() and workers are "
            "refused, and what inbox.receive() stores waits for a commit() of yours",
            hint="leave AUTOCOMMIT out, and use transaction.atomic()",
            id="onceward.E002",
        )
    if settings["ATOMIC_REQUESTS"]:
        yield checks.Info(
            f"{where} has ATOMIC_REQUESTS: in a view inbox.receive() is stored with the request's transaction, and "
            "inbox.process() is refused",
            hint=f'put @transaction.non_atomic_requests(using="{alias}") on views that call process(); webhook views '
            "have it",
            id="onceward.I001",
        )
    yield from _BY_VENDOR.get(address.vendor, _nothing)(where, settings["OPTIONS"], address.in_memory)


def _sqlite(where: str, options: Any, in_memory: bool) -> Iterator[checks.CheckMessage]:  # noqa: FBT001 - one of three
    if in_memory:
        yield checks.Warning(
            f"{where} is in memory, where only Django's own connection reaches it: no worker can run",
            hint="give it a file",
            id="onceward.W004",
        )
    if str(options.get("transaction_mode") or "DEFERRED").upper() == "DEFERRED":
        yield checks.Warning(
            f"{where} begins transactions without the write lock: atomic() that reads first and writes later fails "
            "when a worker has written in between",
            hint=f'{where}["OPTIONS"] = {{"transaction_mode": "IMMEDIATE"}}',
            id="onceward.W005",
        )
    if options.get("init_command"):
        yield checks.Warning(
            f"{where} has an init_command, which the connections of workers do not run",
            hint="put what handlers need into the handlers; workers have foreign keys, WAL and synchronous=FULL",
            id="onceward.W006",
        )


def _postgresql(where: str, options: Any, in_memory: bool) -> Iterator[checks.CheckMessage]:  # noqa: ARG001, FBT001 - as above
    if options.get("isolation_level") not in READ_COMMITTED:
        yield checks.Warning(
            f"{where} has an isolation_level of its own; handlers run in READ COMMITTED all the same",
            hint="lock what a handler depends on: select_for_update()",
            id="onceward.W007",
        )


def _mysql(where: str, options: Any, in_memory: bool) -> Iterator[checks.CheckMessage]:  # noqa: ARG001, FBT001 - as above
    if str(options.get("isolation_level", "read committed")).lower() != "read committed":
        yield checks.Warning(
            f"{where} has an isolation_level of its own; handlers run in READ COMMITTED all the same",
            hint="lock what a handler depends on: select_for_update()",
            id="onceward.W007",
        )


def _nothing(where: str, options: Any, in_memory: bool) -> Iterator[checks.CheckMessage]:  # noqa: ARG001, FBT001 - as above
    yield from ()


_BY_VENDOR: dict[str, Callable[[str, Any, bool], Iterator[checks.CheckMessage]]] = {
    "sqlite": _sqlite,
    "postgresql": _postgresql,
    "mysql": _mysql,
}
