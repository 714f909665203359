"""Addresses of databases as SQLAlchemy writes them, `postgresql+psycopg://host/shop`: read as the stores' own.

Invariant: a URL of SQLite always means the file that SQLAlchemy would open; any other one that names no driver is left
as it is, so what a store's own URL means never depends on this.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable
from urllib.parse import parse_qsl, unquote, urlencode

from onceward.errors import ConfigurationError

_OWN_OPTIONS = ("prepared_statement_cache_size", "prepared_statement_name_func", "async_fallback")
"""What asyncpg's dialect keeps for itself."""


_SQLITE_DRIVERS = ("", "pysqlite", "aiosqlite")
"""Those that open a plain file, as onceward does; others encrypt it, or ask a server."""

_MYSQL = ("mysql", "mariadb")


@runtime_checkable
class RenderedUrl(Protocol):
    """SQLAlchemy's `engine.url`."""

    def render_as_string(self, hide_password: bool = True) -> str:  # noqa: FBT001, FBT002 - SQLAlchemy's own
        """It as text."""


def of_engine(url: RenderedUrl) -> str:
    """What `plain` makes of an engine's URL, whose parts are known: since 2.1 its text has a path percent-encoded."""
    text = url.render_as_string(hide_password=False)
    database = getattr(url, "database", None)
    if not text.startswith("sqlite") or not isinstance(database, str):
        return plain(text)
    return plain(f"{text.partition('://')[0]}:///{database}?{urlencode(dict(getattr(url, 'query', {})), doseq=True)}")


def plain(url: str) -> str:
    """The same address without the driver that SQLAlchemy would use."""
    scheme, separator, rest = url.partition("://")
    database, plus, driver = scheme.partition("+")
    place, _, query = rest.partition("?")
    if separator and database == "sqlite":
        return _of_file(url, driver, place, dict(parse_qsl(query, keep_blank_values=True)))
    if not separator or not plus or database not in ("postgresql", "postgres", *_MYSQL):
        return url
    if database in _MYSQL:  # what the drivers are told is told here, too
        return f"{database}://{rest}"
    options = _for_libpq(parse_qsl(query, keep_blank_values=True))
    return f"{database}://{place}" + (f"?{urlencode(options)}" if options else "")


def _of_file(url: str, driver: str, place: str, options: dict[str, Any]) -> str:
    """A file of SQLite. Options are arguments of Python's driver; our own are chosen for durability."""
    if driver not in _SQLITE_DRIVERS:
        raise ConfigurationError(
            f"sqlite+{driver}://: what {driver} opens is not a plain SQLite file, and onceward has no other store for "
            "it; use sqlite:///path"
        )
    if not place.startswith("/file:"):
        return f"sqlite://{place}"
    if options.get("mode") == "memory":
        raise ConfigurationError(
            f"{url!r} is a database in memory, which no other engine could share; use a file: sqlite:///path"
        )
    path = unquote(place.removeprefix("/file:")).removeprefix("//")
    return f"sqlite:///{path}"


def _for_libpq(given: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The options of a URL as libpq knows them: asyncpg says `ssl`, and several hosts are one list."""
    options = [("sslmode" if name == "ssl" else name, value) for name, value in given if name not in _OWN_OPTIONS]
    hosts = [value for name, value in options if name == "host"]
    if len(hosts) <= 1 and not any(":" in host and not host.startswith("/") for host in hosts):
        return options
    pairs = [host.rpartition(":") if ":" in host else (host, "", "") for host in hosts]
    both = [("host", ",".join(host for host, _, _ in pairs)), ("port", ",".join(port for _, _, port in pairs))]
    return [*((name, value) for name, value in options if name not in ("host", "port")), *both]
