"""How many examples the properties try: few by default, many with HYPOTHESIS_PROFILE=long."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile("unit", max_examples=60, deadline=None)
settings.register_profile(
    "long", max_examples=20_000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

if (chosen := os.environ.get("HYPOTHESIS_PROFILE", "unit")) in ("unit", "long"):
    settings.load_profile(chosen)
