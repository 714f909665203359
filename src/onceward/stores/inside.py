"""Inside: what is a transaction of ours elsewhere is a savepoint in the transaction of a caller.

Invariant: nothing of a call is left in the caller's transaction unless all of it is; and nothing is written when that
transaction is not the one any more in which the call began.
"""

from __future__ import annotations

from typing import Any, TypeVar

from onceward.errors import (
    ConfigurationError,
    GuardFailed,
    StoreConflict,
    StoreError,
    StoreUnavailable,
    TransactionAborted,
)
from onceward.flow import Begin, Commit, Flow, Query, Rollback

T = TypeVar("T")

_BEGIN, _COMMIT, _ROLLBACK = Query("begin_inside"), Query("commit_inside"), Query("rollback_inside")


def nested(request: Any) -> Any:
    """A request as it is made inside."""
    if isinstance(request, tuple):
        return tuple(map(nested, request))
    if isinstance(request, Begin):
        return _BEGIN
    if isinstance(request, Commit):
        return _COMMIT
    return (_ROLLBACK, _COMMIT) if isinstance(request, Rollback) else request


def whole(step: Flow[T], session: object) -> Flow[T]:
    """A step in a transaction of a caller, who may pass over its error and commit: all of it is there, or nothing.

    Where an error ends the transaction itself, as on PostgreSQL, such a commit is refused without a savepoint.
    """
    return _whole(step) if getattr(session, "undoes_statements_only", False) else step


def _whole(step: Flow[T]) -> Flow[T]:
    yield _BEGIN
    try:
        answer = yield from step
    except GeneratorExit:  # nothing can be asked any more
        raise
    except BaseException as error:
        yield from _undo(error)
        raise
    yield _COMMIT
    return answer


def _undo(error: BaseException) -> Flow[None]:
    try:
        yield _ROLLBACK
    except (GuardFailed, TransactionAborted):  # a deadlock or a full disk has undone more than the statement
        kind = StoreUnavailable if isinstance(error, StoreUnavailable) else StoreConflict
        raise kind(
            "the database has undone your whole transaction, with what you wrote in it before this call: roll back, "
            f"and repeat it from its start ({error})"
        ) from error
    except StoreError:
        """The connection is lost, and the transaction with it: the error says that already."""


def ended() -> GuardFailed:
    """The error where the savepoint is gone, and the transaction with it."""
    return GuardFailed("the transaction is not the one in which the call began")


def refuse_nested() -> ConfigurationError:
    """The error where the transaction is a handler's."""
    return ConfigurationError(
        "tx= is the tx of a handler, in which no other handler runs: nothing was stored. Use message.send(...), or "
        "receive(..., tx=tx), and a worker handles it"
    )
