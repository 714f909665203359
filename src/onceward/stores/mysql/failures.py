"""What the errors of the drivers mean to onceward.

PyMySQL, mysqlclient and asyncmy number them alike, as the server does.
"""

from __future__ import annotations

from typing import Any, NoReturn

import pymysql.err

from onceward.errors import (
    ContractViolation,
    GuardFailed,
    RightsMissing,
    StoreBusy,
    StoreConflict,
    StoreError,
    StoreUnavailable,
    TransactionAborted,
)

# Of a deadlock (1467: over the counter of a table), a conflict with another server of a cluster (Galera, group
# replication, TiDB), a table that changed.
CONFLICTS = frozenset([1020, 1180, 1213, 1412, 1467, 3101, 8002, 8022, 8028, 9007])
_LOCK_WAIT, _UNNAMED = 1205, 1105
BUSY = frozenset([_LOCK_WAIT, 3572])
_LATE = frozenset([1317, 1969, 3024])
# fmt: off
_AWAY = frozenset([
    1021, 1040, 1041, 1047, 1053, 1077, 1079, 1080, 1129, 1135, 1152, 1158, 1159, 1160, 1161, 1184,
    1203, 1226, 1290, 1792, 1836, 1927, 2002, 2003, 2006, 2013, 2014, 2055, 3100, 3168, 3169, 4031,
    8027, 9001, 9002, 9003, 9004, 9005,
])
# fmt: on
_RIGHTS = frozenset([1044, 1045, 1142, 1143, 1227, 1370])
SWALLOWED = CONFLICTS | BUSY | _LATE | _AWAY
"""What a handler cannot pass over: it has lost its transaction, or a statement that it believes in."""

_TOO_LARGE, _LOST, _OF_CLIENT = 1153, 2013, 2
_NULL, _NO_SAVEPOINT = 1048, 1305
_ERRORS = frozenset(["MySQLdb", "MySQLdb._exceptions", "MySQLdb.err", "pymysql.err"])
"""Where drivers of callers have their errors; PyMySQL's are others where a program has loaded it anew."""


def errors() -> tuple[type[Exception], ...]:
    """The classes that the drivers raise, of those that are there."""
    found: list[type[Exception]] = [pymysql.err.Error]
    try:
        from asyncmy.errors import Error  # noqa: PLC0415 - only async work needs it
    except ImportError:
        pass
    else:
        found.append(Error)
    return tuple(found)


DRIVER: tuple[type[Exception], ...] = errors()


def lost(connection: Any, text: str) -> Exception:
    """What the driver of a connection raises when that breaks while it waits for an answer."""
    kind: type[Exception] = pymysql.err.OperationalError
    if any(base.__module__.partition(".")[0] == "asyncmy" for base in type(connection).__mro__):
        from asyncmy.errors import OperationalError  # noqa: PLC0415 - only async work needs it

        kind = OperationalError
    return kind(_LOST, text)


def number(error: BaseException) -> int:
    """What the server, or the driver in its place, calls an error."""
    first = error.args[0] if error.args else 0
    if first == _UNNAMED and error.args[-1] == "lock wait timeout":  # TiDB has two ways to say it
        return _LOCK_WAIT
    return first if isinstance(first, int) else 0


def is_of_driver(error: BaseException) -> bool:
    """Whether a driver has raised it; also one that is only known to a caller, such as mysqlclient."""
    return isinstance(error, DRIVER) or any(base.__module__ in _ERRORS for base in type(error).__mro__)


def is_of_server(error: BaseException) -> bool:
    """Whether it is the answer to a statement, read to its end; the driver's own have numbers from 2000 on."""
    return is_of_driver(error) and number(error) > 0 and number(error) // 1000 != _OF_CLIENT


def is_infrastructure(error: BaseException, closed: bool) -> bool:  # noqa: FBT001 - of the connection
    """Whether the database was at fault rather than the message."""
    if isinstance(error, StoreUnavailable | StoreConflict):
        return True
    return is_of_driver(error) and (closed or number(error) in CONFLICTS or number(error) in _AWAY)


def translated(  # noqa: PLR0911 - one for each kind
    error: BaseException, *, closed: bool
) -> StoreError | ContractViolation:
    """A driver error as one of ours."""
    which, brief = number(error), _brief(error)
    if which in CONFLICTS:
        return StoreConflict(f"MySQL rolled the transaction back: {brief}")
    if which in BUSY:
        return StoreBusy(
            f"MySQL did not answer in time: {brief}. Most likely another copy of the message is being processed. This "
            "one was not stored: deliver it again"
        )
    if which in _LATE:
        return StoreUnavailable(f"MySQL did not answer in time: {brief}")
    if (which == _NULL and "messages" in brief) or (which == _NO_SAVEPOINT and "SAVEPOINT" in brief.upper()):
        return GuardFailed(
            "a row is not in the state its writer believed, or the transaction is not the one that began"
        )
    if which == _TOO_LARGE:
        return StoreError(
            f"a message is larger than max_allowed_packet: {brief}; raise that on the server, or keep large bodies in "
            "a blob store (Inbox(blobs=...))"
        )
    if closed or which in _AWAY or type(error).__name__ == "InterfaceError":
        return StoreUnavailable(f"MySQL cannot be reached: {brief}")
    kind = RightsMissing if which in _RIGHTS else StoreError
    return kind(f"MySQL refused a statement: {brief}")


def swallowed(error: BaseException) -> TransactionAborted:
    """The error of a handler that passed over what it cannot, and returned."""
    return TransactionAborted(
        f"the handler swallowed a database error ({_brief(error)}): MySQL undid a statement or everything, so "
        "nothing of it could be kept. Let the error out, or go back to a savepoint of your own (ROLLBACK TO ...)"
    )


def _brief(error: BaseException) -> str:
    text = " ".join(str(part) for part in error.args[1:]) if number(error) else str(error)
    return text.strip().split("\n")[0] + (f" ({number(error)})" if number(error) else "") or type(error).__name__


def unreachable(error: BaseException, url: str) -> NoReturn:
    """Raise for a connection that could not be made."""
    raise StoreUnavailable(f"{url} cannot be reached: {_brief(error)}") from error


def refused_or_unreachable(error: Any, url: str) -> NoReturn:
    """Raise for an error outside of sessions."""
    found = translated(error, closed=False)
    if isinstance(found, StoreUnavailable):
        unreachable(error, url)
    raise found from error
