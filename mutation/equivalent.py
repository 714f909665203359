"""Changes that no test can notice, each with the reason: what the changed code does is the same."""

from __future__ import annotations

EQUIVALENT: dict[tuple[str, str, str], str] = {}
"""By file, kind and the line of code as it stands, without the spaces around it."""
