"""A shop for each runbook."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from onceward import Inbox, Settings
from tests.runbooks.operator import Operator


@pytest.fixture
def operator(sqlite_url: str) -> Iterator[Operator]:
    """A shop with its operator."""
    settings = Settings(
        handler_timeout=timedelta(seconds=10), poll=timedelta(milliseconds=50), lease=timedelta(seconds=3)
    )
    with Inbox(sqlite_url, service="shop", settings=settings) as inbox:
        inbox.migrate()
        yield Operator(inbox)
