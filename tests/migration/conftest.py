"""What only migrations need."""

from __future__ import annotations

import pytest

from tests.servers.ports import free_port


@pytest.fixture
def unused_port() -> int:
    """A port on which nobody listens."""
    return free_port()
