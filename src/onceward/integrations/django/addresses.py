"""Where a database of `DATABASES` is, as the URL of a store.

Invariant: the URL leads to the database that Django's own connections use, with the same rights.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.connection import ConnectionDoesNotExist

from onceward.errors import ConfigurationError

_FOR_PYTHON = ("context", "cursor_factory", "row_factory", "prepare_threshold", "client_encoding", "autocommit")
"""Arguments of psycopg's `connect` that are no options of a connection."""


class Address(NamedTuple):
    """Where a database is."""

    vendor: str
    """What Django calls its kind."""
    url: str
    in_memory: bool = False
    """It is SQLite's, and lives in the connection that made it: a second one cannot reach it."""


def settings_of(using: str) -> Mapping[str, Any]:
    """The entry of `DATABASES`, as it is now: tests change it."""
    try:
        found: Mapping[str, Any] = connections[using].settings_dict
    except ConnectionDoesNotExist:
        known = ", ".join(map(repr, connections))
        raise ConfigurationError(f"DjangoInbox: using={using!r} is not in DATABASES, which has {known}") from None
    except ImproperlyConfigured as error:
        raise ConfigurationError(
            f"DjangoInbox needs the settings of the project ({error}). Run it through manage.py: "
            "python manage.py onceward ..., or set DJANGO_SETTINGS_MODULE"
        ) from error
    return found


def address_of(using: str) -> Address:
    """The address of a database."""
    settings_of(using)
    connection = connections[using]
    try:
        if connection.vendor == "sqlite":
            return _sqlite(using, connection)
        if connection.vendor == "postgresql":
            return Address("postgresql", _postgresql(connection))
        if connection.vendor == "mysql":
            return Address("mysql", _mysql(connection.settings_dict))
    except ImproperlyConfigured as error:
        raise ConfigurationError(f"DATABASES[{using!r}]: {error}") from error
    raise ConfigurationError(
        f"DATABASES[{using!r}] is {connection.display_name}, which onceward has no store for; use PostgreSQL, "
        "MySQL or SQLite"
    )


def _sqlite(using: str, connection: Any) -> Address:
    name = str(connection.settings_dict["NAME"])
    if not name:
        raise ImproperlyConfigured("NAME is empty; give it the file of the database")
    if connection.creation.is_in_memory_db(connection.settings_dict["NAME"]):
        return Address("sqlite", "sqlite:///in-memory", in_memory=True)
    if name.startswith("file:"):
        raise ConfigurationError(f"DATABASES[{using!r}]: write NAME as a path, not as the URI {name!r}")
    return Address("sqlite", f"sqlite:///{Path(name).absolute()}")


def _postgresql(connection: Any) -> str:
    given = {name: value for name, value in connection.get_connection_params().items() if name not in _FOR_PYTHON}
    set_at_start = _set_at_start(connection)
    if set_at_start:
        given["options"] = " ".join(filter(None, [given.get("options"), *set_at_start]))
    host, port = str(given.get("host", "")), str(given.get("port", ""))
    if any(sign in host for sign in "/,:@"):  # a folder of sockets, several servers, IPv6
        where = ""
    else:
        where = host + (f":{port}" if port.isdecimal() and host else "")
        for name in ("host", *(["port"] if port.isdecimal() and host else [])):
            given.pop(name, None)
    return _url("postgresql", where, given, user="user", password="password", database="dbname")  # noqa: S106 - a name


def _set_at_start(connection: Any) -> list[str]:
    """What Django sets on each of its connections: the time zone that its ORM reads times in, and a role."""
    wanted = []
    # Who lets no cursor stay open has a pooler in transaction mode, and that lets no other settings through.
    if connection.timezone_name and not connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS"):
        wanted.append(f"-c TimeZone={connection.timezone_name}")
    role = connection.settings_dict["OPTIONS"].get("assume_role")
    if role:
        wanted.append("-c role=" + str(role).replace("\\", "\\\\").replace(" ", "\\ "))
    return wanted


def _mysql(settings: Mapping[str, Any]) -> str:
    given = {"user": settings["USER"], "password": settings["PASSWORD"], "database": settings["NAME"]}
    host, port = str(settings["HOST"] or "localhost"), str(settings["PORT"] or "")
    if host.startswith("/"):
        return _url("mysql", "localhost", {**given, "unix_socket": host})
    return _url("mysql", host + (f":{port}" if port else ""), given)


def _url(  # noqa: PLR0913 - its parts
    scheme: str,
    where: str,
    given: Mapping[str, Any],
    *,
    user: str = "user",
    password: str = "password",  # noqa: S107 - a name
    database: str = "database",
) -> str:
    rest = {name: str(value) for name, value in given.items() if name not in (user, password, database)}
    credentials = quote(str(given.get(user) or ""), safe="")
    if given.get(password):
        credentials += ":" + quote(str(given[password]), safe="")
    place = f"{credentials}@{where}" if credentials else where
    options = f"?{urlencode(rest, quote_via=quote)}" if rest else ""
    return f"{scheme}://{place}/{quote(str(given.get(database) or ''), safe='')}{options}"
