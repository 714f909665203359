"""Upkeep: retention, archive, erasure, quarantine."""

from __future__ import annotations

from mutants.mutant import Mutant

UPKEEP: tuple[Mutant, ...] = ()
