"""What travels together fails together, and leaves a connection that works (PostgreSQL)."""

from __future__ import annotations

import pytest

from onceward.errors import StoreError
from onceward.flow import COMMIT, ROLLBACK, Query
from tests.contract.harness import Shop

WRONG = {"seqs": [1], "worker": 1, "token": 1, "code_version": "", "mark": "", "expected": 1}


def test_a_commit_that_the_server_passed_over_can_be_sent_again(postgres_shop: Shop) -> None:
    """HZ-23: also from its sixth time on, when psycopg begins to prepare it, behind one that failed."""
    begin = postgres_shop.inbox.context.short()
    session = postgres_shop.inbox.store.connect()
    try:
        for _ in range(2):
            with pytest.raises(StoreError):
                session.perform((begin, Query("finish", WRONG), Query("workers"), COMMIT))
            session.perform(ROLLBACK)
            for _ in range(5):
                assert session.perform((begin, Query("workers"), COMMIT))[1] == []
    finally:
        session.close()
