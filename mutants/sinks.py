"""The sinks: what counts as confirmed."""

from __future__ import annotations

from mutants.mutant import Mutant

SINKS: tuple[Mutant, ...] = ()
