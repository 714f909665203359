"""On which stores a test is played.

SQLite and PostgreSQL play what has `store_url`. What depends on the words of a dialect is played on MariaDB too; with
ONCEWARD_STORES=all everything is, which takes as long again.
"""

from __future__ import annotations

import os

import pytest

PLAYS_ALL = os.environ.get("ONCEWARD_STORES") == "all"
USUAL = ("sqlite", "postgres", "mariadb") if PLAYS_ALL else ("sqlite", "postgres")
"""Where `store_url` leads."""


@pytest.fixture
def postgres_database(prepared_database: str) -> str:
    """With the tables, for folders whose tests begin with making them."""
    return prepared_database


with_mariadb = pytest.mark.parametrize("store_url", ["sqlite", "postgres", "mariadb"], indirect=True)
"""On MariaDB, too."""
