"""The state of the code that something was found out on, and the folder where it is kept.

Invariant: what is kept under a state was found with the same package, the same file of tests and the same files that
tests share; when one of them changes it is found out again.
"""

from __future__ import annotations

import hashlib
from functools import cache

from mutants.player import CHECKOUT
from proof.fingerprint import fingerprint

KEPT = CHECKOUT / "build" / "mutation"


@cache
def state(file: str) -> str:
    """Of the package with a file of tests."""
    return hashlib.sha256(f"{_shared()} {fingerprint((file,)).digest}".encode()).hexdigest()[:16]


@cache
def _shared() -> str:
    """What all tests use: the package, and what is beside the tests."""
    beside = (path for path in (CHECKOUT / "tests").rglob("*.py") if not path.name.startswith("test_"))
    return fingerprint(("src/onceward", *(path.relative_to(CHECKOUT).as_posix() for path in sorted(beside)))).digest
