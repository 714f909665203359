"""Migrates while others work on the same tables: an attempt waits for a lock for a short time, and is made again.

Invariant: all that is applied is one transaction, so an attempt that ends at a deadlock or at a lock that it did not
get leaves nothing; and a worker behind the migrator waits for `_LOCK_WAIT` at most, however long others keep it
waiting.
"""

from __future__ import annotations

import logging
import random
import time
from typing import Any

import psycopg
from psycopg import errors as pg

from onceward.errors import StoreBusy
from onceward.stores import migrate

log = logging.getLogger("onceward")

_LOCK_WAIT = "2s"
_PATIENCE = 60.0
"""Seconds of attempts, after which the operator is told what is in the way."""


def apply(conninfo: str, prefix: str, url: str) -> list[str]:
    """Apply what is missing; raises StoreBusy where the tables were in use all the time."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            return _attempt(conninfo, prefix, url)
        except (pg.DeadlockDetected, pg.LockNotAvailable) as error:
            if time.monotonic() > deadline:
                raise StoreBusy(
                    f"the tables in {migrate.masked(url)} were in use for {_PATIENCE:.0f} s, so nothing was migrated; "
                    "find long transactions with SELECT pid, xact_start, query FROM pg_stat_activity ORDER BY "
                    f"xact_start, end them, then run: {migrate.command(url, prefix)}"
                ) from error
            log.info("the tables in %s are in use, migrating again: %s", migrate.masked(url), type(error).__name__)
        time.sleep(random.uniform(0.1, 1.0))  # noqa: S311 - so that two do not meet again


def _attempt(conninfo: str, prefix: str, url: str) -> list[str]:
    with psycopg.connect(conninfo, prepare_threshold=None) as connection:
        migrate.check_encoding(url, connection.info.parameter_status("server_encoding"))
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED  # to see what the one before did
        connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [f"{prefix}migration"])
        connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_WAIT}'")  # not before: another migrator may take long

        def execute(sql: str) -> list[Any]:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

        return migrate.apply("postgres", prefix, url, execute)
