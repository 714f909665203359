"""A statement that changed other than one row has lost a race: the message is tried again."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from onceward.domain.versions import one_row
from onceward.retry import Retry


def test_one_row_passes() -> None:
    """The cursor comes back, for whoever wants to go on with it."""
    cursor = SimpleNamespace(rowcount=1)
    assert one_row(cursor) is cursor


@pytest.mark.parametrize("count", [0, 2, -1])
def test_anything_else_is_a_retry(count: int) -> None:
    """Everything is rolled back, and the reason says how many it were."""
    with pytest.raises(Retry, match=f"changed {count} rows"):
        one_row(SimpleNamespace(rowcount=count))
