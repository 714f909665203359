"""The address of a database of MySQL's family, as the drivers' arguments."""

from __future__ import annotations

import ssl
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from onceward.errors import ConfigurationError
from onceward.stores import migrate

_FILES = ("ssl_ca", "ssl_cert", "ssl_key")
_TRUE = ("1", "true", "yes", "required")
_DEAD_PEER_SECONDS = 10


class Address(NamedTuple):
    """Where a database is, and who asks."""

    host: str
    port: int
    user: str
    password: str
    database: str
    options: dict[str, str]

    @classmethod
    def of(cls, url: str) -> Address:
        """A URL, read."""
        try:
            parts = urlsplit(url)
            port = parts.port or 3306
        except ValueError as error:
            raise _wrong(url, str(error)) from None
        database = unquote(parts.path.lstrip("/"))
        if not database or "/" in database:
            raise _wrong(url, "it names no database")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        unknown = set(options) - {
            "unix_socket",
            "charset",
            "ssl",
            "ssl_verify_identity",
            "connect_timeout",
            "tidb",
            *_FILES,
        }
        if unknown:
            raise _wrong(url, f"it has options that are not known here: {', '.join(sorted(unknown))}")
        if options.get("charset", "utf8mb4") != "utf8mb4":
            raise _wrong(url, "not every text can be stored in this charset; leave it out, it is utf8mb4")
        who = unquote(parts.username or ""), unquote(parts.password or "")
        return cls(parts.hostname or "127.0.0.1", port, *who, database, options)

    def arguments(self) -> dict[str, Any]:
        """What both drivers take."""
        where: dict[str, Any] = {"host": self.host, "port": self.port}
        if socket := self.options.get("unix_socket"):
            where = {"unix_socket": socket}
        who: dict[str, Any] = {"password": self.password, "database": self.database, "charset": "utf8mb4"}
        if self.user:
            who["user"] = self.user
        return {**where, **who, "connect_timeout": int(self.options.get("connect_timeout", _DEAD_PEER_SECONDS))}

    def secure(self) -> ssl.SSLContext | None:
        """What is said about TLS; None where nothing is."""
        files = [self.options.get(name) for name in _FILES]
        if not any(files) and self.options.get("ssl", "").lower() not in _TRUE:
            return None
        authority, certificate, key = files
        context = unverified()
        if authority:  # with an authority to trust, the name of the host is checked as well
            context.load_verify_locations(authority)
            context.verify_mode, context.check_hostname = ssl.CERT_REQUIRED, True
        if certificate:
            context.load_cert_chain(certificate, key)
        return context

    @property
    def schema(self) -> str:
        """The database as it stands before the name of a table."""
        return "`" + self.database.replace("`", "``") + "`"


def unverified() -> ssl.SSLContext:
    """TLS with whatever server answers; quick to make, for it reads no certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _wrong(url: str, reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"{migrate.masked(url)!r} is not an address of MySQL: {reason}; use mysql://user:password@host:3306/database"
    )
