"""What the numbers of MySQL's errors mean."""

from __future__ import annotations

import pymysql
import pytest

from onceward.errors import StoreConflict
from onceward.stores.mysql.failures import translated


@pytest.mark.parametrize("number", [1020, 1213, 1467])
def test_what_met_another_transaction_is_a_conflict(number: int) -> None:
    """1467: a deadlock over the counter of a table, seen on MariaDB when many registered at once."""
    assert isinstance(translated(pymysql.err.OperationalError(number, "as it says"), closed=False), StoreConflict)
