"""The sources: what is acknowledged, in which order, and what is kept."""

from __future__ import annotations

from mutants.mutant import Mutant

SOURCES: tuple[Mutant, ...] = ()
