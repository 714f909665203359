"""Which types a worker process runs: all that it has handlers for, or a part of them.

Invariant: what a process does not run it neither claims nor tells others that it handles. Keys are kept in order all
the same: a message waits behind what is before it in its key, whichever process runs that.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import NamedTuple

from onceward.domain import checks
from onceward.errors import ConfigurationError


class Selection(NamedTuple):
    """Types by name: only these, or all but these."""

    only: frozenset[str] = frozenset()
    exclude: frozenset[str] = frozenset()

    def takes(self, message_type: str) -> bool:
        """Whether messages of this type are run."""
        return (not self.only or message_type in self.only) and message_type not in self.exclude


EVERYTHING = Selection()


def selection_of(where: str, only: Collection[str], exclude: Collection[str], known: Collection[str]) -> Selection:
    """The types that a process is to run, checked against those that it has handlers for."""
    chosen = Selection(_names(where, "only", only, known), _names(where, "exclude", exclude, known))
    if chosen != EVERYTHING and not any(map(chosen.takes, known)):
        raise ConfigurationError(f"{where}: only= and exclude= leave no type to run; handled: {_listed(known)}")
    return chosen


def _names(where: str, argument: str, given: Collection[str], known: Collection[str]) -> frozenset[str]:
    if isinstance(given, str) or not isinstance(given, Collection):
        checks.refuse(where, argument, given, f'a list of types, for example {argument}=["order.paid"]')
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(str(name), known, n=1)
            meant = f"did you mean {close[0]!r}? " if close else ""
            raise ConfigurationError(
                f"{where}: {argument}: no handler here has the type {name!r}; {meant}Handled: {_listed(known)}"
            )
    return frozenset(given)


def _listed(known: Collection[str]) -> str:
    return ", ".join(map(repr, sorted(known))) or "none"
