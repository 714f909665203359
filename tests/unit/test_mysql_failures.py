"""What the numbers of MySQL's errors mean."""

from __future__ import annotations

import pymysql
import pytest

from onceward.errors import StoreConflict
from onceward.stores.mysql.failures import is_of_driver, translated


@pytest.mark.parametrize("number", [1020, 1213, 1467])
def test_what_met_another_transaction_is_a_conflict(number: int) -> None:
    """1467: a deadlock over the counter of a table, seen on MariaDB when many registered at once."""
    assert isinstance(translated(pymysql.err.OperationalError(number, "as it says"), closed=False), StoreConflict)


@pytest.mark.parametrize("module", ["MySQLdb._exceptions", "MySQLdb.err"])
def test_a_driver_of_the_caller_s_is_known_by_where_its_errors_are(module: str) -> None:
    """PyMySQL under the name of mysqlclient, as Django wants it, has errors that PyMySQL's own name does not."""
    assert is_of_driver(_raised_in(module))
    assert not is_of_driver(_raised_in("shop.errors"))


def _raised_in(module: str) -> Exception:
    kind: type[Exception] = type("OperationalError", (Exception,), {"__module__": module})
    return kind(1213, "a deadlock")
