"""The guards of PostgreSQL's own statements and sessions."""

from __future__ import annotations

from mutants.mutant import Mutant

POSTGRES: tuple[Mutant, ...] = ()
