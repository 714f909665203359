"""What a mutant is: one edit of the code that breaks one promise, and the tests that must notice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """One edit. `old` stands exactly once in `file`, so that there is no doubt which place is meant."""

    name: str
    """The broken promise in a few words."""
    file: str
    """Relative to `src/onceward`."""
    old: str
    new: str
    test: str
    """The node ids of the tests of which one must fail, separated by spaces."""
    store: str = ""
    """On which the tests are played; empty where no store plays a part."""

    @property
    def tests(self) -> tuple[str, ...]:
        """The node ids, one by one."""
        return tuple(self.test.split())
