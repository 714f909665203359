"""A look into a store from outside the inbox, on one connection that is kept."""

from __future__ import annotations

import sqlite3
import threading
from typing import Any

import psycopg

from tests.contract.behaviour import statement


class Window:
    """Runs statements past the inbox, from any thread; opens again when its connection was cut."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._is_mysql = url.startswith(("mysql", "mariadb"))
        self._connection: Any = None
        self._lock = threading.Lock()

    def sql(self, text: str, *params: Any) -> list[tuple[Any, ...]]:
        """Run a statement in a transaction of its own; `%s` marks a value on every store."""
        with self._lock:
            if self._url.startswith("sqlite"):
                return self._rows(statement(text, params, "?"))
            try:
                return self._rows(statement(text, params, "%s"))
            except Exception:
                if not self._is_cut():
                    raise
                self._connection = None
                return self._rows(statement(text, params, "%s"))

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _is_cut(self) -> bool:
        return bool(self._connection is None or not getattr(self._connection, "open", not _is_closed(self._connection)))

    def _rows(self, call: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        if self._connection is None:
            self._connection = self._open()
        if self._is_mysql:
            with self._connection.cursor() as own:
                own.execute(*call)
                return list(own.fetchall())
        cursor = self._connection.execute(*call)
        return cursor.fetchall() if cursor.description else []

    def _open(self) -> Any:
        if self._url.startswith("sqlite"):
            path = self._url.removeprefix("sqlite:///")
            return sqlite3.connect(path, isolation_level=None, timeout=30, check_same_thread=False)
        if self._is_mysql:
            import pymysql  # noqa: PLC0415 - only tests on MariaDB need it

            from onceward.stores.mysql.address import Address  # noqa: PLC0415 - as above

            return pymysql.connect(**Address.of(self._url).arguments(), autocommit=True, ssl_disabled=True)
        return psycopg.connect(self._url, autocommit=True, prepare_threshold=None, application_name="window")


def _is_closed(connection: Any) -> bool:
    return bool(getattr(connection, "closed", False))
