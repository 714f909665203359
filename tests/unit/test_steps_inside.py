"""Going back in a transaction of the caller's: what the caller hears where that is not possible."""

from __future__ import annotations

import pytest

from onceward.errors import (
    GuardFailed,
    OncewardError,
    StoreConflict,
    StoreUnavailable,
    TransactionEnded,
)
from onceward.flow import ROLLBACK
from onceward.steps.attempt import Failed
from onceward.steps.inside import _go_back

DROPPED = StoreUnavailable("the connection dropped")


def gone_back(lost: Failed, gone: OncewardError | None) -> BaseException | None:
    """What is raised where the rollback to where the call began raises this."""
    steps = _go_back(lost)
    assert next(steps) == ROLLBACK
    try:
        if gone is None:
            next(steps)
        else:
            steps.throw(gone)
    except StopIteration:
        return None
    except Exception as error:  # noqa: BLE001 - whatever it is
        return error
    raise AssertionError("it asks for more")


def test_where_it_goes_back_nothing_is_raised() -> None:
    assert gone_back(Failed(ValueError()), None) is None


def test_an_error_of_ours_is_what_the_caller_hears() -> None:
    error = StoreConflict("deadlock")
    raised = gone_back(Failed(error, infrastructure=True), DROPPED)
    assert raised is error
    assert raised.__cause__ is DROPPED


def test_a_failed_handler_in_a_lost_transaction_is_the_loss() -> None:
    error = ValueError("wrong order")
    raised = gone_back(Failed(error), DROPPED)
    assert raised is DROPPED
    assert raised.__cause__ is error


def test_where_the_database_ended_it_the_caller_is_told_so() -> None:
    error = ConnectionError("terminated")
    raised = gone_back(Failed(error, infrastructure=True), DROPPED)
    assert isinstance(raised, StoreUnavailable)
    assert "the database ended the transaction" in str(raised)
    assert raised.__cause__ is error


@pytest.mark.parametrize("error", [ValueError("wrong order"), GuardFailed("another transaction")])
def test_another_transaction_is_named_as_the_reason(error: Exception) -> None:
    raised = gone_back(Failed(error), GuardFailed("another transaction"))
    assert isinstance(raised, TransactionEnded)
    assert raised.__cause__ is error
