"""Optimistic concurrency in a handler's own table: one statement decides, and a lost race is retried."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from onceward.retry import Retry


class _Counting(Protocol):
    @property
    def rowcount(self) -> Any:
        """How many rows the last statement changed."""


C = TypeVar("C", bound=_Counting)


def one_row(cursor: C) -> C:
    """Make sure that a statement changed exactly one row; else roll back and try the message again.

    `one_row(tx.execute("UPDATE orders SET paid = 1, version = 8 WHERE id = 7 AND version = 7"))`: no row means that
    another was faster, or that the message this one builds on has not been applied yet.
    """
    if cursor.rowcount != 1:
        raise Retry(f"the statement changed {cursor.rowcount} rows instead of one: another was faster")
    return cursor
