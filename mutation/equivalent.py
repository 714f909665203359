"""Changes that no test can notice, each with the reason: what the changed code does is the same."""

from __future__ import annotations

EQUIVALENT: dict[tuple[str, str, str], str] = {
    (
        "retention/archive.py",
        "constant",
        "if int(found[2]) < newest.get(found[1], 0):",
    ): "the first edition is 1: nothing is older than a place without an entry, be that 0 or 1",
}
"""By file, kind and the line of code as it stands, without the spaces around it."""
