"""A promise that a sink makes, as something that can be run.

The sentence is the docstring of its function, so what is promised and what is checked stand in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


class PromiseBroken(AssertionError):
    """A sink does not do what it must."""


@dataclass(frozen=True, slots=True)
class Promise:
    """One sentence of a contract, and the check of it."""

    check: Callable[..., None]

    def __str__(self) -> str:
        return self.check.__name__

    @property
    def sentence(self) -> str:
        """What is promised."""
        return (self.check.__doc__ or str(self)).strip().split("\n")[0]


def expect(kept: object, otherwise: str) -> None:
    """Raise `PromiseBroken` unless the promise was kept."""
    if not kept:
        raise PromiseBroken(otherwise)


def keep_all(promises: Sequence[Promise], *given: Any) -> list[str]:
    """Check every promise; returns the sentences, or raises `PromiseBroken` with all that were broken."""
    broken = []
    for promise in promises:
        try:
            promise.check(*given)
        except Exception as error:  # noqa: BLE001 - whatever it raises here, its promise is broken
            broken.append(f"{promise.sentence}\n    {type(error).__name__}: {error}")
    if broken:
        raise PromiseBroken(f"{len(broken)} of {len(promises)} promises are broken:\n" + "\n".join(broken))
    return [promise.sentence for promise in promises]
