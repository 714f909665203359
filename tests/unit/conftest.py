"""How many examples the properties try: few by default, many with HYPOTHESIS_PROFILE=long."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("unit", max_examples=60, deadline=None)
settings.register_profile("long", max_examples=20_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])

CHOSEN = os.environ.get("HYPOTHESIS_PROFILE", "unit")

if CHOSEN in ("unit", "long"):
    settings.load_profile(CHOSEN)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A long search is not a hang: it may take as long as it takes."""
    here = Path(__file__).parent
    for item in items:
        if CHOSEN == "long" and here in item.path.parents:
            item.add_marker(pytest.mark.timeout(0))
