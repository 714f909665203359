"""What psycopg's errors, and the state that a handler leaves its connection in, mean to onceward."""

from __future__ import annotations

from typing import Any, NoReturn

import psycopg
from psycopg import errors as pg
from psycopg.pq import TransactionStatus

from onceward.errors import (
    ContractViolation,
    GuardFailed,
    RightsMissing,
    StoreBusy,
    StoreConflict,
    StoreError,
    StoreUnavailable,
    TransactionAborted,
    TransactionEnded,
)

_CONFLICT = (pg.SerializationFailure, pg.DeadlockDetected)
_AWAY_STATES = ("08", "53", "57P", "25006", "25P03")


def is_infrastructure(error: BaseException, connection: Any) -> bool:
    """Whether the database was at fault rather than the message."""
    if isinstance(error, _CONFLICT):
        return True
    if isinstance(error, StoreUnavailable | StoreConflict):
        return True
    return isinstance(error, psycopg.Error) and (bool(connection.closed) or _is_away(error))


def _is_away(error: psycopg.Error) -> bool:
    return (error.sqlstate or "").startswith(_AWAY_STATES)


def translated(error: psycopg.Error, connection: Any) -> StoreError | ContractViolation:
    """A driver error as one of ours."""
    outdated = isinstance(error, pg.InvalidSqlStatementName) or "cached plan must not change result type" in str(error)
    if outdated:  # a handler has discarded what was prepared, or a table has changed: from here on nothing is prepared
        connection.prepare_threshold = None
    if outdated or isinstance(error, _CONFLICT):
        return StoreConflict(f"PostgreSQL rolled the transaction back: {_brief(error)}")
    if isinstance(error, pg.LockNotAvailable | pg.QueryCanceled):
        return _late(error)
    if isinstance(error, pg.NotNullViolation) and error.diag.column_name == "messages":
        return GuardFailed("a row is not in the state its writer believed")
    if isinstance(error, pg.InFailedSqlTransaction):
        return swallowed()
    # Without a state it is the driver that gave up, such as on a pipeline that broke in the middle.
    adrift = isinstance(error, psycopg.OperationalError) and error.sqlstate is None
    if connection.closed or adrift or _is_away(error) or isinstance(error, psycopg.InterfaceError):
        return StoreUnavailable(f"PostgreSQL cannot be reached: {_brief(error)}")
    return refused(error)


def _late(error: psycopg.Error) -> StoreUnavailable:
    if isinstance(error, pg.LockNotAvailable) and error.diag.context:  # which names the row that another has
        return StoreBusy(
            f"PostgreSQL did not answer in time: {_brief(error)}. Most likely another copy of the message is being "
            "processed. This one was not stored: deliver it again"
        )
    return StoreUnavailable(f"PostgreSQL did not answer in time: {_brief(error)}")


def swallowed() -> TransactionAborted:
    """The error of a handler that left its transaction aborted and returned."""
    return TransactionAborted(
        "the handler swallowed a database error: PostgreSQL had aborted its transaction, so nothing of it could be "
        "kept. Let the error out, or use a savepoint (`with tx.transaction():`) around the statement that may fail"
    )


def left_behind(status: TransactionStatus) -> StoreUnavailable | ContractViolation | TransactionAborted:
    """The error of a handler that returned and left its connection so."""
    if status == TransactionStatus.INERROR:
        return swallowed()
    if status == TransactionStatus.IDLE:
        return TransactionEnded()
    if status == TransactionStatus.ACTIVE:
        return ContractViolation(
            "the handler left a query unfinished on tx (a stream, COPY or pipeline); read it to its end, or close it"
        )
    return StoreUnavailable("PostgreSQL cannot be reached: the connection was lost while the handler ran")


def refused(error: psycopg.Error) -> StoreError:
    """The error for a statement that this server or this role does not allow."""
    kind = RightsMissing if isinstance(error, pg.InsufficientPrivilege) else StoreError
    return kind(f"PostgreSQL refused a statement: {_brief(error)}")


def _brief(error: psycopg.Error) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__


def unreachable(error: BaseException, url: str) -> NoReturn:
    """Raise for a connection that could not be made."""
    raise StoreUnavailable(f"{url} cannot be reached: {str(error).strip() or type(error).__name__}") from error
